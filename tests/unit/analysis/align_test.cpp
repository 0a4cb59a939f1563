// Which snapshots are compared with each other, and that none is left out silently.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "client/analysis/diff/diff.h"
#include "client/analysis/diff/diff_report.h"
#include "tests/support/analysis/diff_of.h"
#include "tests/support/analysis/memory_source.h"

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

TEST(Align, EachRankIsComparedWithItself) {
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

TEST(Align, ACallIsComparedWithTheSameCall) {
  MemorySource a = Probes({"x", "x"}), b = Probes({"x"});
  a.Slots()[1].invocation = b.Slots()[0].invocation = 1;
  b.Change(0, 1, {1});  // as the second call of the other
  const Diff diff = DiffOf(a, b);
  EXPECT_EQ(diff.equal.bits, 1u);
  EXPECT_EQ(diff.verdict(), Verdict::kIncomplete);
}

// A place that is called eagerly with these lengths, call after call; each value is the call.
MemorySource Calls(const std::vector<std::uint64_t>& lengths) {
  MemorySource source;
  std::map<std::uint64_t, std::size_t> slots;
  for (std::size_t call = 1; call <= lengths.size(); ++call) {
    const std::uint64_t length = lengths[call - 1];
    if (!slots.contains(length)) {
      slots[length] = source.AddSlot("x", {length});
      source.Slots().back().in_body = true;
      source.Slots().back().graph_id = 0;
    }
    source.Add(slots[length], call, std::vector<float>(length, static_cast<float>(call)));
  }
  return source;
}

TEST(Align, EagerCallNIsComparedWithCallNWhateverItsShape) {
  MemorySource a = Calls({1, 2, 1, 3}), b = Calls({1, 2, 1, 3});
  EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kSame);
  EXPECT_EQ(DiffOf(a, b).compared, 4u);
  MemorySource other = Calls({1, 3, 1, 2});  // the same shapes in other calls
  const Diff diff = DiffOf(a, other);
  EXPECT_EQ(diff.verdict(), Verdict::kDifferent);
  EXPECT_EQ(diff.compared, 4u);
  EXPECT_EQ(diff.different, 2u);
  ASSERT_TRUE(diff.first.has_value());
  EXPECT_EQ(diff.first->position, 2u);
  EXPECT_THAT(diff.missing, ::testing::IsEmpty());
  MemorySource shorter = Calls({1, 2, 1});
  const Diff missing = DiffOf(a, shorter);
  EXPECT_EQ(missing.verdict(), Verdict::kIncomplete);
  EXPECT_THAT(missing.missing, ElementsAre(HasSubstr(": call 4 only in memory")));
}

TEST(Align, TwoShapesInOneCallAreComparedInTheOrderInWhichTheyRan) {
  MemorySource a, b;
  for (MemorySource* source : {&a, &b}) {
    for (const std::uint64_t length : {1, 2}) {
      const std::size_t slot = source->AddSlot("x", {length});
      source->Slots()[slot].in_body = true;
      source->Slots()[slot].graph_id = 0;
      source->Add(slot, 1, std::vector<float>(length, 0.5F));
      source->serials[{slot, 1}] = length;
    }
  }
  EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kSame);
  b.serials[{0, 1}] = 3;  // B runs the shape of two elements first
  EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kDifferent);
  EXPECT_EQ(DiffOf(a, b).different, 2u);
}

TEST(Align, CallsOfTwoProcessesAreNotMixed) {
  MemorySource a = Calls({1, 1}), b = Calls({1, 1});
  for (MemorySource* source : {&a, &b}) {
    const std::size_t slot = source->AddSlot("x", {2});
    source->Slots()[slot].in_body = true;
    source->Slots()[slot].graph_id = 0;
    source->Slots()[slot].session = "other";
    source->Add(slot, 1, {7, 7});
  }
  const Diff diff = DiffOf(a, b);
  EXPECT_EQ(diff.verdict(), Verdict::kSame);
  EXPECT_EQ(diff.compared, 3u);
}

TEST(Align, AProbeThatTheMapUsesIsNotAlsoComparedByItsOwnName) {
  MemorySource a = Probes({"y", "x"}), b = Probes({"y"});
  b.Change(0, 1, {1});  // as x of the other
  DiffOptions options;
  options.align.names = {{"x", "y"}};
  const Diff diff = DiffOf(a, b, options);
  EXPECT_EQ(diff.equal.bits, 1u);
  EXPECT_THAT(diff.missing, ElementsAre("y is only in memory (1 snapshots)"));
}

TEST(Align, WithAMapTheGlobsSelectNamesOfA) {
  MemorySource a = Probes({"x"}), b = Probes({"y", "z"});
  DiffOptions options;
  options.align.names = {{"x", "y"}};
  options.align.scope.probes = *Selector::Parse(std::vector<std::string>{"x"});
  const Diff diff = DiffOf(a, b, options);
  EXPECT_EQ(diff.compared, 1u);
  EXPECT_EQ(diff.verdict(), Verdict::kSame) << "nobody asked for z";
}

TEST(Align, WithinAStepTheNthSnapshotsOfAllProbesComeBeforeTheNextOnes) {
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

TEST(Diff, NanDoesNotHideTheGreatestFiniteDifferenceOfAProbe) {
  MemorySource a = Probes({"x"}), b = Probes({"x"});
  for (MemorySource* source : {&a, &b}) source->Add(0, 2, {1});
  b.Change(0, 1, {NAN});
  b.Change(0, 2, {5});
  const Diff diff = DiffOf(a, b);
  EXPECT_EQ(diff.different, 2u);
  EXPECT_EQ(diff.probes[0].max_abs, 4);
  EXPECT_EQ(diff.probes[0].with_nonfinite, 1u);
  EXPECT_THAT(DiffStatText(a, diff, false), HasSubstr("max abs 4  max rel 0.8  1 by NaN or Inf"));
}

TEST(Diff, NanDoesNotHideTheGreatestFiniteDifferenceOfItsTensor) {
  MemorySource a, b;
  for (MemorySource* source : {&a, &b}) source->Add(source->AddSlot("x", {3}), 1, {1, 2, 3});
  b.Change(0, 1, {NAN, 2.5, 3});
  EXPECT_EQ(DiffOf(a, b).probes[0].max_abs, 0.5);
}

TEST(Diff, RowsOfSeveralRanksNameThem) {
  MemorySource a = Probes({"x", "x"}), b = Probes({"x", "x"});
  for (MemorySource* source : {&a, &b}) source->Slots()[1].rank = 1;
  for (MemorySource* source : {&a, &b}) source->Slots()[0].rank = 0;
  b.Change(1, 1, {9});
  EXPECT_THAT(DiffStatText(a, DiffOf(a, b), false), ::testing::StartsWith("x rank 1 "));
}

// One probe in a graph for each shape; the value is the shape.
MemorySource Graphs(const std::vector<std::uint64_t>& shapes, const std::string& label = "") {
  MemorySource source;
  for (const std::uint64_t shape : shapes) {
    const std::size_t slot = source.AddSlot("x", {shape});
    source.Slots()[slot].graph_id = slot + 1;
    source.Slots()[slot].graph = label + std::to_string(shape);
    source.Slots()[slot].graph_is_given = !label.empty();
    source.Add(slot, 1, std::vector<float>(shape, static_cast<float>(shape)));
  }
  return source;
}

TEST(Align, GraphsArePairedByNamesAndShapesInAnyOrder) {
  MemorySource a = Graphs({8, 16, 64}), b = Graphs({64, 8, 16});
  const Diff diff = DiffOf(a, b);
  EXPECT_EQ(diff.verdict(), Verdict::kSame);
  EXPECT_EQ(diff.equal.bits, 3u);
}

TEST(Align, GraphsOfDifferentShapesAreNotPaired) {
  MemorySource a = Graphs({8, 16}), b = Graphs({8, 32});
  const Diff diff = DiffOf(a, b);
  EXPECT_EQ(diff.equal.bits, 1u);
  EXPECT_EQ(diff.missing_count, 2u);
  EXPECT_EQ(diff.verdict(), Verdict::kIncomplete);
}

TEST(Align, TheOnlyGraphsOfAProbeArePairedWhateverTheirShapes) {
  MemorySource a = Graphs({8}), b = Graphs({16});
  EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kDifferent);
}

TEST(Align, TwoGraphsAreNotPairedWithOneOfAnotherShape) {
  MemorySource a = Graphs({8}), b = Graphs({16, 32});
  for (const auto& [one, other] : {std::pair(&a, &b), {&b, &a}}) {
    const Diff diff = DiffOf(*one, *other);
    EXPECT_EQ(diff.verdict(), Verdict::kIncomplete);
    EXPECT_EQ(diff.missing_count, 3u);
  }
}

TEST(Align, LabelsOfTheUserDecideThePairs) {
  MemorySource a = Graphs({8, 8}, "bs="), b = Graphs({8, 8}, "bs=");
  a.Slots()[0].graph = b.Slots()[1].graph = "prefill";
  a.Change(0, 1, std::vector<float>(8, 3));
  b.Change(1, 1, std::vector<float>(8, 3));
  EXPECT_EQ(DiffOf(a, b).verdict(), Verdict::kSame);
  b.Slots()[1].graph = "decode";
  EXPECT_EQ(DiffOf(a, b).missing_count, 2u);
}

TEST(Align, EagerCallsArePairedWithTheGraphOfTheirShape) {
  MemorySource a = Graphs({8, 16}), b = Graphs({16, 8});
  for (source::Slot& slot : a.Slots()) {
    slot.graph_id = 0;
    slot.graph.clear();
  }
  EXPECT_EQ(DiffOf(a, b).equal.bits, 2u);
}

}  // namespace
}  // namespace cgdebug::analysis
