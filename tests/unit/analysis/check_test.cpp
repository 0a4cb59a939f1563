// What `check` finds in a source, and that it never says "nothing found" over a gap.
#include "client/analysis/check/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "client/analysis/check/check_report.h"
#include "client/analysis/verify.h"
#include "tests/support/analysis/answer_text.h"
#include "tests/support/analysis/check_fixture.h"

namespace cgdebug::analysis {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_support::CheckOf;
using testing_support::FindingOf;
using testing_support::Healthy;
using testing_support::MemorySource;

TEST(Check, HealthySourceIsCompleteAndHasNoFinding) {
  MemorySource source = Healthy();
  const Check check = CheckOf(source);
  EXPECT_FALSE(check.found());
  EXPECT_TRUE(check.complete());
  EXPECT_EQ(CheckText(source, check),
            "nothing found in 12 snapshots\ncomplete: 3 of 3 probes in replay 4");
}

TEST(Check, NothingFoundInAPartSaysSo) {
  MemorySource source = Healthy();
  source.Slots()[1].part = "first:2 of [64]";
  EXPECT_THAT(CheckText(source, CheckOf(source)),
              HasSubstr("nothing found in 12 snapshots, of 1 of 3 probes in the part alone\n"));
  for (source::Slot& slot : source.Slots()) slot.part = "first:2 of [64]";
  const Check check = CheckOf(source);
  EXPECT_TRUE(check.complete());
  EXPECT_THAT(CheckText(source, check), HasSubstr("nothing found in the part, in 12 snapshots\n"));
  source.Change(1, 2, {1, NAN});
  EXPECT_THAT(CheckText(source, CheckOf(source)),
              HasSubstr("first element: nan at [1] of part first:2 of [64]"));
}

TEST(Check, OfAnEagerProbeWhatDiffersInItsCallsAloneIsOneLine) {
  MemorySource source;
  for (const std::uint64_t call : {1, 2}) {  // with slots of their own, as another row came before
    const std::size_t slot = source.AddSlot("mask", {2});
    source.Slots()[slot].op = std::to_string(call) + " input";
    source.Slots()[slot].in_body = true;
    source.Slots()[slot].graph_id = 0;
    source.Add(slot, call, {-INFINITY, 0});
    source.Add(slot, call + 2, {-INFINITY, 0});
  }
  const std::string text = CheckText(source, CheckOf(source));
  EXPECT_THAT(text, HasSubstr("in 4 of calls 1..4: a mask?\n"));
  EXPECT_EQ(text.find("a mask?"), text.rfind("a mask?")) << text;
}

TEST(Check, NamesTheFirstNonfiniteInReplayThenGraphOrderAndWhatLedToIt) {
  MemorySource source = Healthy();
  source.Change(1, 2, {100, 1});
  source.Change(1, 3, {1000, 1});
  source.Change(1, 4, {INFINITY, 1});
  source.Change(2, 4, {NAN, 1});
  const Check check = CheckOf(source);
  ASSERT_TRUE(check.first.has_value());
  EXPECT_TRUE(check.found());
  EXPECT_EQ(check.first->slot, 1u);
  EXPECT_EQ(check.first->place, 2u);
  EXPECT_EQ(check.first->place_count, 3u);
  ASSERT_EQ(check.first->frames.size(), 11u) << "two of replay 4, and the three before it";
  EXPECT_EQ(check.first->frames[9].slot, 0u);
  EXPECT_EQ(check.first->frames[8].key.replay, 3u);
  ASSERT_EQ(check.first->earlier.size(), 3u);
  EXPECT_NEAR(check.first->growth, std::sqrt(1000.0), 1e-9);
  const std::string text = CheckText(source, check);
  EXPECT_THAT(text, HasSubstr("first non-finite: replay 4 (step 104), mid (probe 2 of 3 in graph "
                              "order)"));
  EXPECT_THAT(text, HasSubstr("1 +Inf of 2   <-- here"));
  EXPECT_THAT(text, HasSubstr("growing 32x per replay; f32 max is 3.4e+38"));
  EXPECT_THAT(text, HasSubstr("complete: 3 of 3 probes in replay 4"));
  EXPECT_EQ(CheckJson(source, check)["first_nonfinite"]["probe"], "mid");
}

// Counts how often a check looks at the slots and at the gaps.
class CountingSource : public MemorySource {
 public:
  const std::vector<source::Slot>& slots() const override {
    ++looks_;
    return MemorySource::slots();
  }
  std::vector<source::Gap> Gaps() override {
    looks_ += gaps.size();
    return MemorySource::Gaps();
  }
  std::size_t looks() const { return looks_; }

 private:
  mutable std::size_t looks_ = 0;
};

// Eager calls that are all the same, rows of a graph whose newest replay is lost, and findings of
// every slot.
std::size_t LooksAt(std::size_t count) {
  CountingSource source;
  for (std::size_t i = 0; i < 2 * count; ++i) {
    const bool is_eager = i % 2 == 0;
    const std::size_t slot = source.AddSlot("row" + std::to_string(i), {1});
    source.Slots()[slot].graph_id = is_eager ? 0 : 1;
    const bool is_absent = i > 1 && i % 4 < 2;
    for (std::uint64_t replay = 1; replay <= (is_absent ? 1 : 2); ++replay) {
      source.Add(slot, replay, {0});
    }
    recording::Account account;
    account.kept = is_absent ? 1 : 2;
    account.produced = 2;
    if (is_absent) {
      source.gaps.push_back({slot, 1, 1, 0, "overwritten"});
      account.lost["overwritten"] = 1;
    }
    source.accounts[slot] = account;
    source.findings.push_back({.slot = slot, .kind = layout::FindingKind::kNan, .replay = 9});
  }
  const Check check = CheckOf(source);
  EXPECT_EQ(check.slots, 2 * count);
  EXPECT_FALSE(check.complete());
  return source.looks();
}

TEST(Check, TheWorkGrowsWithTheSlotsAndNotWithTheirSquare) {
  const std::size_t few = LooksAt(100);
  EXPECT_LT(LooksAt(400), 5 * few);
}

// Eager calls of a probe with two shapes after a layer each; [1] is bad at replay 3, before [2]
// at 1.
MemorySource TwoShapes() {
  MemorySource source;
  for (const char* name : {"layer", "x"}) {
    for (const std::uint64_t size : {1, 2}) {
      const std::size_t slot = source.AddSlot(name, {size});
      source.Slots()[slot].graph_id = 0;
      source.Slots()[slot].qualifier = ShapeSelector(std::vector<std::uint64_t>{size});
    }
  }
  std::uint64_t serial = 0;
  const auto call = [&](std::size_t slot, std::uint64_t replay, std::vector<float> values) {
    source.Add(slot, replay, values);
    source.serials[{slot, replay}] = ++serial;
  };
  for (const std::uint64_t replay : {1, 2, 3}) {
    call(0, replay, {static_cast<float>(replay)});
    call(2, replay, {replay == 3 ? NAN : 1.0f});
  }
  call(1, 1, {1, 2});
  call(3, 1, {NAN, 1});
  return source;
}

// So they lie in a recording: in another order each of them costs a read of the file.
TEST(Check, ReadsTheSnapshotsInTheOrderInWhichTheyCame) {
  class Source : public MemorySource {
   public:
    Result<source::Snapshot> Get(std::size_t slot, const source::Key& key) override {
      read.emplace_back(key.replay, slot);
      return MemorySource::Get(slot, key);
    }
    std::vector<std::pair<std::uint64_t, std::size_t>> read;
  };
  Source source;
  for (const char* name : {"a", "b", "c"}) source.AddSlot(name, {2});
  for (std::uint64_t replay = 1; replay <= 4; ++replay) {
    for (std::size_t slot = 0; slot < 3; ++slot) source.Add(slot, replay, {1, 2});
  }
  ASSERT_TRUE(RunCheck(source, {}).ok());
  ASSERT_EQ(source.read.size(), 12u);
  EXPECT_TRUE(std::ranges::is_sorted(source.read));
}

TEST(Check, NanInManyProbesIsOneLineUnlessRowsAreAskedFor) {
  MemorySource source;
  for (int i = 0; i < 12; ++i) source.AddSlot("p" + std::to_string(i), {1});
  for (std::uint64_t replay = 1; replay <= 4; ++replay) {
    for (std::size_t slot = 0; slot < 12; ++slot) {
      source.Add(slot, replay, {slot < 9 && replay > 2 ? NAN : 1.0F + static_cast<float>(replay)});
    }
  }
  const Check check = CheckOf(source);
  const std::string text = CheckText(source, check);
  EXPECT_THAT(text, HasSubstr("\nnon-finite: 9 probes in replays 3..4, the first: p0, p1, p2 "
                              "(each: --max-rows 9)\n"));
  EXPECT_THAT(text, Not(HasSubstr("non-finite: p")));
  EXPECT_EQ(CheckAnswer(source, check).title(),
            "first non-finite: replay 3, p0 (probe 1 of 12 in graph order)");
  const std::string every = CheckAnswer(source, check, 9).Text();
  for (int i = 0; i < 9; ++i) {
    EXPECT_THAT(every, HasSubstr("non-finite: p" + std::to_string(i) + ", 2 of replays 3..4"));
  }
}

TEST(Check, WhatLedToACallIsReadFromTheCallsBeforeItAlone) {
  class Source : public MemorySource {
   public:
    Result<source::Snapshot> Get(std::size_t slot, const source::Key& key) override {
      ++reads_of[key.replay];
      return MemorySource::Get(slot, key);
    }
    std::map<std::uint64_t, int> reads_of;
  };
  Source source;
  for (const char* name : {"a", "b"}) {
    for (const std::uint64_t size : {1, 2}) source.AddSlot(name, {size});
  }
  for (source::Slot& slot : source.Slots()) {
    slot.graph_id = 0;
    slot.in_body = true;
  }
  for (std::uint64_t call = 1; call <= 40; ++call) {
    for (const std::size_t slot : {std::size_t{call % 2}, std::size_t{call % 2 + 2}}) {
      const float value = call == 30 ? NAN : 1.0F + static_cast<float>(call);
      source.Add(slot, call, std::vector<float>(source.slots()[slot].shape[0], value));
      source.serials[{slot, call}] = 10 * call + slot;
    }
  }
  const Result<Check> check = RunCheck(source, {.scope = {}, .frames = 4});
  ASSERT_TRUE(check.ok());
  ASSERT_TRUE(check->first.has_value());
  ASSERT_EQ(check->first->frames.size(), 4u);
  EXPECT_EQ(check->first->frames.front().key.replay, 28u);
  for (std::uint64_t call = 1; call <= 40; ++call) {
    if (call >= 24 && call <= 30) continue;  // the first, and the three before it of its probe
    EXPECT_EQ(source.reads_of[call], 2) << "once each, to look for NaN: call " << call;
  }
}

TEST(Check, TheFirstOfTwoShapesIsTheEarlierAndNotTheOneWithTheSmallerReplay) {
  MemorySource source = TwoShapes();
  const Check check = CheckOf(source);
  ASSERT_TRUE(check.first.has_value());
  EXPECT_EQ(check.first->slot, 2u);
  EXPECT_EQ(check.first->snapshot.key.replay, 3u);
  const std::string text = CheckText(source, check);
  EXPECT_THAT(text, AllOf(HasSubstr("replay 3, x{1}"), HasSubstr("non-finite: x{2}, replay 1")));
}

TEST(Check, FramesOfSeveralShapesAreInTheOrderOfTime) {
  MemorySource source = TwoShapes();
  source.Change(2, 3, {1});
  const Check check = CheckOf(source);
  ASSERT_TRUE(check.first.has_value());
  EXPECT_EQ(check.first->slot, 3u);
  std::vector<std::size_t> slots;
  for (const Frame& frame : check.first->frames) slots.push_back(frame.slot);
  EXPECT_THAT(slots, ::testing::ElementsAre(0, 2, 0, 2, 0, 2, 1, 3));
}

TEST(Check, SaysThatTheRangeIsWhyNothingWasChecked) {
  MemorySource source = Healthy();
  CheckOptions options;
  options.scope.first_replay = 100;
  options.scope.last_replay = 200;
  const Check check = CheckOf(source, options);
  EXPECT_FALSE(check.complete());
  EXPECT_EQ(CheckText(source, check),
            "inconclusive: nothing was checked\n"
            "missing: memory has no snapshot in replays 100..200, it has some in 1..4. Type for "
            "example: --replays 1..4");
  EXPECT_EQ(CheckJson(source, check)["missing"].size(), 1u);
}

TEST(Check, FramesAreTheLastOnes) {
  MemorySource source = Healthy(1);
  source.Change(2, 1, {NAN, 1});
  CheckOptions options;
  options.frames = 2;
  const Check check = CheckOf(source, options);
  ASSERT_EQ(check.first->frames.size(), 2u);
  EXPECT_EQ(check.first->frames[0].slot, 1u);
}

TEST(Check, SaysWhatIsMissingInsteadOfNothingFound) {
  MemorySource source = Healthy();
  source.Remove(1, 4);
  const Check check = CheckOf(source);
  EXPECT_FALSE(check.found());
  EXPECT_FALSE(check.complete());
  EXPECT_THAT(CheckText(source, check), HasSubstr("incomplete: 2 of 3 probes in replay 4\n"
                                                  "missing: replay 4 has no snapshot of mid"));
  MemorySource lossy = Healthy();
  lossy.gaps.push_back({1, 3, 1, 2, "overwritten"});
  EXPECT_FALSE(CheckOf(lossy).complete());
  MemorySource cut = Healthy();
  cut.description.is_cut_off = true;
  EXPECT_FALSE(CheckOf(cut).complete());
  MemorySource empty;
  EXPECT_FALSE(CheckOf(empty).complete());
  MemorySource damaged = Healthy();
  damaged.has_stats = false;
  damaged.damaged.insert(0);
  EXPECT_FALSE(CheckOf(damaged).complete());
}

TEST(Check, LooksAtEveryGraphOfEveryRank) {
  MemorySource source;
  for (const int rank : {0, 1}) {
    for (const std::string probe : {"a", "b", "c"}) {
      const std::size_t slot = source.AddSlot(probe, {1});
      source.Slots()[slot].rank = rank;
      const bool is_killed = rank == 1 && probe != "a";
      for (std::uint64_t replay = 1; replay <= (is_killed ? 3 : 4); ++replay) {
        source.Add(slot, replay, {static_cast<float>(replay)});
      }
    }
  }
  const Check check = CheckOf(source);
  EXPECT_FALSE(check.complete());
  EXPECT_THAT(CheckText(source, check),
              AllOf(HasSubstr("incomplete: 1 of 3 probes in replay 4"),
                    HasSubstr("missing: rank 1: replay 4 has no snapshot of b, c")));
}

TEST(Check, WhatNobodySawIsMissing) {
  MemorySource source = Healthy();
  source.description.not_seen = {{{}, {.count = 2, .of = 5, .calls = 9, .reason = "no room"}}};
  const Check check = CheckOf(source);
  EXPECT_FALSE(check.complete());
  EXPECT_THAT(CheckText(source, check),
              AllOf(HasSubstr("inconclusive"),
                    HasSubstr("missing: 2 of 5 probes are not watched (9 calls): no room")));
}

TEST(Check, WhatIsGoneIsMissingOnlyFromAnswersAboutProbesThatWereThereBefore) {
  MemorySource source = Healthy();
  source.description.not_seen = {{{}, {.count = 2, .of = 5, .calls = 9, .reason = "no room"}}};
  layout::NotSeen& what = source.description.not_seen[0].what;
  what.gone = {.count = 2, .of = 2, .calls = 9, .order = 0};  // before the first probe came
  EXPECT_TRUE(CheckOf(source).complete());
  what.gone.order = source.slots().front().order;
  EXPECT_FALSE(CheckOf(source).complete());
  what.gone = {.count = 1, .of = 1, .calls = 4, .order = 0};
  const Check check = CheckOf(source);
  EXPECT_FALSE(check.complete());
  EXPECT_THAT(CheckText(source, check),
              HasSubstr("missing: 1 of 4 probes is not watched (5 calls): no room"));
}

TEST(Check, ValuesThatDoNotMatchTheirHashAreMissingAndNotFoundToBeGood) {
  MemorySource source = Healthy();
  source.damaged.insert(1);
  const Check check = CheckOf(source);
  EXPECT_FALSE(check.found());
  EXPECT_EQ(check.missing_count, 4u);
  EXPECT_THAT(CheckText(source, check),
              AllOf(HasSubstr("inconclusive: nothing found in 12 snapshots, but some are missing"),
                    HasSubstr("missing: mid@1: the values are damaged")));
  CheckOptions trusting;
  trusting.trusts_hashes = true;
  const Result<Check> unread = RunCheck(source, trusting);
  EXPECT_TRUE(unread->complete());
  EXPECT_THAT(CheckText(source, *unread),
              HasSubstr("nothing found in 12 snapshots (by their statistics; values not read)"));
}

// Several threads share the snapshots, and none is left out.
TEST(Verify, LooksAtEachOfThemWhateverTheirNumber) {
  MemorySource source = Healthy(1);
  source.damaged = {1};
  for (std::size_t count = 1; count <= 70; ++count) {
    std::vector<SnapshotName> snapshots(count, {.slot = 0, .key = {1, 1}});
    snapshots.back().slot = 1;
    const auto damaged = FindDamaged(source, snapshots);
    ASSERT_EQ(damaged.size(), 1u) << count;
    EXPECT_EQ(damaged[0].place, count - 1);
  }
}

TEST(Check, ExpectsNoReplayOfAProbeThatWantsOneInThree) {
  MemorySource source = Healthy();  // replays 1 to 4 of three probes
  for (int replay = 5; replay <= 8; ++replay) {
    for (const std::size_t slot : {0, 1, 2}) source.Add(slot, replay, {1.F * replay, 2});
  }
  const std::size_t third = source.AddSlot("third", {1});
  for (const int replay : {1, 4, 7}) source.Add(third, replay, {1.F * replay});
  const Check check = CheckOf(source);
  EXPECT_TRUE(check.complete());
  EXPECT_THAT(CheckText(source, check), HasSubstr("complete: 3 of 3 probes in replay 8"));
  source.Remove(1, 8);  // of every replay, so that the last one ought to be there
  EXPECT_THAT(CheckText(source, CheckOf(source)),
              HasSubstr("incomplete: 2 of 3 probes in replay 8\nmissing: replay 8 has no"));
  MemorySource lossy = Healthy();
  lossy.Remove(1, 2);  // lost, which makes it no probe of one replay in two
  lossy.gaps.push_back({1, 1, 1, 3, "overwritten"});
  lossy.Remove(1, 4);
  EXPECT_THAT(CheckText(lossy, CheckOf(lossy)), HasSubstr("incomplete: 2 of 3 probes in replay 4"));
  for (const std::size_t slot : {0, 1, 2}) source.Add(slot, 10, {NAN, 2});
  EXPECT_THAT(CheckText(source, CheckOf(source)), HasSubstr("replay 10 has no snapshot of third"));
}

TEST(Check, TellsStaleFromConstant) {
  MemorySource source = Healthy();
  source.Change(2, 3, {2, 2});  // as in replay 2
  source.Change(1, 1, {7, 7});
  source.Change(1, 2, {7, 7});
  source.Change(1, 3, {7, 7});
  source.Change(1, 4, {7, 7});
  const Check check = CheckOf(source);
  ASSERT_NE(FindingOf(check, FindingKind::kStale), nullptr);
  EXPECT_EQ(FindingOf(check, FindingKind::kStale)->slot, 2u);
  EXPECT_EQ(FindingOf(check, FindingKind::kStale)->first_replay, 3u);
  ASSERT_NE(FindingOf(check, FindingKind::kConstant), nullptr);
  EXPECT_EQ(FindingOf(check, FindingKind::kConstant)->slot, 1u);
  EXPECT_TRUE(check.found());
  EXPECT_THAT(CheckText(source, check), HasSubstr("stale: out did not change in replay 3"));
  source.has_hashes = false;  // then by the values
  EXPECT_NE(FindingOf(CheckOf(source), FindingKind::kStale), nullptr);
}

TEST(Check, UnchangedWithUnchangedInputsIsNotStale) {
  MemorySource source = Healthy();
  for (const std::size_t slot : {0, 1, 2}) source.Change(slot, 3, {2, static_cast<float>(slot)});
  EXPECT_EQ(FindingOf(CheckOf(source), FindingKind::kStale), nullptr);
}

TEST(Check, WhatAnOpClampsIsNotNearOverflow) {
  for (const char* reader : {"aten.clamp.default", "aten.mul.Tensor"}) {
    MemorySource source;
    for (const std::string& op :
         {std::string("1 aten._to_copy.default"), "2 " + std::string(reader) + " 1"}) {
      const std::size_t row = source.AddSlot("row" + op.substr(0, 1), {1}, layout::Dtype::kFloat16);
      source.Slots()[row].op = op;
      const std::uint16_t large = 0x7900;  // 40960
      std::vector<std::byte> bytes(2);
      std::memcpy(bytes.data(), &large, 2);
      for (const std::uint64_t replay : {1, 2}) source.AddBytes(row, replay, bytes);
    }
    const Check check = CheckOf(source);
    const bool is_clamped = std::string_view(reader) == "aten.clamp.default";
    EXPECT_EQ(FindingOf(check, FindingKind::kNearOverflow) == nullptr, is_clamped) << reader;
    EXPECT_EQ(check.found(), !is_clamped) << reader;
  }
}

TEST(Check, FindsNeverWrittenNearOverflowAndZero) {
  MemorySource source = Healthy();
  source.AddSlot("never", {2});
  const std::size_t half = source.AddSlot("half", {2}, layout::Dtype::kFloat16);
  const std::size_t zero = source.AddSlot("zero", {1});
  for (const std::uint64_t replay : {1, 2, 3, 4}) {
    const std::uint16_t large = replay == 4 ? 0x7900 : 0x3c00;  // 40960 and 1
    std::vector<std::byte> bytes(4);
    std::memcpy(bytes.data(), &large, 2);
    bytes[2] = static_cast<std::byte>(replay);
    source.AddBytes(half, replay, bytes);
    source.Add(zero, replay, {0});
  }
  const Check check = CheckOf(source);
  EXPECT_TRUE(check.found());
  ASSERT_NE(FindingOf(check, FindingKind::kNeverWritten), nullptr);
  EXPECT_EQ(FindingOf(check, FindingKind::kNeverWritten)->slot, 3u);
  ASSERT_NE(FindingOf(check, FindingKind::kNearOverflow), nullptr);
  EXPECT_EQ(FindingOf(check, FindingKind::kNearOverflow)->first_replay, 4u);
  ASSERT_NE(FindingOf(check, FindingKind::kZero), nullptr);
  EXPECT_THAT(CheckText(source, check),
              AllOf(HasSubstr("near overflow: half, up to 62% of float16 max, replay 4"),
                    HasSubstr("never written: never"), HasSubstr("note: zero is all zeros")));
}

TEST(Check, TheLowestNumberOfItsTypeIsAMaskAndNoOverflow) {
  constexpr float kMax = std::numeric_limits<float>::max();
  MemorySource source;
  source.Add(source.AddSlot("scores", {2}), 1, {-kMax, 3});
  source.Add(source.AddSlot("largest", {2}), 1, {kMax, 3});
  source.Add(source.AddSlot("low", {2}), 1, {-0.9F * kMax, 3});
  const Check check = CheckOf(source);
  ASSERT_NE(FindingOf(check, FindingKind::kLargest), nullptr);
  EXPECT_THAT(
      CheckText(source, check),
      AllOf(HasSubstr("note: scores holds the largest float32 there is, in replay 1: a mask?"),
            HasSubstr("near overflow: largest"), HasSubstr("near overflow: low")));
}

TEST(Check, TheLowestBfloat16InFloat32IsAMaskAndNoOverflow) {
  constexpr float kMax = 0x1.FEp127F;
  MemorySource source;
  source.Add(source.AddSlot("scores", {2}), 1, {-kMax, 3});
  EXPECT_FALSE(CheckOf(source).found());
  EXPECT_THAT(CheckText(source, CheckOf(source)),
              HasSubstr("note: scores holds the largest bfloat16 there is, in replay 1: a mask?"));
  source.Add(source.AddSlot("largest", {2}), 1, {-kMax, kMax});
  source.Add(source.AddSlot("low", {2}), 1, {-0.99F * kMax, 3});
  EXPECT_THAT(CheckText(source, CheckOf(source)),
              AllOf(HasSubstr("near overflow: largest"), HasSubstr("near overflow: low")));
}

TEST(Check, AProbeWithASnapshotThatIsNotZeroInAnotherShapeIsNotAllZeros) {
  MemorySource source;
  const std::size_t one = source.AddSlot("ids", {1});
  const std::size_t two = source.AddSlot("ids", {2});
  source.Add(one, 1, {0});
  source.Add(two, 2, {0, 0});
  EXPECT_NE(FindingOf(CheckOf(source), FindingKind::kZero), nullptr);
  source.Add(two, 3, {0, 1});
  EXPECT_EQ(FindingOf(CheckOf(source), FindingKind::kZero), nullptr);
}

TEST(Check, ZerosOfAnOpThatMakesZerosAreNoNote) {
  MemorySource source;
  source.Add(source.AddSlot("opt/zeros_like_0", {2}), 1, {0, 0});
  EXPECT_NE(FindingOf(CheckOf(source), FindingKind::kZero), nullptr);
  source.Slots()[0].op = "1 aten.zeros_like.default";
  EXPECT_EQ(FindingOf(CheckOf(source), FindingKind::kZero), nullptr);
}

TEST(Check, FlagsThatAreNeverSetAreNoNote) {
  MemorySource source;
  const std::vector<std::byte> never(2);
  source.AddBytes(source.AddSlot("fwd/lt_0", {2}, layout::Dtype::kBool), 1, never);
  EXPECT_NE(FindingOf(CheckOf(source), FindingKind::kZero), nullptr) << "not of an op";
  source.Slots()[0].op = "1 aten.lt.Tensor";
  EXPECT_EQ(FindingOf(CheckOf(source), FindingKind::kZero), nullptr);
}

TEST(Check, EverySnapshotThatCouldNotBeReadIsCounted) {
  MemorySource source = Healthy();
  source.gone = {{1, 2}, {1, 3}};
  EXPECT_EQ(CheckOf(source).missing_count, 2u);
  source.has_stats = false;
  source.damaged.insert(0);
  EXPECT_EQ(CheckOf(source).missing_count, 6u);
}

TEST(Check, WithoutValuesAndHashesItIsUnknownWhatChanged) {
  MemorySource source = Healthy();
  source.Change(2, 3, {2, 2});  // as in replay 2
  source.has_hashes = false;
  source.DropValues(2, 3);
  EXPECT_EQ(FindingOf(CheckOf(source), FindingKind::kStale), nullptr);
}

TEST(Check, NanThatStaysNanIsReportedOnce) {
  MemorySource source = Healthy();
  for (const std::uint64_t replay : {3, 4}) source.Change(2, replay, {NAN, 2});
  const Check check = CheckOf(source);
  EXPECT_NE(FindingOf(check, FindingKind::kNonfinite), nullptr);
  EXPECT_EQ(FindingOf(check, FindingKind::kStale), nullptr);
}

TEST(Check, AProbeWhoseSnapshotsWereLostWasWritten) {
  MemorySource source = Healthy();
  source.gaps.push_back({source.AddSlot("lost", {2}), 4, 0, 0, "overwritten"});
  const Check check = CheckOf(source);
  EXPECT_EQ(FindingOf(check, FindingKind::kNeverWritten), nullptr);
  EXPECT_FALSE(check.complete());
}

TEST(Check, AProbeOfEveryThirdReplayIsExpectedInNoOther) {
  MemorySource source = Healthy(5);
  source.Slots()[1].every = 3;
  for (const std::uint64_t replay : {2, 3, 5}) source.Remove(1, replay);
  const Check check = CheckOf(source);
  EXPECT_TRUE(check.complete());
  EXPECT_EQ(check.presence.expected, 2u);
  source.Remove(1, 4);
  CheckOptions options;
  options.scope.last_replay = 4;
  EXPECT_FALSE(CheckOf(source, options).complete());
}

TEST(Check, TheNewestReplayOfARunningJobIsNotMissing) {
  MemorySource source = Healthy();
  source.Remove(2, 4);
  source.description.is_growing = true;
  const Check check = CheckOf(source);
  EXPECT_EQ(check.presence.replay, 3u);
  EXPECT_EQ(check.presence.present, check.presence.expected);
  EXPECT_TRUE(check.complete()) << "nothing is missing so far";
  EXPECT_EQ(CheckText(source, check),
            "nothing found up to replay 4, in 11 snapshots\n"
            "complete: 3 of 3 probes in replay 3\n"
            "more will come: the job goes on");
}

TEST(Check, TheCallOfTheFirstBadProbeIsShownAlsoBesideALargerGraph) {
  MemorySource source = Healthy();
  source.AddSlot("warm_up", {2});
  source.Slots()[3].graph_id = 0;
  source.Add(3, 1, {NAN, 1}, 50);
  const Check check = CheckOf(source);
  ASSERT_TRUE(check.first.has_value());
  EXPECT_EQ(check.first->slot, 3u);
  EXPECT_EQ(check.presence.replay, 1u);
  EXPECT_EQ(check.presence.present, 1u);
  EXPECT_EQ(check.presence.expected, 1u);
}

TEST(Check, EagerCallsOfSeveralShapesAreNotExpectedInOneReplay) {
  MemorySource source = Healthy();
  source.AddSlot("out", {3});
  for (source::Slot& slot : source.Slots()) slot.graph_id = 0;
  source.Add(3, 1, {1, 2, 3});
  const Check check = CheckOf(source);
  EXPECT_TRUE(check.complete());
  EXPECT_EQ(check.presence.expected, 2u) << "in and mid";
}

TEST(Check, SaysSomethingOfAFindingInAProbeOfSeveralShapesWithNothingMissing) {
  MemorySource source;
  for (const std::uint64_t size : {1, 2}) source.AddSlot("v", {size});
  for (source::Slot& slot : source.Slots()) slot.graph_id = 0;
  source.Add(0, 1, {NAN});
  source.Add(1, 1, {1, 2});
  const Check check = CheckOf(source);
  EXPECT_TRUE(check.found());
  EXPECT_EQ(check.presence.expected, 0u) << "no replay is common to two shapes";
  EXPECT_THAT(CheckText(source, check),
              HasSubstr("non-finite: v, replay 1\ncomplete: 2 snapshots"));
}

// v[8] is called three times, then v[64] three times; each counts its own calls.
MemorySource TwoShapesInTurn() {
  MemorySource source;
  for (const std::uint64_t size : {1, 2}) source.AddSlot("v", {size});
  source.AddSlot("w", {1});
  for (source::Slot& slot : source.Slots()) slot.graph_id = 0;
  source.has_hashes = true;
  return source;
}

// A row that an earlier call had keeps its slot, so its order is lower than that of a row with
// another shape, which comes before it in this call.
TEST(Check, TheFirstOfACallIsThatWhoseRowComesFirstHoweverEarlyAnotherWasRegistered) {
  MemorySource source;
  const std::size_t late = source.AddSlot("opt/sqrt_0", {1});
  const std::size_t early = source.AddSlot("fwd/mul_0", {2});
  source.Slots()[late].op = "386 aten.sqrt.default 385";
  source.Slots()[early].op = "49 aten.mul.Tensor 48";
  for (source::Slot& slot : source.Slots()) {
    slot.graph_id = 0;
    slot.in_body = true;
  }
  source.Add(late, 1, {1});
  source.Add(late, 2, {NAN});
  source.Add(early, 2, {NAN, 1});
  source.serials = {{{late, 1}, 10}, {{late, 2}, 20}, {{early, 2}, 20}};
  const Check check = CheckOf(source);
  ASSERT_TRUE(check.first.has_value());
  EXPECT_EQ(check.first->slot, early);
  EXPECT_THAT(CheckText(source, check), HasSubstr("first non-finite: call 2, fwd/mul_0"));
}

TEST(Check, EagerCallsOfAnotherTimeMakeNothingStale) {
  MemorySource source = TwoShapesInTurn();
  for (std::uint64_t replay = 1; replay <= 3; ++replay) {
    source.Add(0, replay, {static_cast<float>(replay)});
    source.serials[{0, replay}] = replay;
    source.Add(2, replay, {7});
    source.serials[{2, replay}] = 10 + replay;
  }
  const Check check = CheckOf(source);
  EXPECT_EQ(FindingOf(check, FindingKind::kStale), nullptr);
  EXPECT_EQ(FindingOf(check, FindingKind::kConstant), nullptr);
}

TEST(Check, AnEagerCallIsConstantWhereAnEarlierProbeChangedSinceTheCallBefore) {
  MemorySource source = TwoShapesInTurn();
  for (std::uint64_t replay = 1; replay <= 3; ++replay) {
    source.Add(0, replay + 40, {static_cast<float>(replay)});  // its own count
    source.serials[{0, replay + 40}] = 10 * replay;
    source.Add(2, replay, {7});
    source.serials[{2, replay}] = 10 * replay + 1;
  }
  const Check check = CheckOf(source);
  ASSERT_NE(FindingOf(check, FindingKind::kConstant), nullptr);
  EXPECT_EQ(FindingOf(check, FindingKind::kConstant)->slot, 2u);
  EXPECT_EQ(FindingOf(check, FindingKind::kConstant)->first_replay, 2u);
}

TEST(Check, OneShapeOfAProbeDoesNotMakeAnotherStale) {
  MemorySource source = TwoShapesInTurn();
  for (std::uint64_t replay = 1; replay <= 3; ++replay) {
    source.Add(0, replay, {static_cast<float>(replay)});
    source.serials[{0, replay}] = 10 * replay;
    source.Add(1, replay, {7, 8});
    source.serials[{1, replay}] = 10 * replay + 1;
  }
  EXPECT_EQ(FindingOf(CheckOf(source), FindingKind::kConstant), nullptr);
}

TEST(Check, AShapeThatDidNotComeAgainIsNotMissing) {
  MemorySource source = TwoShapesInTurn();
  source.Add(0, 9, {1});
  source.serials[{0, 9}] = 1;
  source.Add(2, 9, {1});
  source.serials[{2, 9}] = 2;
  EXPECT_EQ(FindingOf(CheckOf(source), FindingKind::kNeverWritten), nullptr);
}

TEST(Check, TakesTheWordOfTheSourceThatNothingChanged) {
  MemorySource source = Healthy();
  source.has_hashes = false;
  source.has_xor_hash = false;
  for (const std::size_t slot : {0, 1, 2}) source.damaged.insert(slot);  // no values to look at
  EXPECT_EQ(FindingOf(CheckOf(source), FindingKind::kConstant), nullptr);
  source.has_xor_hash = true;  // the inputs are known to change now
  source.is_same_as_before.insert({1, 3});
  ASSERT_NE(FindingOf(CheckOf(source), FindingKind::kStale), nullptr);
  EXPECT_EQ(FindingOf(CheckOf(source), FindingKind::kStale)->slot, 1u);
}

TEST(Check, OnlyAProbeThatIsAlwaysZeroIsReportedAsZero) {
  MemorySource source = Healthy();
  source.Change(1, 2, {0, 0});
  EXPECT_EQ(FindingOf(CheckOf(source), FindingKind::kZero), nullptr);
}

TEST(Check, LooksOnlyWhereItIsTold) {
  MemorySource source = Healthy();
  source.Change(1, 4, {NAN, 1});
  CheckOptions options;
  options.scope.last_replay = 3;
  EXPECT_FALSE(CheckOf(source, options).found());
}

TEST(Check, OutsideOfGraphsAPlaceNeedNotRunInEachCall) {
  MemorySource source;
  for (const char* name : {"router", "expert"}) source.AddSlot(name, {2});
  for (std::uint64_t call = 1; call <= 3; ++call) {
    source.serials[{0, call}] = call * 10;
    source.Add(0, call, {static_cast<float>(call), 1});
  }
  source.serials[{1, 1}] = 11;
  source.Add(1, 1, {1, 2});
  EXPECT_THAT(CheckText(source, CheckOf(source)), HasSubstr("replay 3 has no snapshot of expert"));
  for (source::Slot& slot : source.Slots()) slot.graph_id = 0;
  const Check check = CheckOf(source);
  EXPECT_TRUE(check.complete());
  EXPECT_EQ(CheckText(source, check), "nothing found in 4 snapshots\ncomplete: none is missing");
}

}  // namespace
}  // namespace cgdebug::analysis
