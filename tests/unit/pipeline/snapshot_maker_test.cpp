// From a ring entry to a snapshot: whether it changed, and whether its values are kept.
#include "daemon/pipeline/snapshot_maker.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tests/support/daemon/model_fixture.h"

namespace cgdebug::pipeline {
namespace {

using test::MakeSession;
using test::MakeSlot;

TEST(SnapshotMaker, ChangesAreJudgedByTheSnapshotBeforeEvenIfItsValuesWereDropped) {
  const SlotPtr slot = MakeSlot(MakeSession("1"), "x", 1);
  PayloadPool pool(0);
  SnapshotMaker maker(&pool);
  std::vector<StoredSnapshot> kept;
  const auto changed = [&](float value, std::uint32_t flags) {
    ring::Entry entry;
    entry.flags = flags;
    entry.payload = test::Bytes({value, 0});
    kept.push_back(maker.Make(slot, &entry, {}));
    return kept.back().snapshot->changed;
  };
  EXPECT_TRUE(changed(1, 0));
  EXPECT_FALSE(changed(1, layout::kEntryDropValues));
  EXPECT_FALSE(changed(1, 0));
  EXPECT_TRUE(changed(2, layout::kEntryDropValues));
  EXPECT_TRUE(changed(1, 0)) << "it was 2 before";
}

TEST(SnapshotMaker, TheFirstStatisticsOfASlotAreNewAlsoWhereTheirHashIsZero) {
  const SlotPtr slot = MakeSlot(MakeSession("1"), "x", 1);
  PayloadPool pool(0);
  SnapshotMaker maker(&pool);
  const auto changed = [&] {
    ring::Entry entry;
    entry.flags = layout::kEntryIsStats;
    entry.stats.flags = layout::kStatsHasHash;
    return maker.Make(slot, &entry, {}).snapshot->changed;
  };
  EXPECT_TRUE(changed());
  EXPECT_FALSE(changed());
}

TEST(SnapshotMaker, StatisticsThatDifferAreAChangeAlsoWhereTheHashIsEqual) {
  const SlotPtr slot = MakeSlot(MakeSession("1"), "x", 1);
  PayloadPool pool(0);
  SnapshotMaker maker(&pool);
  const auto changed = [&](double value) {  // of two such elements: the XOR is 0
    ring::Entry entry;
    entry.flags = layout::kEntryIsStats;
    entry.stats.flags = layout::kStatsHasHash;
    entry.stats.count = 2;
    entry.stats.min = entry.stats.max = value;
    return maker.Make(slot, &entry, {}).snapshot->changed;
  };
  EXPECT_TRUE(changed(1));
  EXPECT_FALSE(changed(1));
  EXPECT_TRUE(changed(2));
}

TEST(SnapshotMaker, BytesDecideWhereHashesAreEqual) {
  const SlotPtr slot = MakeSlot(MakeSession("1"), "x", 1);
  PayloadPool pool(0);
  SnapshotMaker maker(&pool);
  std::vector<StoredSnapshot> kept;
  const auto changed = [&](const std::vector<float>& values, std::uint32_t flags) {
    ring::Entry entry;
    entry.flags = flags;
    entry.payload = test::Bytes(values);
    kept.push_back(maker.Make(slot, &entry, {}));
    return kept.back().snapshot->changed;
  };
  EXPECT_TRUE(changed({1, 2}, 0));
  EXPECT_TRUE(changed({2, 1}, 0));
  EXPECT_EQ(kept[0].snapshot->stats.hash, kept[1].snapshot->stats.hash);
  EXPECT_TRUE(changed({1, 2}, layout::kEntryDropValues));
  EXPECT_FALSE(kept.back().snapshot->has_values);
  EXPECT_EQ(kept.back().payload, nullptr);
  EXPECT_TRUE(changed({2, 1}, 0)) << "the one before was dropped";
}

TEST(SnapshotMaker, StatisticsBetweenEqualValuesAreAChange) {
  const SlotPtr slot = MakeSlot(MakeSession("1"), "x", 1);
  PayloadPool pool(0);
  SnapshotMaker maker(&pool);
  std::vector<StoredSnapshot> kept;
  const auto changed = [&](std::uint32_t flags, std::uint32_t stats_flags) {
    ring::Entry entry;
    entry.flags = flags;
    entry.stats.flags = stats_flags;
    entry.payload = test::Bytes({1, 2});
    kept.push_back(maker.Make(slot, &entry, {}));
    return kept.back().snapshot->changed;
  };
  EXPECT_TRUE(changed(0, 0));
  EXPECT_TRUE(changed(layout::kEntryIsStats, layout::kStatsHasHash));
  EXPECT_TRUE(changed(0, 0));
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(changed(layout::kEntryIsStats, 0)) << "without a hash nobody knows";
  }
}

TEST(SnapshotMaker, ATriggerLeavesTheValuesWhereItHolds) {
  using layout::ControlTrigger;
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const SlotPtr slot = MakeSlot(MakeSession("1"), "x", 1);
  PayloadPool pool(0);
  const auto keeps = [&](ControlTrigger trigger, float value) {
    ring::Entry entry;
    entry.flags = layout::kEntryTriggered;
    entry.payload = test::Bytes({value, 0});
    const layout::SlotControl control = {.trigger = trigger, .threshold = 5};
    const StoredSnapshot made = SnapshotMaker(&pool).Make(slot, &entry, control);
    EXPECT_EQ(made.snapshot->has_values, made.payload != nullptr);
    return made.snapshot->has_values;
  };
  for (const float value : {kInf, -kInf, kNan}) {
    EXPECT_TRUE(keeps(ControlTrigger::kNonfinite, value));
    EXPECT_TRUE(keeps(ControlTrigger::kAbsMax, value));
    EXPECT_EQ(keeps(ControlTrigger::kInf, value), value == value);
  }
  EXPECT_FALSE(keeps(ControlTrigger::kNonfinite, 9));
  EXPECT_FALSE(keeps(ControlTrigger::kAbsMax, 5));
  EXPECT_TRUE(keeps(ControlTrigger::kAbsMax, -6));
}

TEST(SnapshotMaker, ATriggerOnChangesLeavesTheValuesThatDifferFromThoseBefore) {
  const SlotPtr slot = MakeSlot(MakeSession("1"), "x", 1);
  PayloadPool pool(0);
  SnapshotMaker maker(&pool);
  std::vector<StoredSnapshot> made;  // the maker looks at the payload before
  std::vector<bool> keeps;
  for (const float value : {1.0f, 1.0f, 2.0f, 2.0f, 1.0f}) {
    ring::Entry entry;
    entry.flags = layout::kEntryTriggered;
    entry.payload = test::Bytes({value, 0});
    made.push_back(maker.Make(slot, &entry, {.trigger = layout::ControlTrigger::kChanged}));
    keeps.push_back(made.back().snapshot->has_values);
  }
  EXPECT_EQ(keeps, (std::vector<bool>{true, false, true, false, true}));
}

}  // namespace
}  // namespace cgdebug::pipeline
