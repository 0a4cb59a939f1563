// Which snapshots stand against each other, and that none drops out unsaid.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "client/analysis/diff.h"
#include "tests/support/diff_of.h"
#include "tests/support/memory_source.h"

namespace cgdebug::analysis {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_support::DiffOf;
using testing_support::MemorySource;
using Verdict = Diff::Verdict;

// One replay each; the value is the place.
MemorySource Probes(const std::vector<std::string>& names) {
  MemorySource source;
  for (const std::string& name : names) {
    const std::size_t slot = source.AddSlot(name, {1});
    source.Add(slot, 1, {static_cast<float>(slot)});
  }
  return source;
}

TEST(Align, EverySnapshotThatIsOnlyInOneIsCounted) {
  MemorySource a = Probes({"x"}), b = Probes({"x"});
  for (const int replay : {2, 3, 5}) a.Add(0, replay, {0});
  EXPECT_EQ(DiffOf(a, b).missing_count, 3u);
  EXPECT_EQ(DiffOf(b, a).missing_count, 3u);
}

TEST(Align, AProbeThatIsOnlyInOneIsMissingAlsoWithoutSnapshots) {
  MemorySource a = Probes({"x"}), b = Probes({"x"});
  b.AddSlot("y", {1});
  EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kIncomplete);
  EXPECT_EQ(DiffOf(b, a).verdict(), Verdict::kIncomplete);
}

TEST(Align, OfSeveralRanksEachStandsAgainstItself) {
  MemorySource a = Probes({"x", "x"}), b = Probes({"x"});
  a.Slots()[0].rank = 0;
  a.Slots()[1].rank = b.Slots()[0].rank = 1;
  b.Change(0, 1, {1});  // as rank 1 of the other
  for (const auto& [one, other] : {std::pair(&a, &b), {&b, &a}}) {
    const Diff diff = DiffOf(*one, *other);
    EXPECT_EQ(diff.equal.bits, 1u);
    EXPECT_EQ(diff.verdict(), Verdict::kIncomplete);
    EXPECT_THAT(diff.missing, ElementsAre("x of rank 0 is only in memory (1 snapshots)"));
  }
}

TEST(Align, ACallStandsAgainstTheSameCall) {
  MemorySource a = Probes({"x", "x"}), b = Probes({"x"});
  a.Slots()[1].invocation = b.Slots()[0].invocation = 1;
  b.Change(0, 1, {1});  // as the second call of the other
  const Diff diff = DiffOf(a, b);
  EXPECT_EQ(diff.equal.bits, 1u);
  EXPECT_EQ(diff.verdict(), Verdict::kIncomplete);
}

TEST(Align, ANameThatTheMapGivesAwayIsNotItsNamesakes) {
  MemorySource a = Probes({"y", "x"}), b = Probes({"y"});
  b.Change(0, 1, {1});  // as x of the other
  DiffOptions options;
  options.align.names = {{"x", "y"}};
  const Diff diff = DiffOf(a, b, options);
  EXPECT_EQ(diff.equal.bits, 1u);
  EXPECT_THAT(diff.missing, ElementsAre("y is only in memory (1 snapshots)"));
}

TEST(Align, WithAMapTheGlobsAreOfTheNamesOfA) {
  MemorySource a = Probes({"x"}), b = Probes({"y", "z"});
  DiffOptions options;
  options.align.names = {{"x", "y"}};
  options.align.scope.probes = *Selector::Parse(std::vector<std::string>{"x"});
  const Diff diff = DiffOf(a, b, options);
  EXPECT_EQ(diff.compared, 1u);
  EXPECT_EQ(diff.verdict(), Verdict::kSame) << "nobody asked for z";
}

TEST(Align, InAStepTheNthSnapshotsOfAllProbesComeBeforeTheNext) {
  MemorySource a = Probes({"x", "y"}), b = Probes({"x", "y"});
  for (MemorySource* source : {&a, &b}) {
    for (const std::size_t slot : {0, 1}) {
      for (const int replay : {1, 2}) source->Add(slot, replay, {1}, 7);
    }
  }
  b.Change(0, 2, {2});
  b.Change(1, 1, {2});
  DiffOptions options;
  options.align.by_step = true;
  const Diff diff = DiffOf(a, b, options);
  EXPECT_EQ(diff.probes[diff.first->pair].a, 1u);
  EXPECT_EQ(diff.first->different_after, 1u);
}

TEST(Diff, AGapOfEitherSideIsMissing) {
  MemorySource a = Probes({"x"}), b = Probes({"x"});
  a.gaps = {{0, 2, 1, 4, "overwritten"}, {0, 3, 4, 8, "at death"}};
  EXPECT_EQ(DiffOf(a, b).missing_count, 5u);
  EXPECT_EQ(DiffOf(b, a).missing_count, 5u);
}

TEST(Diff, OnlyGapsOfTheReplaysThatAreLookedAtCount) {
  MemorySource a = Probes({"x"}), b = Probes({"x"});
  a.Add(0, 5, {1});
  a.Add(0, 9, {1});
  b.Add(0, 5, {1});
  a.gaps = {{0, 3, 1, 5, "overwritten"}, {0, 3, 5, 9, "overwritten"}};
  b.description.is_cut_off = true;
  DiffOptions options;
  options.align.scope.first_replay = options.align.scope.last_replay = 5;
  EXPECT_EQ(DiffOf(a, b, options).verdict(), Verdict::kSame);
  options.align.scope.first_replay = 4;
  EXPECT_EQ(DiffOf(a, b, options).verdict(), Verdict::kIncomplete);
}

TEST(Diff, NeverSameOverWhatIsDamagedNotReadOrStillBeingWritten) {
  MemorySource a = Probes({"x"});
  source::Description good = a.description;
  for (const auto& change : std::vector<std::function<void(source::Description&)>>{
           [](auto& about) { about.is_growing = true; },
           [](auto& about) { about.damage = {"byte 7"}; },
           [](auto& about) { about.unread = {"b.cgrec"}; }}) {
    MemorySource b = Probes({"x"});
    change(b.description);
    EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kIncomplete);
    EXPECT_EQ(DiffOf(b, a).verdict(), Verdict::kIncomplete);
  }
}

TEST(Diff, EqualNanIsADifferenceAlsoByHashAndWithoutStatistics) {
  MemorySource a, b;
  for (MemorySource* source : {&a, &b}) source->Add(source->AddSlot("x", {1}), 1, {NAN});
  for (MemorySource* source : {&a, &b}) source->has_stats = false;
  EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kDifferent);
  for (MemorySource* source : {&a, &b}) source->has_hashes = true;
  EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kDifferent);
  for (MemorySource* source : {&a, &b}) source->has_stats = true;
  EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kDifferent);
}

TEST(Diff, NanStaysTheGreatestDifferenceOfAProbe) {
  MemorySource a = Probes({"x"}), b = Probes({"x"});
  for (MemorySource* source : {&a, &b}) source->Add(0, 2, {1});
  b.Change(0, 1, {NAN});
  b.Change(0, 2, {5});
  const Diff diff = DiffOf(a, b);
  EXPECT_EQ(diff.different, 2u);
  EXPECT_TRUE(std::isnan(diff.probes[0].max_abs)) << diff.probes[0].max_abs;
  EXPECT_TRUE(std::isnan(diff.probes[0].max_rel)) << diff.probes[0].max_rel;
}

}  // namespace
}  // namespace cgdebug::analysis
