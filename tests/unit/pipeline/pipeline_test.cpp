#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include <set>
#include <string>
#include <vector>

#include "daemon/model/event_log.h"
#include "daemon/model/registry.h"
#include "daemon/model/slot_names.h"
#include "daemon/model/snapshot_store.h"
#include "daemon/model/text.h"
#include "daemon/record/recorder.h"
#include "tests/support/daemon/model_fixture.h"
#include "tests/support/temp_dir.h"

namespace cgdebug::pipeline {
namespace {

using test::MakeDelivery;
using test::MakeIdentity;
using test::MakeSession;
using test::MakeSlot;
using testing::ElementsAre;

// --- text ----------------------------------------------------------------------------------------

TEST(CleanText, KeepsUtf8AndTakesControlCharactersAway) {
  EXPECT_EQ(CleanText("blk3.mlp μ σ 注 😀"), "blk3.mlp μ σ 注 😀");
  EXPECT_EQ(CleanText("a\x1b[31mb\nc\x7f"), R"(a\x1b[31mb\x0ac\x7f)");
  EXPECT_EQ(CleanText("\xc2\x9b"
                      "31m"),
            R"(\xc2\x9b31m)")
      << "CSI as one C1 character";
  EXPECT_EQ(CleanText("a\nb\x1b", /*keep_newlines=*/true), "a\nb\\x1b");
  EXPECT_EQ(CleanText("a\u202eb\u2066c"), R"(a\xe2\x80\xaeb\xe2\x81\xa6c)");  // right to left
}

TEST(CleanText, ReplacesBytesThatAreNotUtf8OneByOne) {
  EXPECT_EQ(CleanText("a\xff\xc3"), R"(a\xff\xc3)") << "stray byte, cut character";
  EXPECT_EQ(CleanText("\xc0\xaf"), R"(\xc0\xaf)") << "overlong";
  EXPECT_EQ(CleanText("\xed\xa0\x80"), R"(\xed\xa0\x80)") << "surrogate";
  EXPECT_EQ(CleanText("\xf5\x80\x80\x80"), R"(\xf5\x80\x80\x80)") << "beyond Unicode";
}

TEST(CleanText, KeepsTextsApartThatDifferInWhatItReplaces) {
  const std::vector<std::string> texts = {"a\x01", "a\x02", R"(a\x01)", R"(a\x5cx01)",
                                          R"(a\)", "a?",    "a\\\x01"};
  std::set<std::string> clean;
  for (const std::string& text : texts) clean.insert(CleanText(text));
  EXPECT_EQ(clean.size(), texts.size());
  EXPECT_EQ(CleanText(R"(C:\x\new a\x)"), R"(C:\x\new a\x)")
      << "text that is not an escaped byte stays";
}

// --- identity ------------------------------------------------------------------------------------

std::string LabelOf(const std::string& command, const std::string& run_id = "", int rank = -1) {
  layout::SegmentHeader header = {};
  header.pid = 42;
  header.rank = rank;
  std::strncpy(header.command, command.c_str(), sizeof(header.command) - 1);
  std::strncpy(header.run_id, run_id.c_str(), sizeof(header.run_id) - 1);
  return MakeSessionIdentity("cgdebug-0-x", "x", header).label;
}

TEST(SessionIdentity, IsLabelledByRunElseByScriptAndPid) {
  EXPECT_EQ(LabelOf("/usr/bin/python3 -u /src/train.py --lr 1"), "train-42");
  EXPECT_EQ(LabelOf("python -m pkg.main"), "pkg.main-42");
  EXPECT_EQ(LabelOf("python -W ignore -X dev train.py"), "train-42");
  EXPECT_EQ(LabelOf("python"), "python-42");
  EXPECT_EQ(LabelOf("./build/bench 3"), "bench-42");
  EXPECT_EQ(LabelOf(""), "job-42");
  EXPECT_EQ(LabelOf("python train.py", "gpt", 3), "gpt/r3");
}

// --- registry ------------------------------------------------------------------------------------

TEST(Registry, GivesSessionsWithTheSameEightDigitsDifferentKeys) {
  Registry registry;
  const SessionPtr first = registry.AddSession(MakeIdentity("12345678a"));
  const SessionPtr second = registry.AddSession(MakeIdentity("12345678b"));
  EXPECT_EQ(first->key, "12345678");
  EXPECT_EQ(second->key, "12345678b");
}

TEST(Registry, SumsCountersOfSlotsThatWereGivenUpToo) {
  Registry registry;
  const SessionPtr session = registry.AddSession(MakeIdentity("1"));
  const SlotPtr slot = MakeSlot(session, "a", 1);
  const SlotPtr other = MakeSlot(session, "b", 2);
  Counters counters;
  counters.replays = 9;
  counters.produced = 5;
  counters.consumed = 3;
  counters.lost_overwritten = 2;
  registry.SetSlot(slot, counters, 1, false);
  registry.SetSlot(other, counters, 1, false);
  registry.ForgetSlot(slot);
  const SessionRecord record = registry.Sessions().front();
  EXPECT_EQ(record.counters.produced, 10u);
  EXPECT_EQ(record.counters.lost_overwritten, 4u);
  EXPECT_EQ(record.slot_count, 1u);
  EXPECT_EQ(record.replay, 9u);
  EXPECT_EQ(registry.Slots(session).size(), 1u);
}

TEST(Registry, SumsFollowEverySlotAsItComesRetiresAndGoes) {
  Registry registry;
  const SessionPtr session = registry.AddSession(MakeIdentity("1"));
  const auto sums = [&] { return registry.Sessions().front(); };
  const SlotPtr a = MakeSlot(session, "a", 1);
  const SlotPtr b = MakeSlot(session, "b", 2);
  auto same_probe = *MakeSlot(session, "b", 3);
  same_probe.registration.probe_id = b->registration.probe_id;
  const auto c = std::make_shared<const SlotIdentity>(same_probe);
  registry.SetSession(session, {.released_unread = 4});
  for (const SlotPtr& slot : {a, b, SlotPtr(c)}) {
    registry.SetSlot(slot, {.replays = 2, .produced = 2, .consumed = 2, .kept = 2}, 1, false);
  }
  EXPECT_EQ(sums().counters.produced, 10u);
  EXPECT_EQ(sums().counters.lost_released, 4u);
  EXPECT_EQ(sums().probes.all, 2u);
  EXPECT_EQ(sums().slot_count, 3u);
  registry.SetSlot(a, {.replays = 7, .produced = 7, .consumed = 6, .kept = 1}, 1, true);
  registry.SetSession(session, {.released_unread = 5});
  EXPECT_EQ(sums().counters.produced, 16u);
  EXPECT_EQ(sums().counters.kept, 5u);
  EXPECT_EQ(sums().replay, 7u);
  registry.ForgetSlot(b);
  EXPECT_EQ(sums().probes.all, 2u) << "its other slot is there";
  EXPECT_EQ(sums().slot_count, 2u);
  registry.ForgetSlot(c);
  registry.ForgetSlot(a);
  EXPECT_EQ(sums().counters.produced, 16u);
  EXPECT_EQ(sums().replay, 7u);
  EXPECT_EQ(sums().probes.all, 0u);
  EXPECT_EQ(sums().slot_count, 0u);
  EXPECT_TRUE(sums().lanes.empty());
}

TEST(Registry, AProbeOfWhoseValuesNobodyMadeStatisticsStaysUnseenWhenItIsGone) {
  Registry registry;
  const SessionPtr session = registry.AddSession(MakeIdentity("1"));
  const auto unseen = [&](const std::string& name, std::uint64_t order) {
    const SlotPtr slot = MakeSlot(session, name, order);
    registry.SetSlot(slot, {.produced = 1}, 1, false);
    registry.NoteUnseen(slot);
    registry.ForgetSlot(slot);
  };
  registry.SetSlot(MakeSlot(session, "seen", 1), {.produced = 1}, 1, false);
  EXPECT_EQ(registry.Sessions().front().probes.unseen, 0u);
  unseen("a", 2);
  unseen("a", 3);
  unseen("b", 4);
  EXPECT_EQ(registry.Sessions().front().probes.unseen, 2u);
  EXPECT_EQ(registry.Sessions().front().probes.unseen_names, (std::vector<std::string>{"a", "b"}));
  for (std::uint64_t order = 5; order < 17; ++order) unseen(std::to_string(order), order);
  EXPECT_EQ(registry.Sessions().front().probes.unseen, 14u);
  EXPECT_EQ(registry.Sessions().front().probes.unseen_names.size(), kUnseenNames);
}

TEST(Registry, LanesAreCountedByWhyTheyAreNotTheDirectOne) {
  Registry registry;
  const SessionPtr session = registry.AddSession(MakeIdentity("1"));
  SlotIdentity slot = *MakeSlot(session, "a", 1);
  for (std::uint32_t index = 0; index < 3; ++index) {
    slot.index = index;
    const auto lane = index == 0 ? layout::Lane::kDirect : layout::Lane::kCallback;
    const auto reason = index == 0 ? layout::LaneReason::kNone : layout::LaneReason::kNotRegistered;
    slot.registration.lane = static_cast<std::uint8_t>(lane);
    slot.registration.lane_reason = static_cast<std::uint8_t>(reason);
    registry.SetSlot(std::make_shared<const SlotIdentity>(slot), {}, 0, false);
  }
  const auto lanes = registry.Sessions().front().lanes;
  ASSERT_EQ(lanes.size(), 2u);
  EXPECT_EQ(lanes.at({2, 0}), 1u);
  EXPECT_EQ(lanes.at({1, 4}), 2u);
}

TEST(Registry, FirstNonfiniteIsTheEarliestSerialThenTheEarliestRegistration) {
  Registry registry;
  const SessionPtr session = registry.AddSession(MakeIdentity("1"));
  const SlotPtr early = MakeSlot(session, "early", 1);
  const SlotPtr late = MakeSlot(session, "late", 2);
  for (const SlotPtr& slot : {early, late}) registry.SetSlot(slot, {}, 0, false);
  registry.SetFirsts(late, {.nan = {7, -1, 1, 700}, .inf = {7, -1, 1, 700}});
  EXPECT_EQ(registry.Sessions().front().first_nan.slot, late);
  registry.SetFirsts(early, {.nan = {7, -1, 2, 700}});
  EXPECT_EQ(registry.Sessions().front().first_nan.slot, early);
  EXPECT_EQ(registry.Sessions().front().first_nan.seen.count, 2u);
  EXPECT_EQ(registry.Sessions().front().first_inf.slot, late);
  registry.SetFirsts(late, {.nan = {8, -1, 1, 800}});
  EXPECT_EQ(registry.Sessions().front().first_nan.slot, early);
  EXPECT_EQ(registry.Sessions().front().probes.nonfinite, 2u);
}

TEST(Registry, FirstNonfiniteOfTwoGraphsIsNotTheOneWithTheSmallerReplayNumber) {
  Registry registry;
  const SessionPtr session = registry.AddSession(MakeIdentity("1"));
  const SlotPtr often = MakeSlot(session, "often", 1);
  const SlotPtr seldom = MakeSlot(session, "seldom", 2);
  for (const SlotPtr& slot : {often, seldom}) registry.SetSlot(slot, {}, 0, false);
  registry.SetFirsts(seldom, {.nan = {2, -1, 1, 900}});
  registry.SetFirsts(often, {.nan = {50, -1, 1, 800}});
  EXPECT_EQ(registry.Sessions().front().first_nan.slot, often);
  EXPECT_EQ(registry.Slots(session).back().firsts.nan.replay, 2u);
}

TEST(Registry, AGraphsLabelStaysTakenWhenItsSlotsAreForgotten) {
  Registry registry;
  const SessionPtr session = registry.AddSession(MakeIdentity("1"));
  std::vector<SlotPtr> slots;
  for (std::uint32_t i = 1; i <= 3; ++i) {
    SlotIdentity slot = *MakeSlot(session, "a", i);
    slot.registration.graph_id = 10 * i;
    slot.registration.order = i;
    slots.push_back(std::make_shared<const SlotIdentity>(slot));
    registry.SetSlot(slots.back(), {}, 0, false);
  }
  const std::string second = registry.PlaceOf(*slots[1]).graph;
  const std::string third = registry.PlaceOf(*slots[2]).graph;
  registry.ForgetSlot(slots[0]);
  EXPECT_EQ(registry.PlaceOf(*slots[1]).graph, second);
  EXPECT_EQ(registry.PlaceOf(*slots[2]).graph, third);
  EXPECT_NE(second, third);
  EXPECT_EQ(registry.PlaceOf(*slots[1]).qualifier, "@g:" + second);
}

SlotPtr SlotOfGraph(const SessionPtr& session, const std::string& name, std::uint64_t order,
                    std::uint64_t graph_id, std::uint64_t elements = 2) {
  SlotIdentity slot = test::MakeSlotIdentity(session, name, order, elements);
  slot.registration.graph_id = graph_id;
  return std::make_shared<const SlotIdentity>(slot);
}

TEST(Registry, AGraphKeepsItsLabelWhenTheOneThatItWasToldApartFromIsForgotten) {
  Registry registry;
  const SessionPtr session = registry.AddSession(MakeIdentity("1"));
  const SlotPtr first = SlotOfGraph(session, "in", 1, 10);
  const SlotPtr second = SlotOfGraph(session, "in", 2, 20);
  for (const SlotPtr& slot : {first, second, SlotOfGraph(session, "attn", 3, 20, 8)}) {
    registry.SetSlot(slot, {}, 0, false);
  }
  EXPECT_EQ(registry.PlaceOf(*second).graph, "2,attn=8");
  registry.ForgetSlot(first);
  EXPECT_EQ(registry.PlaceOf(*second).graph, "2,attn=8");
  EXPECT_EQ(registry.PlaceOf(*second).qualifier, "") << "the only one of its name that is left";
  EXPECT_EQ(registry.PlaceOf(*first).graph, "2") << "which stays taken";
}

TEST(SlotNames, AreThoseOfAllSlotsAtOnceInWhateverOrderTheyCome) {
  const SessionPtr session = MakeSession("1");
  std::vector<SlotPtr> slots;
  for (std::uint64_t order = 1; order <= 60; ++order) {
    const std::uint64_t graph_id = order % 7;  // eager calls and graphs that are captured together
    slots.push_back(SlotOfGraph(session, "p" + std::to_string(order * 5 % 11), order, graph_id,
                                order % 13 == 0 ? 4 : 2));
  }
  std::vector<GraphSlot> seen;
  SlotNames names;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const SlotPtr& added = slots[i * 17 % slots.size()];
    names.Add(added);
    seen.push_back({.graph_id = added->registration.graph_id,
                    .order = added->registration.order,
                    .probe = added->probe,
                    .shape = added->shape});
    if (i % 3 == 0) continue;
    const GraphLabels labels = NameGraphsOf(seen);
    const std::vector<std::string> qualifiers = SlotQualifiers(seen, labels);
    for (std::size_t k = 0; k <= i; ++k) {
      const SlotIdentity& slot = *slots[k * 17 % slots.size()];
      const std::uint64_t graph_id = slot.registration.graph_id;
      EXPECT_EQ(names.LabelOf(graph_id), graph_id == 0 ? "" : labels.at(graph_id));
      EXPECT_EQ(names.QualifierOf(slot), qualifiers[k]);
    }
  }
}

TEST(SlotNames, OfOneGraphComeAndGoWithoutALookAtTheSlotsOfOthers) {
  constexpr std::uint64_t kGraphs = 20;
  constexpr std::uint64_t kRows = 50;
  const SessionPtr session = MakeSession("1");
  std::vector<SlotPtr> slots;
  SlotNames names;
  for (std::uint64_t i = 0; i < kGraphs * kRows; ++i) {
    slots.push_back(SlotOfGraph(session, "row" + std::to_string(i % kRows), i, 1 + i / kRows));
    names.Add(slots.back());
  }
  EXPECT_EQ(names.QualifierOf(*slots.back()), "@g:2#20");
  const std::uint64_t before = names.looked_at();
  for (std::uint64_t i = 0; i < kRows; ++i) {
    names.Remove(slots[i]);
    EXPECT_EQ(names.QualifierOf(*slots.back()), "@g:2#20");
  }
  EXPECT_EQ(names.looked_at(), before) << "nothing is named anew when slots go";
  EXPECT_EQ(names.LabelOf(1), "2");
  for (std::uint64_t i = 0; i < 10; ++i) {
    const SlotPtr added = SlotOfGraph(session, "new", 100'000 + i, 1000 + i, 3);
    names.Add(added);
    names.Remove(slots[kRows + i]);
    EXPECT_EQ(names.LabelOf(1000 + i), i == 0 ? "3" : "3#" + std::to_string(i + 1));
  }
  EXPECT_LE(names.looked_at() - before, 2 * 10u) << "the new graphs, and the one of that label";
}

TEST(SlotNames, OfOneProbeTakeNoLongerTheMoreThereAre) {
  const SessionPtr session = MakeSession("1");
  const auto cpu_ns = [] {
    timespec now = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1'000'000'000 + now.tv_nsec;
  };
  const auto cost = [&](std::uint64_t count) {  // of a hundred names, at best
    std::vector<SlotPtr> slots;
    SlotNames names;
    for (std::uint64_t i = 1; i <= count; ++i) {
      slots.push_back(SlotOfGraph(session, "row", i, 0, i));
      names.Add(slots.back());
    }
    std::int64_t least = INT64_MAX;
    for (int round = 0; round < 9; ++round) {
      const std::int64_t begin = cpu_ns();
      for (int i = 0; i < 100; ++i) EXPECT_NE(names.QualifierOf(*slots[i]), "");
      least = std::min<std::int64_t>(least, cpu_ns() - begin);
    }
    return least;
  };
  EXPECT_LT(cost(32'000), 8 * cost(1'000));
}

TEST(Registry, IgnoresWhatComesForASessionThatIsForgotten) {
  Registry registry;
  const SessionPtr session = registry.AddSession(MakeIdentity("1"));
  const SlotPtr slot = MakeSlot(session, "a", 1);
  registry.ForgetSession(session);
  registry.SetSlot(slot, {}, 0, false);
  registry.SetLast(MakeDelivery(slot, 1, {1, 2}).snapshot);
  registry.EndSession(session, SessionState::kDied, 1);
  EXPECT_TRUE(registry.Sessions().empty());
  EXPECT_EQ(registry.AliveCount(), 0u);
}

// --- event log -----------------------------------------------------------------------------------

std::vector<std::uint64_t> Replays(const std::vector<EventPtr>& events) {
  std::vector<std::uint64_t> replays;
  for (const EventPtr& event : events) {
    if (const auto* line = std::get_if<PrintLine>(&event->what)) {
      replays.push_back(line->snapshot->replay);
    } else {
      replays.push_back(std::get<SnapshotPtr>(event->what)->replay);
    }
  }
  return replays;
}

TEST(EventLog, ManySnapshotsDoNotPushOutThePrintLog) {
  EventLog log({.snapshots = 3, .notices = 10, .notice_text_bytes = 1000});
  const SlotPtr slot = MakeSlot(MakeSession("1"), "a", 1);
  log.Add(slot->session, PrintLine{MakeDelivery(slot, 1, {1, 1}).snapshot, "line"});
  for (std::uint64_t i = 2; i <= 20; ++i) {
    log.Add(slot->session, MakeDelivery(slot, i, {1, 1}).snapshot);
  }
  EventLog::Cursor end;
  EXPECT_THAT(Replays(log.All(&end)), ElementsAre(1, 18, 19, 20));
}

TEST(EventLog, RowsOfAPageAreOneEventAndEachCountsAsASnapshotThatWasDropped) {
  EventLog log({.snapshots = 10, .rows = 8});
  const SlotPtr slot = MakeSlot(MakeSession("1"), "a", 1);
  EventLog::Cursor cursor;
  EventLog::Missed missed;
  EXPECT_TRUE(log.Read(&cursor, 10, &missed).empty());
  for (std::uint64_t replay = 1; replay <= 5; ++replay) {
    log.Add(slot->session, Rows{{3, MakeDelivery(slot, replay, {1, 1}).snapshot}});
  }
  const std::vector<EventPtr> events = log.Read(&cursor, 10, &missed);
  ASSERT_EQ(events.size(), 2u) << "of three rows each";
  EXPECT_EQ(std::get<Rows>(events.front()->what).snapshots.front()->replay, 4u);
  EXPECT_EQ(missed[slot->session], 9u);
  log.Add(slot->session, MakeDelivery(slot, 6, {1, 1}).snapshot);
  EXPECT_EQ(log.Read(&cursor, 10, &missed).size(), 1u);
  EXPECT_EQ(missed[slot->session], 9u);
}

TEST(EventLog, ReadsInOrderOverSessionsAndCountsExactlyWhatWasDropped) {
  EventLog log({.snapshots = 4, .notices = 4, .notice_text_bytes = 1000});
  const SlotPtr one = MakeSlot(MakeSession("1"), "a", 1);
  const SlotPtr two = MakeSlot(MakeSession("2"), "a", 1);
  EventLog::Cursor cursor;
  EventLog::Missed missed;
  for (std::uint64_t i = 1; i <= 10; ++i) {
    log.Add(one->session, MakeDelivery(one, i, {1, 1}).snapshot);
  }
  log.Add(two->session, MakeDelivery(two, 100, {1, 1}).snapshot);
  EXPECT_THAT(Replays(log.Read(&cursor, 2, &missed)), ElementsAre(7, 8));
  EXPECT_EQ(missed[one->session], 6u);
  EXPECT_FALSE(missed.contains(two->session));
  EXPECT_THAT(Replays(log.Read(&cursor, 100, &missed)), ElementsAre(9, 10, 100));
  EXPECT_TRUE(log.Read(&cursor, 100, &missed).empty());
  EXPECT_EQ(missed[one->session], 6u);
}

TEST(EventLog, BoundsTheTextOfThePrintLog) {
  EventLog log({.snapshots = 4, .notices = 100, .notice_text_bytes = 10});
  const SlotPtr slot = MakeSlot(MakeSession("1"), "a", 1);
  for (std::uint64_t i = 1; i <= 5; ++i) {
    log.Add(slot->session, PrintLine{MakeDelivery(slot, i, {1, 1}).snapshot, "12345"});
  }
  EventLog::Cursor end;
  EXPECT_THAT(Replays(log.All(&end)), ElementsAre(4, 5));
}

TEST(EventLog, WhatComesOfAForgottenSessionIsDropped) {
  EventLog log;
  const SlotPtr slot = MakeSlot(MakeSession("1"), "a", 1);
  log.Add(slot->session, MakeDelivery(slot, 1, {1, 1}).snapshot);
  log.ForgetSession(slot->session);
  log.Add(slot->session, Frozen{slot, 1, "a thread was still at work"});
  EventLog::Cursor end;
  EXPECT_TRUE(log.All(&end).empty());
}

TEST(EventLog, CallsTheListenerOnceForABurst) {
  EventLog log;
  int calls = 0;
  log.SetListener([&] { ++calls; });
  const SlotPtr slot = MakeSlot(MakeSession("1"), "a", 1);
  for (std::uint64_t i = 1; i <= 3; ++i) {
    log.Add(slot->session, MakeDelivery(slot, i, {1, 1}).snapshot);
  }
  EXPECT_EQ(calls, 1);
  EventLog::Cursor cursor;
  EventLog::Missed missed;
  EXPECT_EQ(log.Read(&cursor, 100, &missed).size(), 3u);
  log.Add(slot->session, MakeDelivery(slot, 4, {1, 1}).snapshot);
  EXPECT_EQ(calls, 2);
}

// --- snapshot store ------------------------------------------------------------------------------

void Put(SnapshotStore& store, const SlotPtr& slot, std::uint64_t replay) {
  const Delivery delivery = MakeDelivery(slot, replay, {1, 2});  // 8 bytes
  store.Put(delivery.snapshot, delivery.payload);
}

std::vector<std::pair<std::uint64_t, bool>> Kept(const SnapshotStore& store, const SlotPtr& slot) {
  std::vector<std::pair<std::uint64_t, bool>> kept;
  for (const StoredSnapshot& stored : store.History(slot)) {
    kept.emplace_back(stored.snapshot->replay, stored.payload != nullptr);
  }
  return kept;
}

using Expected = std::vector<std::pair<std::uint64_t, bool>>;

TEST(SnapshotStore, APinnedSnapshotStaysWithTheFewBeforeIt) {
  SnapshotStore store(1 << 20);
  const SlotPtr slot = MakeSlot(MakeSession("1"), "x", 1);  // keeps two
  const auto put = [&](std::uint64_t replay) {
    const Delivery delivery = MakeDelivery(slot, replay, {static_cast<float>(replay), 0});
    store.Put(delivery.snapshot, delivery.payload);
  };
  const auto replays = [&] {
    std::vector<std::uint64_t> all;
    for (const StoredSnapshot& stored : store.History(slot)) {
      all.push_back(stored.snapshot->replay);
      EXPECT_NE(stored.payload, nullptr);
    }
    EXPECT_EQ(store.CountOf(slot), all.size());
    EXPECT_EQ(store.CountOf(slot->session), all.size());
    return all;
  };
  for (const std::uint64_t replay : {1, 2, 3}) put(replay);
  store.Pin(slot, 3);
  store.Pin(slot, 9);  // not there
  EXPECT_THAT(replays(), ElementsAre(2, 3));
  for (const std::uint64_t replay : {4, 5, 6}) put(replay);
  EXPECT_THAT(replays(), ElementsAre(2, 3, 5, 6));
  ASSERT_TRUE(store.Find(slot, 3));
  EXPECT_FALSE(store.Find(slot, 4));
  EXPECT_EQ(store.bytes(), 4 * 2 * sizeof(float));
  store.ForgetSlot(slot);
  EXPECT_THAT(replays(), ElementsAre());
  EXPECT_EQ(store.bytes(), 0u);
}

// A row of an op log, of the calls of a process.
SlotPtr RowOfCalls(const SessionPtr& session, std::uint32_t number) {
  SlotIdentity identity =
      test::MakeSlotIdentity(session, "row" + std::to_string(number), number);  // keeps two
  identity.op = std::to_string(number) + " aten.mul.Tensor";
  identity.registration.flags |= layout::kSlotInBody;
  return std::make_shared<const SlotIdentity>(identity);
}

TEST(SnapshotStore, WithAFindingOfAnOpLogAllRowsOfItsCallStay) {
  SnapshotStore store(1 << 20);
  const SessionPtr session = MakeSession("1");
  const SlotPtr before = RowOfCalls(session, 1), found = RowOfCalls(session, 2),
                behind = RowOfCalls(session, 3), probe = MakeSlot(session, "x", 4);
  const auto put = [&](const SlotPtr& slot, std::uint64_t call) {
    store.Put(MakeDelivery(slot, call, {1, 0}).snapshot, nullptr);
  };
  const auto calls_of = [&](const SlotPtr& slot) {
    std::vector<std::uint64_t> calls;
    for (const StoredSnapshot& one : store.History(slot)) calls.push_back(one.snapshot->replay);
    return calls;
  };
  for (std::uint64_t call = 1; call <= 9; ++call) {
    put(before, call);
    put(found, call);
    if (call == 3) store.PinRunOf(found, 3, 0);
    put(behind, call);  // after the finding, as a row does that reads it
    put(probe, call);
  }
  EXPECT_THAT(calls_of(before), ElementsAre(3, 8, 9));
  EXPECT_THAT(calls_of(found), ElementsAre(3, 8, 9));
  EXPECT_THAT(calls_of(behind), ElementsAre(3, 8, 9));
  EXPECT_THAT(calls_of(probe), ElementsAre(8, 9)) << "it is no row";
  EXPECT_EQ(store.CountOf(session), 3u + 3u + 3u + 2u);
  EXPECT_EQ(store.NotFiniteLetGo(session), 0u);
  for (std::uint64_t call = 10; call < 10 + SnapshotStore::kPinnedRuns + 4; ++call) {
    put(found, call);
    store.PinRunOf(found, call, 0);
    put(behind, call);
  }
  EXPECT_EQ(calls_of(behind).size(), SnapshotStore::kPinnedRuns + 2) << "of the first calls alone";
  EXPECT_EQ(store.NotFiniteLetGo(session), 5u) << "and it is known how many more there were";
  store.PinRunOf(found, 0, 0);
  EXPECT_EQ(store.NotFiniteLetGo(session), 6u) << "which an earlier daemon had";
  store.ForgetSession(session);
  EXPECT_EQ(store.CountOf(session), 0u);
}

TEST(SnapshotStore, PinsAsManyBeforeAFindingAsItSays) {
  SnapshotStore store(1 << 20);
  SlotIdentity identity = test::MakeSlotIdentity(MakeSession("1"), "x", 1);
  identity.registration.capacity = 8;
  const auto slot = std::make_shared<const SlotIdentity>(identity);
  for (std::uint64_t replay = 1; replay <= 20; ++replay) {
    const Delivery delivery = MakeDelivery(slot, replay, {1, 0});
    store.Put(delivery.snapshot, delivery.payload);
    if (replay == 8) store.Pin(slot, 8);
  }
  EXPECT_EQ(store.History(slot).front().snapshot->replay, 8 - SnapshotStore::kPinnedBefore);
  EXPECT_EQ(store.CountOf(slot), 8 + SnapshotStore::kPinnedBefore + 1);
  EXPECT_EQ(store.CountOf(slot->session), store.CountOf(slot));
}

TEST(SnapshotStore, PinsTheValuesThatFitAQuarterOfItsMemoryAndTheStatisticsOfTheRest) {
  const std::uint64_t payload = 2 * sizeof(float);
  SnapshotStore store(4 * payload);
  const SlotPtr slot = MakeSlot(MakeSession("1"), "x", 1);
  for (const std::uint64_t replay : {1, 2}) {
    const Delivery delivery = MakeDelivery(slot, replay, {1, 0});
    store.Put(delivery.snapshot, delivery.payload);
  }
  store.Pin(slot, 2);
  for (const std::uint64_t replay : {3, 4, 5, 6}) {
    const Delivery delivery = MakeDelivery(slot, replay, {1, 0});
    store.Put(delivery.snapshot, delivery.payload);
  }
  ASSERT_TRUE(store.Find(slot, 1));
  ASSERT_TRUE(store.Find(slot, 2));
  EXPECT_EQ(store.Find(slot, 1)->payload, nullptr);
  EXPECT_NE(store.Find(slot, 2)->payload, nullptr) << "the finding itself comes first";
  EXPECT_LE(store.bytes(), 4 * payload);
}

TEST(SnapshotStore, KeepsAsManyOfASlotAsItsRingHas) {
  SnapshotStore store(1000);
  const SlotPtr slot = MakeSlot(MakeSession("1"), "a", 1);
  for (std::uint64_t i = 1; i <= 5; ++i) Put(store, slot, i);
  EXPECT_EQ(Kept(store, slot), (Expected{{4, true}, {5, true}}));
  EXPECT_EQ(store.bytes(), 16u);
}

TEST(SnapshotStore, DropsOlderPayloadsBeforeNewestOnesAndKeepsStatistics) {
  SnapshotStore store(24);
  const SessionPtr session = MakeSession("1");
  const SlotPtr rare = MakeSlot(session, "rare", 1);
  const SlotPtr busy = MakeSlot(session, "busy", 2);
  Put(store, rare, 1);
  for (std::uint64_t i = 1; i <= 9; ++i) Put(store, busy, i);
  EXPECT_EQ(Kept(store, rare), (Expected{{1, true}}));
  EXPECT_EQ(Kept(store, busy), (Expected{{8, true}, {9, true}}));
  const SlotPtr third = MakeSlot(session, "third", 3);
  Put(store, third, 1);
  EXPECT_EQ(Kept(store, busy), (Expected{{8, false}, {9, true}})) << "an older one goes first";
  const SlotPtr fourth = MakeSlot(session, "fourth", 4);
  Put(store, fourth, 1);
  EXPECT_EQ(Kept(store, rare), (Expected{{1, false}})) << "then the oldest of the newest";
  EXPECT_EQ(Kept(store, fourth), (Expected{{1, true}}));
  EXPECT_EQ(store.bytes(), 24u);
  EXPECT_EQ(store.History(rare)[0].snapshot->stats.max, 2);
}

TEST(SnapshotStore, ForgetsSlotsAndSessionsWithTheirBytes) {
  SnapshotStore store(1000);
  const SlotPtr a = MakeSlot(MakeSession("1"), "a", 1);
  const SlotPtr b = MakeSlot(a->session, "b", 2);
  const SlotPtr c = MakeSlot(MakeSession("2"), "c", 1);
  for (const SlotPtr& slot : {a, b, c}) Put(store, slot, 1);
  store.ForgetSlot(a);
  EXPECT_TRUE(store.History(a).empty());
  EXPECT_EQ(store.bytes(), 16u);
  store.ForgetSession(b->session);
  EXPECT_TRUE(store.History(b).empty());
  EXPECT_EQ(store.bytes(), 8u);
  EXPECT_EQ(store.History(c).size(), 1u);
}

// --- recordings ----------------------------------------------------------------------------------

// Its memory was cut off: slots are not closed one by one.
TEST(Recorder, ASessionThatEndedIsNotInRecordingsThatBeginLater) {
  const SessionPtr session = MakeSession("1");
  Recorder recorder({}, {});
  test::FakeFeedback feedback;
  recorder.OpenSlot(MakeSlot(session, "x", 1), feedback);
  recorder.EndSession(session, /*died=*/false);
  const testing_support::TempDir dir;
  RecordRequest request;
  request.directory = dir / "a.cgrec";
  const auto info = recorder.Start(request);
  ASSERT_TRUE(info.ok()) << info.error().message;
  EXPECT_EQ(info->slot_count, 0u);
  EXPECT_TRUE(info->sessions.empty());
}

}  // namespace
}  // namespace cgdebug::pipeline
