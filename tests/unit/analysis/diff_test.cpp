// What differs between two sources, and that a gap is never called the same.
#include "client/analysis/diff/diff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "client/analysis/diff/diff_report.h"
#include "client/analysis/diff/pattern.h"
#include "tests/support/analysis/answer_text.h"
#include "tests/support/analysis/diff_of.h"
#include "tests/support/analysis/memory_source.h"

namespace cgdebug::analysis {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing_support::DiffOf;
using testing_support::MemorySource;
using testing_support::TwoLayers;
using Verdict = Diff::Verdict;

TEST(Diff, EqualSourcesAreTheSame) {
  MemorySource a = TwoLayers(3), b = TwoLayers(3);
  const Diff diff = DiffOf(a, b);
  EXPECT_EQ(diff.verdict(), Verdict::kSame);
  EXPECT_EQ(diff.compared, 6u);
  EXPECT_EQ(diff.equal.bits, 6u);
  EXPECT_EQ(DiffText(a, b, diff), "same: 6 snapshots of 2 probes over 3 replays, bit for bit");
}

TEST(Diff, EqualPartsAreTheSameInThePartOnly) {
  MemorySource a = TwoLayers(3), b = TwoLayers(3);
  for (MemorySource* source : {&a, &b}) source->Slots()[1].part = "rows:0:2 of [8,2]";
  const Diff diff = DiffOf(a, b);
  EXPECT_EQ(diff.verdict(), Verdict::kSameInPart);
  EXPECT_EQ(diff.in_part, 3u);
  EXPECT_EQ(DiffText(a, b, diff),
            "same in the part (of 3 snapshots): 6 snapshots of 2 probes over 3 replays, bit for "
            "bit. The rest of them was not recorded");
  a.Slots()[0].part = b.Slots()[0].part = "rows:0:2 of [8,2]";
  EXPECT_THAT(DiffText(a, b, DiffOf(a, b)), HasSubstr("same in the part: 6 snapshots"));
}

TEST(Diff, DifferentPartsOfATensorAreNeverTheSame) {
  MemorySource a = TwoLayers(3), b = TwoLayers(3);
  a.Slots()[1].part = "rows:0:2 of [8,2]";
  for (const char* part : {"rows:2:4 of [8,2]", ""}) {
    b.Slots()[1].part = part;
    if (*part == '\0') a.Slots()[1].part = "rows:0:2 of [2,2]";
    const Diff diff = DiffOf(a, b);
    EXPECT_EQ(diff.verdict(), Verdict::kIncomplete);
    EXPECT_EQ(diff.compared, 3u);
    EXPECT_THAT(DiffText(a, b, diff), HasSubstr("A has part rows:0:2 of "));
    EXPECT_THAT(DiffText(a, b, diff), HasSubstr(": record the same part of both"));
  }
}

TEST(Diff, PartsOfTensorsOfTwoShapesAreDifferent) {
  MemorySource a = TwoLayers(3), b = TwoLayers(3);
  a.Slots()[1].part = "rows:0:2 of [8,2]";
  b.Slots()[1].part = "rows:0:2 of [16,2]";
  EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kDifferent);
}

TEST(Diff, NamesTheFirstDifferenceInReplayAndGraphOrder) {
  MemorySource a = TwoLayers(3), b = TwoLayers(3);
  b.Change(0, 3, {0, 0, 0, 0});
  b.Change(1, 2, {2, 2, 2, 7.5});
  const Diff diff = DiffOf(a, b);
  EXPECT_EQ(diff.verdict(), Verdict::kDifferent);
  EXPECT_EQ(diff.different, 2u);
  ASSERT_TRUE(diff.first.has_value());
  EXPECT_EQ(diff.first->position, 2u);
  EXPECT_EQ(a.slots()[diff.probes[diff.first->pair].a].probe, "y");
  EXPECT_EQ(diff.first->equal_before, 1u);
  const std::string text = DiffText(a, b, diff);
  EXPECT_THAT(text, HasSubstr("first difference: replay 2, y (probe 2 of 2)"));
  EXPECT_THAT(text, HasSubstr("rtol 1.3e-06 atol 1e-05 (f32 defaults)"));
  EXPECT_THAT(text, HasSubstr("Mismatched elements: 1 / 4 (25.0%)\n"
                              "Greatest absolute difference: 5.5 at index (1, 1)"));
  EXPECT_THAT(text, HasSubstr("pattern: every mismatch lies in [1, 1], all of it"));
}

TEST(Diff, FirstLooksNoFurtherThanItsReplay) {
  MemorySource a = TwoLayers(3), b = TwoLayers(3, 1);
  DiffOptions options;
  options.stops_after_first = true;
  const Diff diff = DiffOf(a, b, options);
  EXPECT_TRUE(diff.stopped_early);
  EXPECT_EQ(diff.compared, 2u);
  EXPECT_THAT(DiffText(a, b, diff), HasSubstr("nothing after replay 1 was looked at"));
}

TEST(Diff, NeverSameOverWhatIsMissing) {
  {
    MemorySource a = TwoLayers(3), b = TwoLayers(2);  // a replay
    EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kIncomplete);
    EXPECT_EQ(DiffOf(b, a).verdict(), Verdict::kIncomplete);
    EXPECT_THAT(DiffText(a, b, DiffOf(a, b)), HasSubstr("x: replay 3 only in memory"));
    DiffOptions both_have;
    both_have.align.scope.last_replay = 2;
    EXPECT_EQ(DiffOf(a, b, both_have).verdict(), Verdict::kSame);
  }
  {
    MemorySource a = TwoLayers(3), b = TwoLayers(3);  // a probe
    a.Add(a.AddSlot("z", {1}), 1, {1});
    EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kIncomplete);
    EXPECT_EQ(DiffOf(b, a).verdict(), Verdict::kIncomplete);
  }
  {
    MemorySource a = TwoLayers(3), b = TwoLayers(3);  // the same loss on both sides
    for (MemorySource* source : {&a, &b}) {
      source->gaps.push_back({0, 2, 1, 2, "overwritten"});
    }
    EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kIncomplete);
    EXPECT_THAT(DiffText(a, b, DiffOf(a, b)), HasSubstr("lacks 2 snapshots of x"));
  }
  {
    MemorySource a = TwoLayers(3), b = TwoLayers(3);  // the end
    b.description.is_cut_off = true;
    EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kIncomplete);
  }
  {
    MemorySource a = TwoLayers(3), b = TwoLayers(3);  // values
    b.DropValues(1, 3);
    b.has_stats = false;
    EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kIncomplete);
    EXPECT_THAT(DiffText(a, b, DiffOf(a, b)),
                HasSubstr("y@3: memory has neither values nor statistics"));
    b.DropValues(1, 1);
    EXPECT_THAT(DiffText(a, b, DiffOf(a, b)), HasSubstr("y@1 and 1 more: memory has neither"));
  }
  {
    MemorySource a, b;  // everything
    EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kIncomplete);
  }
  {
    MemorySource a = TwoLayers(3), b = TwoLayers(3);  // what cannot be read
    b.damaged.insert(1);
    EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kIncomplete);
  }
}

TEST(Diff, SaysThatTheRangeIsWhyNothingWasCompared) {
  MemorySource a = TwoLayers(3), b = TwoLayers(3);
  DiffOptions options;
  options.align.scope.first_replay = 100;
  const Diff diff = DiffOf(a, b, options);
  EXPECT_EQ(diff.verdict(), Diff::Verdict::kIncomplete);
  EXPECT_THAT(DiffText(a, b, diff),
              AllOf(HasSubstr("inconclusive: nothing was compared"),
                    HasSubstr("no snapshot in replays 100.., it has some in 1..")));
}

TEST(Diff, InvalidTolerancesAreRefusedAlsoOverEqualBytes) {
  MemorySource a = TwoLayers(3), b = TwoLayers(3);
  for (const double tolerance : {-1.0, std::nan(""), HUGE_VAL}) {
    DiffOptions options;
    options.atol = tolerance;
    const Result<Diff> diff = Compare(a, b, options);
    ASSERT_FALSE(diff.ok()) << tolerance;
    EXPECT_THAT(diff.error().message, HasSubstr("a tolerance is finite, and 0 or more"));
  }
}

TEST(Diff, ADifferenceWinsOverWhatIsMissing) {
  MemorySource a = TwoLayers(3), b = TwoLayers(2, 1);
  EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kDifferent);
}

TEST(Diff, NanDiffersUnlessItIsAllowedOrTheBitsAreMeant) {
  MemorySource a, b;
  for (MemorySource* source : {&a, &b}) source->Add(source->AddSlot("x", {2}), 1, {1, NAN});
  EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kDifferent);
  DiffOptions options;
  options.equal_nan = true;
  EXPECT_EQ(DiffOf(a, b, options).verdict(), Verdict::kSame);
  options = {};
  options.bitwise = true;
  EXPECT_EQ(DiffOf(a, b, options).verdict(), Verdict::kSame);
}

TEST(Diff, TolerancesAndBitsDecide) {
  MemorySource a = TwoLayers(1), b = TwoLayers(1, 1e-6F);
  EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kSame);
  EXPECT_EQ(DiffOf(a, b).equal.bits, 1u);
  DiffOptions options;
  options.bitwise = true;
  EXPECT_EQ(DiffOf(a, b, options).verdict(), Verdict::kDifferent);
  options = {};
  options.rtol = options.atol = 0;
  EXPECT_EQ(DiffOf(a, b, options).verdict(), Verdict::kDifferent);
}

TEST(Diff, TheRelativeToleranceIsOfTheSecondSource) {
  MemorySource small, large;
  small.Add(small.AddSlot("x", {1}), 1, {9.05f});
  large.Add(large.AddSlot("x", {1}), 1, {10});
  DiffOptions options;
  options.rtol = 0.1;
  options.atol = 0;
  EXPECT_EQ(DiffOf(small, large, options).verdict(), Verdict::kSame);
  EXPECT_EQ(DiffOf(large, small, options).verdict(), Verdict::kDifferent);
}

TEST(Diff, AnotherShapeOrDtypeIsADifference) {
  MemorySource a, b;
  a.Add(a.AddSlot("x", {4}), 1, {1, 2, 3, 4});
  b.Add(b.AddSlot("x", {2, 2}), 1, {1, 2, 3, 4});
  const Diff diff = DiffOf(a, b);
  EXPECT_EQ(diff.verdict(), Verdict::kDifferent);
  EXPECT_THAT(DiffText(a, b, diff), HasSubstr("f32[4] against f32[2,2]: the shape differs"));
}

TEST(Diff, AlignsByNameByMapAndByOrder) {
  MemorySource a, b;
  a.Add(a.AddSlot("first", {1}), 1, {1});
  a.Add(a.AddSlot("second", {1}), 1, {2});
  b.Add(b.AddSlot("eins", {1}), 1, {1});
  b.Add(b.AddSlot("zwei", {1}), 1, {2});
  EXPECT_EQ(DiffOf(a, b).compared, 0u);
  DiffOptions options;
  options.align.by_order = true;
  EXPECT_EQ(DiffOf(a, b, options).verdict(), Verdict::kSame);
  options = {};
  const auto names = ParseNameMap("first eins  # a comment\n\nsecond\tzwei\n");
  ASSERT_TRUE(names.ok()) << names.error().message;
  options.align.names = *names;
  EXPECT_EQ(DiffOf(a, b, options).verdict(), Verdict::kSame);
  EXPECT_THAT(ParseNameMap("one two three").error().message, HasSubstr("line 1"));
  EXPECT_FALSE(ParseNameMap("one two\none three").ok());
}

TEST(Diff, AlignsByStep) {
  MemorySource a, b;
  const std::size_t x = a.AddSlot("x", {1}), y = b.AddSlot("x", {1});
  a.Add(x, 1, {5}, 100);
  a.Add(x, 2, {6}, 101);
  b.Add(y, 7, {5}, 100);
  b.Add(y, 8, {6}, 101);
  EXPECT_EQ(DiffOf(a, b).compared, 0u);
  DiffOptions options;
  options.align.by_step = true;
  EXPECT_EQ(DiffOf(a, b, options).verdict(), Verdict::kSame);
}

TEST(Diff, EverySnapshotOfAStepIsComparedOrSaidToBeMissing) {
  MemorySource a, b;
  DiffOptions options;
  options.align.by_step = true;
  const std::size_t x = a.AddSlot("x", {1});
  b.AddSlot("x", {1});
  for (MemorySource* source : {&a, &b}) {
    for (const int replay : {1, 2, 3, 4}) source->Add(x, replay, {1}, (replay + 1) / 2);
  }
  EXPECT_EQ(DiffOf(a, b, options).verdict(), Verdict::kSame);
  EXPECT_EQ(DiffOf(a, b, options).compared, 4u);
  b.Change(x, 4, {2});  // the second of step 2
  const Diff second = DiffOf(a, b, options);
  EXPECT_EQ(second.verdict(), Verdict::kDifferent);
  EXPECT_EQ(second.first->position, 2u);
  EXPECT_EQ(second.first->b.key.replay, 4u);
  b.Remove(x, 4);
  EXPECT_EQ(DiffOf(a, b, options).verdict(), Verdict::kIncomplete);
  EXPECT_THAT(DiffText(a, b, DiffOf(a, b, options)), HasSubstr("x: step 2 only in memory"));
  b.Add(x, 4, {1}, 2);
  for (MemorySource* source : {&a, &b}) source->Add(x, 5, {1});
  EXPECT_EQ(DiffOf(a, b, options).verdict(), Verdict::kIncomplete);
  EXPECT_THAT(DiffText(a, b, DiffOf(a, b, options)),
              HasSubstr("x: the step of replay 5 is not known in memory"));
}

TEST(Diff, ASnapshotThatIsGoneWhenItIsReadIsNotCompared) {
  MemorySource a = TwoLayers(3), b = TwoLayers(3);
  b.gone.insert({1, 2});
  const Diff diff = DiffOf(a, b);
  EXPECT_EQ(diff.verdict(), Verdict::kIncomplete);
  EXPECT_EQ(diff.compared, 5u);
  EXPECT_THAT(DiffText(a, b, diff), HasSubstr("y@2: it is gone"));
  b.Change(1, 3, {0, 0, 0, 0});
  EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kDifferent);
}

TEST(Diff, TheNthCaptureIsComparedWithTheNth) {
  MemorySource a, b;
  for (MemorySource* source : {&a, &b}) {
    for (const int capture : {1, 2}) {
      const std::size_t slot = source->AddSlot("x", {1});
      source->Slots()[slot].graph_id = source == &a ? capture : capture + 10;
      source->Add(slot, 1, {static_cast<float>(capture)});
    }
  }
  EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kSame);
  EXPECT_EQ(DiffOf(a, b).compared, 2u);
}

TEST(Diff, OneRankCanBeComparedWithAnother) {
  MemorySource a = TwoLayers(1), b = TwoLayers(1);
  for (source::Slot& slot : a.Slots()) slot.rank = 0;
  for (source::Slot& slot : b.Slots()) slot.rank = 3;
  EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kSame);
}

TEST(Diff, ListsTheElementsThatDifferMost) {
  MemorySource a, b;
  a.Add(a.AddSlot("x", {4}), 1, {1, 2, 3, 4});
  b.Add(b.AddSlot("x", {4}), 1, {1, 9, 3.5, 4});
  DiffOptions options;
  options.topk = 2;
  const Diff diff = DiffOf(a, b, options);
  ASSERT_EQ(diff.first->largest.size(), 2u);
  EXPECT_EQ(diff.first->largest[0].index, 1u);
  EXPECT_EQ(diff.first->largest[0].b, "9.0");
  EXPECT_EQ(diff.first->largest[1].index, 2u);
}

TEST(Diff, JsonSaysWhatTheTextSays) {
  MemorySource a = TwoLayers(2), b = TwoLayers(2, NAN);
  const Json json = DiffJson(a, b, DiffOf(a, b));
  EXPECT_EQ(json["verdict"], "different");
  EXPECT_EQ(json["first"]["probe"], "y");
  EXPECT_EQ(json["first"]["values"]["max_abs"]["value"], "NaN");
  EXPECT_EQ(json["probes"][0]["different"], 0);
  EXPECT_THAT(DiffStatText(a, DiffOf(a, b), false), AllOf(HasSubstr("y"), Not(HasSubstr("x  "))));
  EXPECT_EQ(DiffNamesText(a, DiffOf(a, b)), "y\n");
}

// The mismatches of a tensor of ones that is `value` where `flat` says.
std::string PatternOf(const std::vector<std::uint64_t>& shape,
                      const std::vector<std::uint64_t>& flat, float value = 5) {
  const std::uint64_t count = *numerics::ElementCount(shape);
  std::vector<float> a(count, 1), b(count, 1);
  for (const std::uint64_t index : flat) a[index] = value;
  const auto view = [&](const std::vector<float>& values) {
    return *numerics::MakeTensorView(layout::Dtype::kFloat32, shape,
                                     std::as_bytes(std::span(values)));
  };
  return PatternText(*numerics::Compare(view(a), view(b), {}), shape);
}

TEST(Pattern, NamesTheBoxThatHoldsEveryMismatch) {
  EXPECT_EQ(PatternOf({2, 3}, {3, 4, 5}),
            "every mismatch lies in [1, :], all of it  -> the end of dim 0: looks like padding or "
            "a stale last row");
  EXPECT_EQ(PatternOf({4, 4}, {0, 5}), "every mismatch lies in [0:2, 0:2], 2 of its 4 elements");
  EXPECT_EQ(PatternOf({8}, {0, 2, 4}), "every mismatch lies in [3 of 0:5], all of it");
  EXPECT_EQ(PatternOf({2, 2}, {0, 1, 2, 3}), "every element mismatches");
  EXPECT_EQ(PatternOf({2, 2}, {0, 3}), "the mismatches are spread over every dimension");
  EXPECT_EQ(PatternOf({}, {0}), "");
  EXPECT_EQ(PatternOf({2, 3}, {3, 4, 5}, 0),
            "every mismatch lies in [1, :], all of it  -> A is 0 in each of them: never written?");
  EXPECT_THAT(PatternOf({2, 2}, {0}, NAN), HasSubstr("A is NaN in each of them"));
}

TEST(Diff, SaysHowFarApartTheElementsAre) {
  MemorySource a, b;
  a.Add(a.AddSlot("x", {3}), 1, {1, 1, 1});
  b.Add(b.AddSlot("x", {3}), 1, {1, std::nextafter(1.0F, 2.0F), 2});
  DiffOptions options;
  options.rtol = options.atol = 0;
  EXPECT_THAT(DiffText(a, b, DiffOf(a, b, options)),
              HasSubstr("ulp apart: 0: 1  1: 1  4194305-8388608: 1"));
}

TEST(RangesText, FoldsRuns) {
  EXPECT_EQ(RangesText({1, 2, 3, 7}), "1..3, 7");
  EXPECT_EQ(RangesText({1, 3, 5, 7, 9, 11}), "1, 3, 5, 7 and 2 more");
}

}  // namespace
}  // namespace cgdebug::analysis
