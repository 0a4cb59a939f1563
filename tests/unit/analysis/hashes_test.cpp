// What `diff` says about snapshots of which it has only hashes and statistics.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "client/analysis/diff/diff.h"
#include "client/analysis/diff/diff_report.h"
#include "tests/support/analysis/answer_text.h"
#include "tests/support/analysis/diff_of.h"
#include "tests/support/analysis/memory_source.h"

namespace cgdebug::analysis {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_support::DiffOf;
using testing_support::MemorySource;
using testing_support::TwoLayers;
using Verdict = Diff::Verdict;

TEST(Diff, EqualHashesStandForValuesThatWereNotRecorded) {
  MemorySource a = TwoLayers(1), b = TwoLayers(1), c = TwoLayers(1, 1);
  for (MemorySource* source : {&a, &b, &c}) {
    source->has_hashes = true;
    source->DropValues(1, 1);
  }
  EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kSame);
  EXPECT_EQ(DiffOf(a, b).equal.hashes, 1u) << "the values of x are read";
  c.has_stats = false;
  EXPECT_EQ(DiffOf(a, c).verdict(), Verdict::kIncomplete);
  DiffOptions options;
  options.bitwise = true;
  EXPECT_EQ(DiffOf(a, c, options).verdict(), Verdict::kDifferent);
}

// Replay 1 of "x", with statistics and without values.
MemorySource StatsOnly(const std::vector<float>& values, bool has_xor_hash = true) {
  MemorySource source;
  source.has_stats = true;
  source.has_xor_hash = has_xor_hash;
  source.Add(source.AddSlot("x", {values.size()}), 1, values);
  source.DropValues(0, 1);
  return source;
}

TEST(Diff, StatisticsThatAgreeInAllAndInTheHashAreTheSameAndItIsSaidByWhat) {
  MemorySource a = StatsOnly({1, -2, 3.5}), b = StatsOnly({1, -2, 3.5});
  EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kSame);
  EXPECT_EQ(DiffText(a, b, DiffOf(a, b)),
            "same by hash and statistics; values were not recorded: 1 snapshot of 1 probe over 1 "
            "replay");
  EXPECT_EQ(DiffJson(a, b, DiffOf(a, b))["equal"]["statistics"], 1);
  MemorySource values;  // a source that has the values
  values.Add(values.AddSlot("x", {3}), 1, {1, -2, 3.5});
  EXPECT_EQ(DiffOf(a, values).equal.statistics, 1u);
  EXPECT_EQ(DiffOf(values, b).equal.statistics, 1u);
}

TEST(Diff, EveryStatisticThatDiffersIsNamed) {
  MemorySource a = StatsOnly({1, -2, 3.5}), b = StatsOnly({1, -2, 4});
  const Diff diff = DiffOf(a, b);
  EXPECT_EQ(diff.verdict(), Verdict::kDifferent);
  EXPECT_THAT(
      DiffText(a, b, diff),
      AllOf(HasSubstr("the statistics differ: max 3.5 against 4.0, abs_max 3.5 against 4.0"),
            HasSubstr("; the values were not recorded")));
  EXPECT_THAT(DiffStatText(a, diff, false), HasSubstr("first 1  values were not recorded"));
  // Hash and range are equal; only the mean differs.
  MemorySource plus = StatsOnly({3, -3, 1, 1}), minus = StatsOnly({3, -3, -1, -1});
  EXPECT_THAT(DiffOf(plus, minus).first->statistics, ElementsAre("mean", "ordered_hash"));
  MemorySource zero = StatsOnly({0, 1}), negative_zero = StatsOnly({-0.0F, 1});
  EXPECT_THAT(DiffOf(zero, negative_zero).first->statistics,
              ElementsAre("xor_hash", "ordered_hash"));
}

TEST(Diff, StatisticsWithoutAHashAreNeverTheSame) {
  for (const bool of_a : {false, true}) {
    MemorySource a = StatsOnly({1, 2}, of_a), b = StatsOnly({1, 2}, false);
    EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kIncomplete);
    EXPECT_THAT(DiffText(a, b, DiffOf(a, b)), HasSubstr("x@1: memory has no xor_hash of it"));
    MemorySource other = StatsOnly({1, 3}, false);
    EXPECT_EQ(DiffOf(a, other).verdict(), Verdict::kDifferent);
  }
}

TEST(Diff, NanInStatisticsIsADifferenceAndItsHashProvesNoneWhereNanEqualsNan) {
  const float nan = std::nanf(""), other_nan = std::nanf("7");
  MemorySource a = StatsOnly({1, nan}), same = StatsOnly({1, nan}), b = StatsOnly({1, other_nan});
  EXPECT_EQ(DiffOf(a, same).verdict(), Verdict::kDifferent);
  EXPECT_THAT(DiffText(a, same, DiffOf(a, same)), HasSubstr("--equal-nan takes that for equal"));
  DiffOptions equal_nan, bitwise;
  equal_nan.equal_nan = true;
  bitwise.bitwise = true;
  EXPECT_EQ(DiffOf(a, same, equal_nan).verdict(), Verdict::kSame);
  EXPECT_EQ(DiffOf(a, same, bitwise).verdict(), Verdict::kSame);
  EXPECT_EQ(DiffOf(a, b, equal_nan).verdict(), Verdict::kSame) << "for the ordered hash it is";
  EXPECT_EQ(DiffOf(a, b, bitwise).verdict(), Verdict::kDifferent);
  MemorySource larger = StatsOnly({2, nan});
  EXPECT_EQ(DiffOf(a, larger, equal_nan).verdict(), Verdict::kDifferent);
  a.has_ordered_hash = b.has_ordered_hash = false;
  EXPECT_EQ(DiffOf(a, b, equal_nan).verdict(), Verdict::kIncomplete);
}

TEST(Diff, TheSameElementsInOtherPlacesAreADifference) {
  MemorySource a = StatsOnly({1, 2, 3, 4}), b = StatsOnly({1, 3, 2, 4});
  const Diff diff = DiffOf(a, b);
  EXPECT_EQ(diff.verdict(), Verdict::kDifferent);
  EXPECT_THAT(diff.first->statistics, ElementsAre("ordered_hash"));
  EXPECT_THAT(DiffText(a, b, diff), HasSubstr("the same elements in other places"));
}

TEST(Diff, StatisticsOfAnOlderVersionAreNotTheSameUnlessNoOrderCouldDiffer) {
  for (const bool of_a : {false, true}) {
    MemorySource a = StatsOnly({1, 2, 3, 4}), b = StatsOnly({1, 2, 3, 4});
    (of_a ? a : b).has_ordered_hash = false;
    EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kIncomplete);
    EXPECT_THAT(DiffText(a, b, DiffOf(a, b)), HasSubstr("x@1: memory has no ordered_hash of it"));
  }
  for (const std::vector<float>& values : {std::vector<float>{7}, std::vector<float>{2, 2, 2}}) {
    MemorySource a = StatsOnly(values), b = StatsOnly(values);
    a.has_ordered_hash = b.has_ordered_hash = false;
    EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kSame);
  }
}

TEST(Diff, AToleranceThatIsAskedForDecidesOnlyWhatStatisticsCanProve) {
  MemorySource a = StatsOnly({1, 2, 4}), near = StatsOnly({1, 2.001F, 4}),
               far = StatsOnly({1, 2, 5});
  DiffOptions options;
  options.rtol = 0.01;
  EXPECT_EQ(DiffOf(a, near, options).verdict(), Verdict::kIncomplete);
  EXPECT_THAT(DiffText(a, near, DiffOf(a, near, options)), HasSubstr("not beyond the tolerance"));
  EXPECT_EQ(DiffOf(a, far, options).verdict(), Verdict::kDifferent);
  EXPECT_EQ(DiffOf(a, near).verdict(), Verdict::kDifferent) << "nobody asked for one";
}

TEST(Diff, ValuesWithEqualHashesAreReadBeforeTheyAreCalledEqual) {
  MemorySource a = TwoLayers(2), b = TwoLayers(2);
  for (MemorySource* source : {&a, &b}) source->has_hashes = true;
  b.damaged.insert(0);
  const Diff diff = DiffOf(a, b);
  EXPECT_EQ(diff.verdict(), Verdict::kIncomplete);
  EXPECT_EQ(diff.equal.bits, 2u);
  EXPECT_EQ(diff.compared, 2u);
  EXPECT_EQ(diff.missing_count, 2u);
  EXPECT_THAT(diff.missing,
              ElementsAre("x@1: the values are damaged", "x@2: the values are damaged"));
  DiffOptions trusting;
  trusting.trusts_hashes = true;
  EXPECT_EQ(DiffText(a, b, DiffOf(a, b, trusting)),
            "same by recorded hash; values not read: 4 snapshots of 2 probes over 2 replays");
  b.Change(1, 2, {0, 0, 0, 0});  // damage beside a difference
  EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kDifferent);
  EXPECT_EQ(DiffOf(a, b).first->equal_before, 0u) << "the damaged one agrees with nothing";
  EXPECT_EQ(DiffOf(a, b).missing_count, 2u);
}

}  // namespace
}  // namespace cgdebug::analysis
