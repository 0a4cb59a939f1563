// What `check` says about missing replays and about what the daemon saw in them, and what led to
// the first bad one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "client/analysis/check/check.h"
#include "client/analysis/check/check_report.h"
#include "client/analysis/gaps.h"
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

TEST(Check, OverAGapItSaysWhichReplaysWereLookedAtAndNotComplete) {
  MemorySource source = Healthy(8);
  for (const std::size_t slot : {0, 1, 2}) {
    for (const std::uint64_t replay : {1, 2, 3, 4}) source.Remove(slot, replay);
    source.gaps.push_back({slot, 4, 0, 5, "no longer kept"});
  }
  const std::string text = CheckText(source, CheckOf(source));
  EXPECT_THAT(text, HasSubstr("inconclusive: nothing found in 12 snapshots, but some are missing: "
                              "only replays 5..8 were looked at\n3 of 3 probes in replay 8\n"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("complete: ")));
}

TEST(Check, ManyProbesThatLackTheSameAreOneSentence) {
  MemorySource source = Healthy(8);
  for (const char* name : {"a", "b", "c"}) source.AddSlot(name, {2});
  for (std::size_t slot = 0; slot < 6; ++slot) {
    source.gaps.push_back({slot, 4 + slot % 2, 0, 5, "no longer kept"});
  }
  source.gaps.push_back({5, 1, 6, 8, "overwritten before it was read"});
  const GapSummary gaps = SummarizeGaps(source, Scope());
  EXPECT_EQ(gaps.count, 28u);
  const std::vector<std::string> expected = {
      "memory lacks 4 to 5 snapshots of each of 5 probes, the first of in before replay 5 (no "
      "longer kept)",
      "memory lacks 6 snapshots of c, the first before replay 5 (no longer kept, overwritten "
      "before "
      "it was read)"};
  for (const std::string& sentence : expected) {
    EXPECT_THAT(gaps.sentences, ::testing::Contains(sentence));
  }
}

TEST(Check, ATensorWithoutAFiniteElementHasNoLeastOne) {
  MemorySource source = Healthy();
  source.Change(1, 3, {INFINITY, INFINITY});
  source.Change(2, 3, {NAN, NAN});
  const std::string text = CheckText(source, CheckOf(source));
  EXPECT_THAT(text, ::testing::ContainsRegex("\n  mid +- +- +-   2 \\+Inf of 2"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr(" nan "))) << "the word one looks for";
}

TEST(Check, ASourceThatBeginsLateIsReportedWithItsFirstReplay) {
  MemorySource source = Healthy(8);
  for (const std::size_t slot : {0, 1, 2}) {
    for (const std::uint64_t replay : {1, 2, 3, 4}) source.Remove(slot, replay);
  }
  EXPECT_THAT(CheckText(source, CheckOf(source)),
              HasSubstr("nothing found in 12 snapshots, of replays 5..8\n"));
}

TEST(Check, WhatTheDaemonFoundIsAFindingEvenIfItsSnapshotIsGone) {
  MemorySource source = Healthy(8);
  source.Remove(1, 3);
  source.gaps.push_back({1, 1, 2, 4, "no longer kept"});
  source.findings.push_back(
      {.slot = 1, .kind = layout::FindingKind::kNan, .replay = 3, .step = 103, .count = 2});
  const Check check = CheckOf(source);
  EXPECT_TRUE(check.found());
  EXPECT_FALSE(check.first.has_value());
  EXPECT_THAT(CheckText(source, check),
              AllOf(HasSubstr("first non-finite: replay 3 (step 103), mid: 2 NaN, seen by the "
                              "daemon; the tensor itself is not in here"),
                    HasSubstr("non-finite: mid, replay 3 (seen by the daemon, not in here)")));
  EXPECT_EQ(CheckJson(source, check)["first_told"]["replay"], 3);
  source.Change(1, 6, {NAN, 1});  // one that is here, and later
  EXPECT_THAT(
      CheckText(source, CheckOf(source)),
      AllOf(HasSubstr("the first that is in here:\nfirst non-finite: replay 6"),
            HasSubstr("replay 3 (seen by the daemon, not in here), and 1 of replays 6..6")));
  CheckOptions options;
  options.scope.first_replay = 7;
  EXPECT_FALSE(CheckOf(source, options).found()) << "asked about later replays alone";
}

TEST(Check, WhatTheDaemonFoundIsReportedOnceIfItsSnapshotIsThere) {
  MemorySource source = Healthy();
  source.Change(1, 3, {NAN, 1});
  source.findings.push_back(
      {.slot = 1, .kind = layout::FindingKind::kNan, .replay = 3, .count = 1});
  const Check check = CheckOf(source);
  EXPECT_FALSE(check.first_told.has_value());
  EXPECT_EQ(check.findings.size(), 1u);
}

TEST(Check, AFailedComparisonIsAFinding) {
  MemorySource source = Healthy();
  source.findings.push_back({.slot = 2,
                             .kind = layout::FindingKind::kMismatch,
                             .replay = 2,
                             .text = "Tensor-likes are not close!\nMismatched elements: 1 / 2"});
  const Check check = CheckOf(source);
  EXPECT_TRUE(check.found());
  EXPECT_THAT(
      CheckText(source, check),
      HasSubstr("failed comparison: out, first in replay 2: Tensor-likes are not close!\n"));
}

TEST(Check, AProbeThatHasNothingInTheReplaysLookedAtIsNotNeverWritten) {
  MemorySource source = Healthy(12);
  const std::size_t slot = source.AddSlot("loss", {1});
  for (const int replay : {1, 6, 11}) source.Add(slot, replay, {1.F * replay});
  CheckOptions options;
  options.scope.first_replay = 2;
  options.scope.last_replay = 5;
  const Check check = CheckOf(source, options);
  EXPECT_EQ(FindingOf(check, FindingKind::kNeverWritten), nullptr);
  EXPECT_TRUE(check.complete());
}

TEST(Check, TheLeadUpGoesOnInEarlierReplaysAndNamesTheFirstJump) {
  MemorySource source = Healthy(9);
  const auto set = [&](std::size_t slot, int replay, float value) {
    source.Change(slot, replay, {value, 1});
  };
  for (int replay = 1; replay <= 9; ++replay) {
    set(0, replay, 1.F + 0.1F * static_cast<float>(replay));
    set(1, replay, 2.3F);
  }
  set(1, 7, 1.6e5F);
  set(1, 8, 7e11F);
  set(2, 7, 1.3F);
  set(2, 8, 350);
  set(0, 9, NAN);
  const Check check = CheckOf(source);
  ASSERT_TRUE(check.first.has_value());
  EXPECT_EQ(check.first->place, 1u);
  ASSERT_GE(check.first->frames.size(), 7u);
  EXPECT_EQ(check.first->frames.back().key.replay, 9u);
  EXPECT_EQ(check.first->frames[check.first->frames.size() - 2].key.replay, 8u);
  const std::string text = CheckText(source, check);
  EXPECT_THAT(text, HasSubstr("  mid @8 "));
  EXPECT_THAT(text, HasSubstr("first jump before: mid 2.3 -> 1.6e+05 @7\n"));
}

TEST(Check, WhatTheAccountLacksIsMissingEvenWithoutAGap) {
  MemorySource source = Healthy(4);
  source.accounts[1] = {.produced = 6, .kept = 4};
  const Check check = CheckOf(source);
  EXPECT_FALSE(check.complete());
  EXPECT_EQ(check.missing_count, 2u);
}

TEST(Check, GrowthIsThatOfAReplayAlsoWhereNotEachIsThere) {
  MemorySource source;
  const std::size_t x = source.AddSlot("x", {1});
  float value = 1;
  for (const int replay : {1, 4, 7}) {
    source.Add(x, replay, {value});
    value *= 8;
  }
  source.Add(x, 10, {NAN});
  const Check check = CheckOf(source);
  ASSERT_TRUE(check.first);
  EXPECT_NEAR(check.first->growth, 2, 1e-6);
}

TEST(Check, UnevenGrowthGetsNoRate) {
  MemorySource source = Healthy();
  source.Change(1, 1, {0.92F, 0});
  source.Change(1, 2, {1.3F, 0});
  source.Change(1, 3, {350, 0});
  source.Change(1, 4, {NAN, 0});
  const Check check = CheckOf(source);
  EXPECT_EQ(check.first->growth, 0);
  EXPECT_THAT(CheckText(source, check), ::testing::Not(HasSubstr("growing")));
}

}  // namespace
}  // namespace cgdebug::analysis
