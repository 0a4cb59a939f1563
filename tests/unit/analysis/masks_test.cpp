#include "client/analysis/ops/masks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "client/analysis/check/nonfinite.h"
#include "client/analysis/ranks/ranks.h"
#include "tests/support/analysis/check_fixture.h"

namespace cgdebug::analysis {
namespace {

using ::testing::ElementsAre;
using testing_support::CheckOf;
using testing_support::FindingOf;
using testing_support::MemorySource;

constexpr float kInf = std::numeric_limits<float>::infinity();

// A log whose row n is the slot n - 1.
class Log : public MemorySource {
 public:
  void Row(const std::string& op, const std::vector<float>& values,
           const std::string& inputs = "") {
    const std::size_t slot = AddSlot("row" + std::to_string(slots().size() + 1), {values.size()});
    Slots()[slot].op = std::to_string(slot + 1) + " " + op + (inputs.empty() ? "" : " " + inputs);
    for (std::uint64_t replay = 1; replay <= 2; ++replay) Add(slot, replay, values);
  }
};

std::vector<std::uint32_t> Masks(Log& log) {
  std::vector<std::string> others;
  const Result<OpLog> read = ReadOpLog(log, {}, &others);
  EXPECT_TRUE(read.ok());
  return MasksOf(*read);
}

// scores = x @ x; mask = triu(full(-inf)); masked = scores + mask; softmax(masked)
void AddAttention(Log* log) {
  log->Row("input", {1, 2, 3, 4});
  log->Row("aten.full.default", {-kInf, -kInf, -kInf, -kInf});
  log->Row("aten.triu.default", {0, -kInf, 0, 0}, "2");
  log->Row("aten.add.Tensor", {1, -kInf, 3, 4}, "1 3");
}

TEST(Masks, OfACausalMaskAreListedAndAreNoVerdict) {
  Log log;
  AddAttention(&log);
  log.Row("aten._softmax.default", {1, 0, 0.5, 0.5}, "4");
  EXPECT_THAT(Masks(log), ElementsAre(2, 3, 4));
  const Check check = CheckOf(log);
  EXPECT_FALSE(check.found());
  EXPECT_FALSE(check.first);
  const Finding* mask = FindingOf(check, FindingKind::kMask);
  ASSERT_NE(mask, nullptr) << "it is not hidden";
  EXPECT_EQ(mask->count, 2u);
}

TEST(Masks, ANanBehindAMaskIsTheVerdict) {
  Log log;
  AddAttention(&log);
  log.Row("aten._softmax.default", {1, NAN, 0.5, 0.5}, "4");
  const Check check = CheckOf(log);
  ASSERT_TRUE(check.first);
  EXPECT_EQ(check.first->slot, 4u);
  EXPECT_TRUE(check.found());
}

TEST(Masks, MinusInfThatAnOpMadeOfFiniteValuesIsTheVerdict) {
  Log log;
  log.Row("input", {0, 1});
  log.Row("aten.log.default", {-kInf, 0}, "1");
  log.Row("aten.where.self", {-kInf, 0}, "2");
  const Check check = CheckOf(log);
  ASSERT_TRUE(check.first);
  EXPECT_EQ(check.first->slot, 1u);
}

TEST(Masks, MoreMinusInfThanTheMaskHasIsTheVerdict) {
  Log log;
  AddAttention(&log);
  log.Row("aten.mul.Tensor", {-kInf, -kInf, 3, 4}, "4");
  EXPECT_THAT(Masks(log), ElementsAre(2, 3, 4));
  EXPECT_EQ(CheckOf(log).first->slot, 4u);
}

TEST(Masks, PlusInfIsNoMaskWhoeverWroteIt) {
  Log log;
  log.Row("aten.full.default", {kInf, 1});
  log.Row("aten.masked_fill_.Scalar", {kInf, -kInf}, "1");
  EXPECT_THAT(Masks(log), ElementsAre());
  EXPECT_EQ(CheckOf(log).first->slot, 0u);
}

TEST(Masks, AProbeIsNoMask) {
  MemorySource source;
  source.AddSlot("fwd/mask", {2});
  source.Add(0, 1, {-kInf, 0});
  EXPECT_TRUE(CheckOf(source).found());
}

TEST(Masks, AnInputThatWasFiniteBeforeIsNoMask) {
  Log log;
  log.Row("input", {-kInf, 0});
  log.Row("aten.mul.Tensor", {-kInf, 0}, "1");
  EXPECT_FALSE(CheckOf(log).found());
  log.Change(0, 1, {1, 0});
  log.Change(1, 1, {1, 0});
  const Check check = CheckOf(log);
  ASSERT_TRUE(check.first);
  EXPECT_EQ(check.first->snapshot.key.replay, 2u);
}

TEST(Masks, AMaskThatTurnsIntoNanLaterDoesNotHideWhereTheNanBegan) {
  Log log;
  AddAttention(&log);
  log.Row("aten._softmax.default", {1, NAN, 0.5, 0.5}, "4");
  log.Change(3, 2, {NAN, -kInf, NAN, NAN});
  const Check check = CheckOf(log);
  ASSERT_TRUE(check.first);
  EXPECT_EQ(check.first->slot, 4u);
  EXPECT_EQ(check.first->snapshot.key.replay, 1u);
  std::vector<std::tuple<FindingKind, std::uint64_t, std::uint64_t>> of_the_mask;
  for (const Finding& finding : check.findings) {
    if (finding.slot != 3) continue;
    of_the_mask.emplace_back(finding.kind, finding.first_replay, finding.count);
  }
  EXPECT_THAT(of_the_mask, ElementsAre(std::tuple(FindingKind::kNonfinite, 2u, 1u),
                                       std::tuple(FindingKind::kMask, 1u, 1u)));
}

TEST(Masks, WhatTheDaemonSawEarlierCountsAsTheMaskThatIsHere) {
  Log log;
  AddAttention(&log);
  log.findings.push_back({.slot = 3, .kind = layout::FindingKind::kInf, .replay = 1, .count = 1});
  log.Remove(3, 1);
  log.findings.push_back({.slot = 2, .kind = layout::FindingKind::kNan, .replay = 9, .count = 1});
  const Check check = CheckOf(log);
  ASSERT_TRUE(check.first_told);
  EXPECT_EQ(check.first_told->slot, 2u) << "only the NaN";
}

TEST(Masks, OfAConstantOfTheProgramMayHaveAnotherSizeInEachReplay) {
  Log log;
  AddAttention(&log);
  log.Row("aten._softmax.default", {1, 0, 0.5, 0.5}, "4");
  log.Row("aten.masked_fill.Scalar", {1, -kInf, 3, 4}, "1");
  log.Row("aten.index.Tensor", {-kInf, -kInf, -kInf, 4}, "6");  // a part of it, several times
  for (const std::size_t slot : {2, 3, 5}) log.Change(slot, 2, {0, -kInf, -kInf, -kInf});
  const Check check = CheckOf(log);
  EXPECT_FALSE(check.found());
  EXPECT_EQ(FindingOf(check, FindingKind::kMask)->count, 2u);
  log.Change(3, 1, {-kInf, -kInf, -kInf, -kInf});  // more than the mask of that replay hides
  log.Change(4, 1, {NAN, NAN, NAN, NAN});
  const Check hidden = CheckOf(log);
  ASSERT_TRUE(hidden.first);
  EXPECT_EQ(hidden.first->slot, 3u);
}

TEST(Masks, AnInputWhoseNumberOfMinusInfChangesIsNone) {
  Log log;
  log.Row("input", {-kInf, 0});
  EXPECT_FALSE(CheckOf(log).found());
  log.Change(0, 2, {-kInf, -kInf});
  EXPECT_TRUE(CheckOf(log).found());
}

TEST(Masks, AnInfThatNoLaterRowInheritsIsANote) {
  Log log;
  log.Row("input", {0, 1});
  log.Row("aten.log.default", {-kInf, 0}, "1");
  log.Row("aten.mul.Tensor", {-kInf, 0}, "2");
  log.Row("aten.minimum.default", {-3, 0}, "3");
  const Check check = CheckOf(log);
  EXPECT_FALSE(check.found());
  EXPECT_TRUE(check.complete());
  ASSERT_NE(FindingOf(check, FindingKind::kAbsorbed), nullptr) << "it is not hidden";
  log.Row("aten.add.Tensor", {-kInf, 0}, "2 4");
  EXPECT_EQ(CheckOf(log).first->slot, 1u) << "a later row inherits it";
}

TEST(Masks, WhatNobodyReadsIsNotAbsorbed) {
  Log loss;
  loss.Row("input", {0, 1});
  loss.Row("aten.log.default", {-kInf, 0}, "1");
  EXPECT_TRUE(CheckOf(loss).found());
  loss.Row("aten.argmax.default", {1}, "2");
  loss.Slots()[2].dtype = layout::Dtype::kInt32;
  EXPECT_TRUE(CheckOf(loss).found()) << "which element is the largest says nothing of the values";
}

TEST(Masks, AnInfThatTheProgramGivesAsABoundIsANote) {
  for (const char* op : {"input", "aten.full.default", "aten.where.self"}) {
    Log log;
    log.Row("input", {0, 1});
    log.Row(op, {kInf, 1}, std::string(op) == "aten.where.self" ? "1" : "");
    EXPECT_TRUE(CheckOf(log).found()) << op << ": nobody reads it";
    log.Row("aten.le.Tensor", {1, 1}, "1 2");
    log.Slots()[2].dtype = layout::Dtype::kInt32;
    const Check check = CheckOf(log);
    EXPECT_FALSE(check.found()) << op;
    EXPECT_NE(FindingOf(check, FindingKind::kAbsorbed), nullptr) << "it is not hidden";
    log.Row("aten.add.Tensor", {kInf, 2}, "1 2");
    EXPECT_TRUE(CheckOf(log).found()) << op << ": a later row inherits it";
  }
  Log log;
  log.Row("input", {0, 1});
  log.Row("aten.reciprocal.default", {kInf, 1}, "1");
  log.Row("aten.le.Tensor", {1, 1}, "1 2");
  log.Slots()[2].dtype = layout::Dtype::kInt32;
  EXPECT_TRUE(CheckOf(log).found()) << "an op made it, so what is compared may be wrong";
}

// A NaN of row 2, which row 3 has too; what reads that is left to the test.
Log NanInTwoRows() {
  Log log;
  log.Row("input", {-1, 1});
  log.Row("aten.sqrt.default", {NAN, 1}, "1");
  log.Row("aten.mul.Tensor", {NAN, 2}, "2");
  return log;
}

TEST(Masks, ANanThatTheProgramLeavesOutIsANote) {
  for (const char* op : {"aten.where.self", "aten.index.Tensor", "aten.nan_to_num.default",
                         "aten.mm.default"}) {  // the last one has read another part of it
    Log log = NanInTwoRows();
    log.Row(op, {2, 2}, "3");
    const Check check = CheckOf(log);
    EXPECT_FALSE(check.found()) << op;
    EXPECT_TRUE(check.complete()) << op;
    EXPECT_NE(FindingOf(check, FindingKind::kAbsorbed), nullptr) << "it is not hidden";
    log.Row("aten.add.Tensor", {NAN, 1}, "2 4");
    EXPECT_EQ(CheckOf(log).first->slot, 1u) << op << ": a later row inherits it";
  }
}

TEST(Masks, ANanThatAnOpMayHideIsTheVerdict) {
  for (const char* op : {"aten.sign.default", "quant.scale.default", "aten.round.default"}) {
    Log log = NanInTwoRows();
    log.Row(op, {0, 1}, "3");
    EXPECT_TRUE(CheckOf(log).found()) << op;
  }
  for (const char* op : {"aten.argmax.default", "aten.gt.Scalar", "aten._to_copy.default"}) {
    Log log = NanInTwoRows();
    log.Row("aten.where.self", {0, 1}, "3");
    log.Row(op, {0, 1}, "3");
    log.Slots()[4].dtype = layout::Dtype::kInt32;
    EXPECT_TRUE(CheckOf(log).found()) << op << ": what it chooses may be wrong";
  }
}

TEST(Masks, WhoAsksWhetherANanIsThereDoesNotUseIt) {
  Log log = NanInTwoRows();
  log.Row("aten.eq.Tensor", {0, 1}, "3 3");
  log.Row("aten.abs.default", {NAN, 2}, "3");
  log.Row("aten.ne.Scalar", {1, 1}, "5");
  log.Slots()[3].dtype = log.Slots()[5].dtype = layout::Dtype::kInt32;
  EXPECT_TRUE(CheckOf(log).found()) << "and then does nothing about it";
  log.Row("aten.where.self", {0, 2}, "3 4");
  const Check check = CheckOf(log);
  EXPECT_FALSE(check.found());
  log.Row("aten.mul.Tensor", {NAN, 2}, "5");
  EXPECT_TRUE(CheckOf(log).found());
}

TEST(Masks, NanOfPaddingIsFollowedToWhereNobodyKnowsTheRows) {
  Log log;
  log.Row("input", {1, 2, NAN, NAN});
  log.Row("padding", {NAN, NAN}, "1");
  log.Row("aten.flip.default", {NAN, NAN, 2, 1}, "1");
  const Check check = CheckOf(log);
  EXPECT_FALSE(check.found());
  EXPECT_FALSE(check.complete()) << "the real rows may have it";
  EXPECT_EQ(FindingOf(check, FindingKind::kRowsNotKnown)->slot, 2u);
  log.Row("aten.exp.default", {2, 1}, "3");
  EXPECT_TRUE(CheckOf(log).complete()) << "nothing has it in the end";
  log.Row("aten.add.Tensor", {NAN, NAN, NAN, NAN}, "1 3");
  log.Row("padding", {NAN, NAN}, "5");
  EXPECT_EQ(CheckOf(log).first->slot, 4u) << "real rows have it";
}

TEST(Masks, ANumberMayMeanAnotherRowInAnotherCall) {
  MemorySource calls;
  const auto add = [&](const std::string& op, std::uint64_t call,
                       const std::vector<float>& values) {
    const std::size_t slot = calls.AddSlot("row" + std::to_string(calls.slots().size()), {2});
    calls.Slots()[slot].graph_id = 0;
    calls.Slots()[slot].in_body = true;
    calls.Slots()[slot].op = op;
    calls.Add(slot, call, values);
    return slot;
  };
  add("1 input", 1, {-1, 1});
  add("2 aten.sqrt.default 1", 1, {NAN, 1});
  add("1 input", 2, {1, 1});
  add("2 aten.sqrt.default 1", 2, {1, 1});
  add("3 aten.where.self 2", 2, {1, 1});
  EXPECT_TRUE(CheckOf(calls).found()) << "where() read another row";
  add("3 aten.where.self 2", 1, {0, 1});
  EXPECT_FALSE(CheckOf(calls).found());
}

TEST(Masks, GradientsOfAStepThatTheGradScalerSkippedAreANote) {
  Log log;
  log.Row("aten.mm.default", {1, 2});
  log.Row("aten.mm.default", {kInf, NAN}, "1");
  log.Slots()[1].probe = "bwd/net/mm_0";
  log.Row("aten._amp_foreach_non_finite_check_and_unscale_.default", {1}, "2");
  log.Slots()[2].probe = "fwd/_amp_foreach_non_finite_check_and_unscale__0.found_inf";
  const Check check = CheckOf(log);
  EXPECT_FALSE(check.found());
  EXPECT_EQ(FindingOf(check, FindingKind::kSkipped)->count, 2u);
  log.Change(1, 2, {3e38F, 1});
  EXPECT_FALSE(CheckOf(log).found()) << "its scale is as large as it can be";
  log.Change(1, 2, {kInf, NAN});
  log.Change(2, 2, {0});
  EXPECT_EQ(CheckOf(log).first->snapshot.key.replay, 2u) << "that step was not skipped";
  log.Change(0, 1, {NAN, 2});
  EXPECT_EQ(CheckOf(log).first->slot, 0u) << "what the forward pass computed is no gradient";
}

void LetGo(Log* log, std::size_t slot) {
  log->Remove(slot, 1);
  log->gaps.push_back(
      {.slot = slot, .count = 1, .after_replay = 0, .before_replay = 2, .cause = "no longer kept"});
}

TEST(Masks, ANanWhoseReaderIsNoLongerHereIsNeitherFoundNorNothing) {
  Log log = NanInTwoRows();
  log.Row("aten.where.self", {2, 2}, "3");
  for (const std::size_t slot : {1u, 2u}) log.Change(slot, 2, {1, 2});
  EXPECT_FALSE(CheckOf(log).found());
  EXPECT_TRUE(CheckOf(log).complete());
  LetGo(&log, 3);
  const Check check = CheckOf(log);
  EXPECT_FALSE(check.found());
  EXPECT_FALSE(check.first);
  EXPECT_EQ(check.may_be_excused(), 2u) << "also what the row is made of";
  EXPECT_FALSE(check.complete());
  log.Row("aten.exp.default", {NAN, 2}, "3");
  EXPECT_TRUE(CheckOf(log).found()) << "a row that is here inherits it";
}

TEST(Masks, AnOpLogTellsARowThatMayHaveAnExcuseAsOpen) {
  Log log = NanInTwoRows();
  log.Row("aten.where.self", {2, 2}, "3");
  LetGo(&log, 3);
  ASSERT_FALSE(CheckOf(log).found());
  ASSERT_FALSE(CheckOf(log).complete());
  std::vector<std::string> others;
  const Result<OpLog> read = ReadOpLog(log, {.replay = 1}, &others);
  ASSERT_TRUE(read.ok()) << read.error().message;
  const Result<LogExcuses> excuses = ExcusesOfLog(log, *read);
  ASSERT_TRUE(excuses.ok());
  EXPECT_EQ(excuses->open, (std::set<std::uint32_t>{2, 3})) << "as `check` is inconclusive of it";
  EXPECT_EQ(excuses->awaiting, excuses->open);
  EXPECT_TRUE(excuses->excused.empty());
}

TEST(Masks, ANanIsFoundThoughRowsThatDoNotReadItAreNoLongerHere) {
  Log log = NanInTwoRows();
  log.Row("aten.relu.default", {1, 1}, "1");
  LetGo(&log, 3);
  EXPECT_TRUE(CheckOf(log).found());
}

TEST(Masks, ANanThatTheDaemonSawAndIsNotHereIsJudgedByTheRowsAroundIt) {
  Log log = NanInTwoRows();
  log.Row("aten.where.self", {2, 2}, "3");
  log.findings = {{.slot = 1, .kind = layout::FindingKind::kNan, .replay = 1, .count = 1},
                  {.slot = 2, .kind = layout::FindingKind::kNan, .replay = 1, .count = 1}};
  for (const std::size_t slot : {1u, 2u}) {
    LetGo(&log, slot);
    log.Change(slot, 2, {1, 2});
  }
  EXPECT_FALSE(CheckOf(log).found()) << "where() left it out";
  EXPECT_FALSE(CheckOf(log).complete());
  LetGo(&log, 3);
  EXPECT_FALSE(CheckOf(log).found());
  EXPECT_EQ(CheckOf(log).may_be_excused(), 2u);
  log.Row("aten.exp.default", {NAN, 2}, "3");
  EXPECT_TRUE(CheckOf(log).first_told);
}

TEST(Masks, AGradientIsNotFoundWhereNobodyKnowsWhetherTheStepWasSkipped) {
  Log log;
  log.Row("aten.mm.default", {1, 2});
  log.Row("aten.mm.default", {kInf, NAN}, "1");
  log.Slots()[1].probe = "bwd/net/mm_0";
  log.Row("aten._amp_foreach_non_finite_check_and_unscale_.default", {1}, "2");
  log.Slots()[2].probe = "fwd/_amp_foreach_non_finite_check_and_unscale__0.found_inf";
  LetGo(&log, 2);
  const Check check = CheckOf(log);
  EXPECT_FALSE(check.found());
  EXPECT_EQ(FindingOf(check, FindingKind::kMayHaveOne)->count, 1u);
  EXPECT_EQ(FindingOf(check, FindingKind::kSkipped)->count, 1u);
  EXPECT_FALSE(check.complete());
}

TEST(Masks, MinusInfOfAMaskThatIsNoLongerHereIsNotFound) {
  Log log;
  AddAttention(&log);
  LetGo(&log, 2);
  const Check check = CheckOf(log);
  EXPECT_FALSE(check.found());
  EXPECT_EQ(FindingOf(check, FindingKind::kMayHaveOne)->slot, 3u);
  EXPECT_FALSE(check.complete());
}

TEST(Masks, ARowOfTheNewestCallMayStillCome) {
  Log log = NanInTwoRows();
  for (const std::size_t slot : {1u, 2u}) log.Change(slot, 1, {1, 2});
  log.Row("aten.where.self", {2, 2}, "3");
  log.Remove(3, 2);
  EXPECT_TRUE(CheckOf(log).found());
  log.description.running = {""};  // as the slots have no uuid
  EXPECT_FALSE(CheckOf(log).found());
  EXPECT_FALSE(CheckOf(log).complete());
}

TEST(Masks, ValuesOfAMaskWhoseShapeVariesFromCallToCallAreNoFinding) {
  Log log;
  const auto in_calls = [&log](std::size_t slot) {
    log.Slots()[slot].graph_id = 0;
    log.Slots()[slot].in_body = true;
    return slot;
  };
  const std::size_t value = in_calls(log.AddSlot("fwd/masked_fill_0.value", {2}));
  std::uint64_t call = 0;
  for (const auto& shape : std::vector<std::vector<std::uint64_t>>{{2}, {2, 1}, {1, 2}}) {
    const std::size_t row = in_calls(log.AddSlot("fwd/masked_fill_0", shape));
    log.Slots()[row].op = "1 aten.masked_fill.Scalar";
    log.Add(row, ++call, {-kInf, 1});
    log.Add(value, call, {-kInf, 1});
  }
  EXPECT_FALSE(CheckOf(log).found());
  log.Add(value, 4, {-kInf, 1});  // no row is of this call
  EXPECT_TRUE(CheckOf(log).found());
}

TEST(Masks, WhatCheckExcusesRanksExcusesToo) {
  Log log;
  log.Row("aten.mm.default", {1, 2});
  log.Row("aten.mm.default", {kInf, NAN}, "1");
  log.Slots()[1].probe = "bwd/net/mm_0";
  log.Row("aten._amp_foreach_non_finite_check_and_unscale_.default", {1}, "2");
  log.Slots()[2].probe = "fwd/_amp_foreach_non_finite_check_and_unscale__0.found_inf";
  const std::size_t value = log.AddSlot("bwd/net/mm_0.value", {2});
  log.Add(value, 1, {kInf, NAN});
  log.Add(value, 2, {kInf, NAN});
  for (const std::size_t slot : {std::size_t{1}, value}) {
    source::Finding told;
    told.kind = layout::FindingKind::kNan;
    told.slot = slot;
    told.replay = 1;
    log.findings.push_back(told);
  }
  const auto first_of = [&log] {
    RankFold fold({});
    EXPECT_TRUE(fold.Add(log, "a.cgrec").ok());
    const RanksReport report = fold.Finish();
    EXPECT_EQ(report.rows.size(), 1u);
    return report.rows.front().process.first_nonfinite;
  };
  EXPECT_FALSE(CheckOf(log).found());
  EXPECT_EQ(first_of(), std::nullopt);
  log.findings.front().replay = 9;  // of which nothing is here
  ASSERT_TRUE(first_of());
  EXPECT_EQ(first_of()->replay, 9u);
  log.findings.resize(1);
  log.findings.front().replay = 1;
  log.findings.front().serial = 7;
  log.serials[{1, 1}] = 7;
  log.Slots()[1].in_body = true;
  EXPECT_EQ(first_of(), std::nullopt);
  log.findings.front().serial = 6;
  ASSERT_TRUE(first_of()) << "another iteration of that replay, which is not here";
  EXPECT_EQ(first_of()->replay, 1u);
  log.findings.clear();
  log.Change(2, 2, {0});
  ASSERT_TRUE(first_of()) << "that step was not skipped";
  EXPECT_EQ(first_of()->replay, 2u);
}

// --- what is made between two calls --------------------------------------------------------------

// Eager calls, each of which has the rows that are added: two of a model, and what the program
// makes behind it. `values` of each call.
class Calls : public MemorySource {
 public:
  std::size_t Row(const std::string& name, const std::string& op, const std::string& inputs,
                  const std::vector<std::vector<float>>& values) {
    const std::size_t slot = AddSlot(name, {values.front().size()});
    source::Slot& row = Slots()[slot];
    row.graph_id = 0;
    row.in_body = true;
    row.op = std::to_string(slot + 1) + " " + op + (inputs.empty() ? "" : " " + inputs);
    for (std::size_t call = 1; call <= values.size(); ++call) Add(slot, call, values[call - 1]);
    return slot;
  }
};

constexpr std::size_t kRead = 0, kResult = 1, kMade = 3;

// x[mask] = nan behind each call; the next one reads x.
Calls NanForTheNextCall() {
  Calls calls;
  calls.Row("in/net/nan_to_num_0.self", "input", "", {{1, 2}, {NAN, 3}, {5, NAN}});
  calls.Row("fwd/net/nan_to_num_0", "aten.nan_to_num.default", "1", {{1, 2}, {0, 3}, {5, 0}});
  calls.Row("in/index_put__0.values", "input", "", {{NAN}, {NAN}, {NAN}});
  calls.Row("fwd/index_put__0", "aten.index_put_.default", "3", {{NAN, 3}, {5, NAN}, {NAN, 7}});
  return calls;
}

TEST(Masks, ANanThatTheNextCallLeavesOutIsANote) {
  Calls calls = NanForTheNextCall();
  const Check check = CheckOf(calls);
  EXPECT_FALSE(check.found()) << "also not of the last one, which nothing reads";
  EXPECT_TRUE(check.complete());
  EXPECT_NE(FindingOf(check, FindingKind::kAbsorbed), nullptr) << "it is not hidden";
}

TEST(Masks, ANanThatReachesAResultOfTheNextCallIsTheVerdict) {
  Calls calls = NanForTheNextCall();
  calls.Change(kResult, 2, {NAN, 3});
  const Check check = CheckOf(calls);
  ASSERT_TRUE(check.first);
  EXPECT_EQ(check.first->snapshot.key.replay, 1u) << "where it was made";
}

// Likewise, but an op makes the NaN of finite numbers.
Calls NanThatIsMadeForTheNextCall() {
  Calls calls = NanForTheNextCall();
  for (const std::uint64_t call : {1, 2, 3}) calls.Change(2, call, {0});
  calls.Slots()[kMade].op = "4 aten.div.Tensor 3";
  return calls;
}

TEST(Masks, WhetherALostInputOfTheNextCallHasTheNanIsNotKnown) {
  Calls calls = NanThatIsMadeForTheNextCall();
  calls.Change(kMade, 3, {6, 7});
  EXPECT_FALSE(CheckOf(calls).found());
  calls.Remove(kRead, 2);
  calls.gaps.push_back({.slot = kRead, .count = 1, .after_replay = 1, .before_replay = 3});
  const Check check = CheckOf(calls);
  EXPECT_FALSE(check.found());
  EXPECT_FALSE(check.complete());
  EXPECT_GE(check.may_be_excused(), 1u);
}

TEST(Masks, ANanThatAnOpMadeAndNothingReadsIsTheVerdict) {
  Calls calls = NanThatIsMadeForTheNextCall();
  EXPECT_EQ(CheckOf(calls).first->snapshot.key.replay, 3u);
}

TEST(Masks, ANanThatIsTheResultOfAModuleIsTheVerdict) {
  Calls calls = NanForTheNextCall();
  calls.Slots()[kMade].probe = "fwd/net/index_put__0";
  EXPECT_TRUE(CheckOf(calls).found());
}

TEST(Masks, ANumberThatIsNotAlwaysNanIsNoConstantOfTheProgram) {
  Calls calls = NanForTheNextCall();
  calls.Change(2, 1, {4});
  calls.Change(kMade, 1, {4, 3});
  calls.Change(kRead, 2, {4, 3});
  EXPECT_EQ(CheckOf(calls).first->snapshot.key.replay, 3u);
}

}  // namespace
}  // namespace cgdebug::analysis
