#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "client/analysis/check/check.h"
#include "client/analysis/gaps.h"
#include "client/analysis/ops/op_diff.h"
#include "client/analysis/ops/op_log.h"
#include "client/analysis/ops/op_runs.h"
#include "tests/support/analysis/memory_source.h"

namespace cgdebug::analysis {
namespace {

using ::testing::HasSubstr;

numerics::Stats StatsWith(double value) {
  numerics::Stats stats;
  stats.count = 1;
  stats.min = stats.max = stats.mean = stats.abs_max = stats.l1 = stats.l2 = stats.rms = value;
  stats.std = 0;
  stats.has_hash = true;
  stats.hash = static_cast<std::uint64_t>(value * 1000);
  return stats;
}

OpRow Row(std::uint32_t number, const std::string& name, const std::string& op,
          const std::vector<std::uint32_t>& inputs, double value) {
  return {.number = number,
          .name = name,
          .op = op,
          .inputs = inputs,
          .type = "f32[1]",
          .dtype = layout::Dtype::kFloat32,
          .shape = {1},
          .stats = StatsWith(value)};
}

// x, a = f(x), b = g(a), c = h(x, b)
OpLog Log() {
  OpLog log;
  log.rows = {Row(1, "in/x", "input", {}, 1), Row(2, "fwd/m/f_0", "aten.f.default", {1}, 2),
              Row(3, "fwd/m/g_0", "aten.g.default", {2}, 3),
              Row(4, "fwd/h_0", "aten.h.default", {1, 3}, 4)};
  return log;
}

std::string FirstOf(const OpLog& a, const OpLog& b) {
  const OpDiff diff = DiffOpLogs(a, b);
  return diff.first_fault ? a.rows[diff.pairs[*diff.first_fault].a].name : "";
}

TEST(OpText, HasTheNumberTheOpAndWhatItRead) {
  const std::optional<OpText> text = ParseOpText("17 aten.mm.default 3 5");
  ASSERT_TRUE(text);
  EXPECT_EQ(text->number, 17u);
  EXPECT_EQ(text->op, "aten.mm.default");
  EXPECT_EQ(text->inputs, (std::vector<std::uint32_t>{3, 5}));
  EXPECT_TRUE(text->is_covered);
}

TEST(OpText, SaysWhereNotAllInputsAreRows) {
  EXPECT_FALSE(ParseOpText("2 aten.mm.default 1 ?")->is_covered);
  EXPECT_FALSE(ParseOpText("2 aten.mm.default 1 ...")->is_covered);
}

TEST(OpText, AForeignOrDamagedTextIsNoRow) {
  for (const char* text : {"", "mm", "0 mm", "-1 mm", "17", "17 ", "99999999999 mm", "1x mm"}) {
    EXPECT_FALSE(ParseOpText(text)) << text;
  }
}

// m = mm(x), s = scale(m), r = relu(s), n = mm(r); B has scale and relu in one kernel.
OpLog Plain(double scaled, double result) {
  OpLog log;
  log.rows = {Row(1, "in/x", "input", {}, 1), Row(2, "fwd/m/mm_0", "aten.mm.default", {1}, 2),
              Row(3, "fwd/m/mul_0", "aten.mul.Tensor", {2}, scaled),
              Row(4, "fwd/m/relu_0", "aten.relu.default", {3}, scaled + 1),
              Row(5, "fwd/n/mm_0", "aten.mm.default", {4}, result)};
  return log;
}

OpLog Fused(double written, double result) {
  OpLog log;
  log.rows = {Row(1, "in/x", "input", {}, 1), Row(2, "fwd/mm_0", "aten.mm.out", {1}, 2),
              Row(3, "fwd/fused_0.out_ptr0", "triton.fused.default", {2}, written),
              Row(4, "fwd/mm_1", "aten.mm.out", {3}, result)};
  return log;
}

TEST(OpDiff, AFusedKernelStandsForTheLastOfItsOpsWhereItWroteTheSame) {
  const OpDiff diff = DiffOpLogs(Plain(5, 7), Fused(6, 7));
  ASSERT_EQ(diff.pairs.size(), 4u);
  EXPECT_EQ(diff.pairs[2].a, 3u);
  EXPECT_EQ(diff.pairs[2].b, 2u);
  EXPECT_EQ(diff.different, 0u);
  EXPECT_EQ(diff.verdict(), OpDiff::Verdict::kInconclusive);  // over the row that only A has
  EXPECT_FALSE(diff.first_suspect);
}

TEST(OpDiff, AFusedKernelStandsForTheOpWhoseSumsWereAddedUpInAnotherOrder) {
  OpLog fused = Fused(6, 7);
  fused.rows[2].stats->l1 *= 1 + 1e-7;
  const OpDiff diff = DiffOpLogs(Plain(5, 7), fused);
  ASSERT_EQ(diff.pairs.size(), 4u);
  EXPECT_EQ(diff.pairs[2].b, 2u);
  EXPECT_EQ(diff.different, 0u);
}

TEST(OpDiff, AFaultBetweenRowsThatHaveACounterpartIsBracketed) {
  const OpLog a = Plain(5, 7), b = Fused(6.5, 7.5);
  const OpDiff diff = DiffOpLogs(a, b);
  EXPECT_EQ(diff.verdict(), OpDiff::Verdict::kDifferent);
  EXPECT_FALSE(diff.first_fault);
  ASSERT_TRUE(diff.first_suspect);
  EXPECT_EQ(a.rows[diff.pairs[*diff.first_suspect].a].name, "fwd/n/mm_0");
  EXPECT_EQ(diff.suspects_a, (std::vector<std::size_t>{2, 3}));
  EXPECT_EQ(diff.suspects_b, (std::vector<std::size_t>{2}));
  EXPECT_NE(
      OpDiffAnswer(a, b, diff)
          .Text()
          .find("  it is made of what only A has: #3 fwd/m/mul_0, #4 fwd/m/relu_0; and of what "
                "only B has: #3 fwd/fused_0.out_ptr0\n  what these read agrees, so the fault "
                "is in one of them or in #5"),
      std::string::npos)
      << OpDiffAnswer(a, b, diff).Text();
  EXPECT_EQ(OpDiffJson(a, b, diff)["suspects_b"][0], "fwd/fused_0.out_ptr0");
}

TEST(OpDiff, ARowThatOnlyOneSideHasIsNamedFromBothSides) {
  const OpLog right = Log();
  OpLog wrong = Log();  // c = h(x, roll(b))
  wrong.rows.insert(wrong.rows.end() - 1, Row(4, "fwd/roll_0", "aten.roll.default", {3}, 8));
  wrong.rows.back().number = 5;
  wrong.rows.back().inputs = {1, 4};
  wrong.rows.back().stats = StatsWith(5);
  for (const bool is_wrong_first : {false, true}) {
    const OpLog& a = is_wrong_first ? wrong : right;
    const OpLog& b = is_wrong_first ? right : wrong;
    const OpDiff diff = DiffOpLogs(a, b);
    EXPECT_FALSE(diff.first_fault) << "what it read in the other one does not agree";
    const std::string text = OpDiffAnswer(a, b, diff).Text();
    EXPECT_THAT(text, HasSubstr(is_wrong_first ? "first divergence: #5 fwd/h_0"
                                               : "first divergence: #4 fwd/h_0"));
    EXPECT_THAT(text, HasSubstr(fmt::format("it is made of what only {} has: #4 fwd/roll_0",
                                            is_wrong_first ? "A" : "B")));
  }
}

TEST(OpDiff, ArgumentsThatDifferAreNamedAndNumbersOfRowsAreNone) {
  OpLog a = Log(), b = Log();
  b.rows[2].stats = StatsWith(9);
  a.rows[2].details = R"({"args":"self=#2.t(), dim=1, group=<at 0x7f01>"})";
  b.rows[2].details = R"({"args":"self=#12.t(), dim=0, group=<at 0x8f02>"})";
  const auto text = [&] { return OpDiffAnswer(a, b, DiffOpLogs(a, b)).Text(); };
  EXPECT_THAT(text(), HasSubstr("\n  its arguments differ: dim=1 against dim=0\n"));
  b.rows[2].details = R"({"args":"self=#12.t(), dim=1, group=<at 0x8f02>"})";
  EXPECT_THAT(text(), ::testing::Not(HasSubstr("arguments differ")));
}

TEST(OpDiff, NothingIsBracketedByWhatDiffersItselfOrIsNotShown) {
  OpLog b = Fused(6.5, 7.5);
  b.rows[1].stats = StatsWith(2.5);  // differs before the kernel, and says so
  EXPECT_FALSE(DiffOpLogs(Plain(5, 7), b).first_suspect);
  OpLog hidden = Fused(6.5, 7.5);
  hidden.rows[2].is_covered = false;
  EXPECT_FALSE(DiffOpLogs(Plain(5, 7), hidden).first_suspect);
}

TEST(OpDiff, BehindADifferenceThatMayBeRoundingTheFirstThatIsMoreIsNamed) {
  const OpLog a = Plain(5, 7);
  OpLog b = Fused(6.5, 7.5);
  b.rows[1].stats = StatsWith(2.001);
  const OpDiff diff = DiffOpLogs(a, b);
  EXPECT_EQ(FirstOf(a, b), "fwd/m/mm_0");
  ASSERT_TRUE(diff.first_large);
  EXPECT_EQ(a.rows[diff.pairs[*diff.first_large].a].name, "fwd/n/mm_0");
  EXPECT_EQ(diff.large_a, (std::vector<std::size_t>{2, 3}));
  EXPECT_EQ(diff.large_b, (std::vector<std::size_t>{2}));
  EXPECT_THAT(OpDiffAnswer(a, b, diff).Text(),
              HasSubstr("  by its statistics that may be rounding\n"
                        "first difference that is more: #5 fwd/n/mm_0"));
  b.rows[3].stats = StatsWith(7.001);
  EXPECT_FALSE(DiffOpLogs(a, b).first_large);
  EXPECT_THAT(OpDiffAnswer(a, b, DiffOpLogs(a, b)).Text(),
              HasSubstr("and so may all that differs behind it"));
  b.rows[1].stats = StatsWith(2.5);
  EXPECT_FALSE(DiffOpLogs(a, b).may_be_rounding);
}

TEST(OpDiff, AWeightThatOneSideTransposesIsNoLargeDifference) {
  OpLog a = Log(), b = Log();
  b.rows[0].shape = {1, 1};
  b.rows[0].type = "f32[1,1]";
  EXPECT_TRUE(DiffOpLogs(a, b).may_be_rounding);
  b.rows[0].stats = StatsWith(9);
  EXPECT_FALSE(DiffOpLogs(a, b).may_be_rounding);
}

TEST(OpText, TellsOfTheNodesOfItsOpAndOfThoseThatNobodyKnows) {
  const std::optional<OpText> text =
      ParseOpText("17 aten.mm.default +2 -1 <3:flash_fwd_kernel,memset >1:memcpy 3 5");
  ASSERT_TRUE(text);
  EXPECT_TRUE(text->is_covered);
  EXPECT_EQ(text->inputs, (std::vector<std::uint32_t>{3, 5}));
  EXPECT_EQ(text->explained, 2u);
  EXPECT_EQ(text->left_out, 1u);
  ASSERT_TRUE(text->unseen_before && text->unseen_after);
  EXPECT_EQ(text->unseen_before->count, 3u);
  EXPECT_EQ(text->unseen_before->names, "flash_fwd_kernel, memset");
  EXPECT_EQ(text->unseen_after->names, "memcpy");
}

TEST(OpText, DamagedWordsAboutNodesCountAsInputsThatAreNotShown) {
  for (const char* word : {"+", "-x", "<", "<:a", ">0:a", "+99999999999"}) {
    const std::optional<OpText> text = ParseOpText(std::string("2 mm ") + word);
    ASSERT_TRUE(text) << word;
    EXPECT_FALSE(text->is_covered) << word;
  }
}

UnseenNodes Unseen(std::uint32_t after, std::uint32_t before) {
  return {.after = after, .before = before, .count = 3, .names = "flash_fwd_kernel"};
}

// A job with a graph of two rows, two eager runs, and what their logs do not show.
testing_support::MemorySource JobWithGaps() {
  testing_support::MemorySource source;
  const auto add = [&](std::uint64_t graph, const std::string& probe, const std::string& op) {
    const std::size_t slot = source.AddSlot(probe, {1});
    source.Slots()[slot].graph_id = graph;
    source.Slots()[slot].op = op;
    source.Add(slot, 1, {1});
  };
  add(0, "fwd/a_0", "1 aten.a.default");
  add(0, "ops/gap", "gap log the first run has a gap");
  add(0, "fwd/b_0", "1 aten.b.default");
  add(7, "fwd/c_0", "1 aten.c.default");
  add(7, "fwd/d_0", "2 aten.d.default 1");
  add(0, "ops/gap", "gap 7 the graph has a gap");
  add(0, "ops/gap", "gap job capture 3 has no log");
  add(0, "ops/gap", "gap 8 another graph has a gap");
  return source;
}

std::vector<std::string> GapsOf(const std::string& graph) {
  testing_support::MemorySource source = JobWithGaps();
  std::vector<std::string> others;
  const Result<OpLog> log = ReadOpLog(source, {.graph = graph}, &others);
  EXPECT_TRUE(log.ok()) << log.error().message;
  return log.ok() ? log->gaps : std::vector<std::string>();
}

TEST(OpGaps, BelongToTheirLogAndThoseOfTheJobToWhoeverChoseNone) {
  using Gaps = std::vector<std::string>;
  EXPECT_EQ(GapsOf("7"), Gaps{"the graph has a gap"});
  EXPECT_EQ(GapsOf("eager#1"), Gaps{"the first run has a gap"});
  EXPECT_EQ(GapsOf("eager#2"), Gaps());
  EXPECT_EQ(GapsOf("eager"), Gaps()) << "the newest";
  EXPECT_EQ(GapsOf(""), (Gaps{"the graph has a gap", "capture 3 has no log"}));
}

// A log of two rows that keeps replays 4 to 6 of both, and replay 9 of the second.
testing_support::MemorySource LogOfSomeReplays() {
  testing_support::MemorySource source;
  for (const char* op : {"1 aten.a.default", "2 aten.b.default 1"}) {
    const std::size_t slot = source.AddSlot(op, {1});
    source.Slots()[slot].op = op;
    for (const std::uint64_t replay : {4, 5, 6}) source.Add(slot, replay, {1});
  }
  source.Add(1, 9, {1});
  return source;
}

TEST(ReadOpLog, OfAReplayThatIsNotKeptItSaysWhichAreAndWhatToType) {
  const auto error = [](const OpLogChoice& choice) {
    testing_support::MemorySource source = LogOfSomeReplays();
    std::vector<std::string> others;
    const Result<OpLog> log = ReadOpLog(source, choice, &others);
    return log.ok() ? "" : log.error().message;
  };
  EXPECT_EQ(error({.replay = 2, .typed = {"job"}}),
            "memory has no replay 2 of the op log of capture 1; it keeps 4..6, 9. "
            "Type: cgdebug-cli ops 'job@4'");
  EXPECT_EQ(error({.graph = "1", .replay = 7, .typed = {"job", "@g:1"}}),
            "memory has no replay 7 of the op log of capture 1; it keeps 4..6, 9. "
            "Type: cgdebug-cli ops 'job@g:1@9'");
  EXPECT_TRUE(error({.replay = 12, .typed = {"job"}}).ends_with("'job@9'"));
  EXPECT_TRUE(error({.replay = 12, .typed = {"live", "", " -s job --ranks 3"}})
                  .ends_with("'live@9' -s job --ranks 3"));
  EXPECT_TRUE(error({.replay = -20, .typed = {"job"}}).ends_with("'job@4'"));
  EXPECT_EQ(error({.replay = 9}), "");
}

// Three eager calls: 4 and 9 have two rows, 7 has three of its own; each has a step.
testing_support::MemorySource LogOfCalls() {
  testing_support::MemorySource source;
  const auto add = [&](const char* probe, const char* op, std::vector<std::uint64_t> calls) {
    const std::size_t slot = source.AddSlot(probe, {1});
    source.Slots()[slot].graph_id = 0;
    source.Slots()[slot].in_body = true;
    source.Slots()[slot].op = op;
    for (const std::uint64_t call : calls) {
      source.Add(slot, call, {static_cast<float>(call)}, static_cast<std::int64_t>(call) * 10);
    }
  };
  add("fwd/a_0", "1 aten.a.default", {4, 9});
  add("fwd/b_0", "2 aten.b.default 1", {4, 9});
  add("fwd/a_0", "1 aten.a.default", {7});
  add("fwd/c_0", "2 aten.c.default 1", {7});
  add("fwd/b_0", "3 aten.b.default 2", {7});
  add("ops/gap", "gap log of call 7 alone", {7});
  return source;
}

TEST(ReadOpLog, TheCallsOfAProcessAreOneLogWhoseRowsMayDiffer) {
  const auto read = [](const OpLogChoice& choice) {
    testing_support::MemorySource source = LogOfCalls();
    std::vector<std::string> others;
    const Result<OpLog> log = ReadOpLog(source, choice, &others);
    EXPECT_TRUE(log.ok()) << log.error().message;
    EXPECT_TRUE(others.empty());
    std::string text = log->RunText() + ", step " + std::to_string(log->step);
    for (const OpRow& row : log->rows) text += ", " + row.name;
    return text + (log->gaps.empty() ? "" : ", " + log->gaps.front());
  };
  EXPECT_EQ(read({}), "call 9, step 90, fwd/a_0, fwd/b_0");
  EXPECT_EQ(read({.replay = -2}), "call 7, step 70, fwd/a_0, fwd/c_0, fwd/b_0, of call 7 alone");
  EXPECT_EQ(read({.graph = "eager", .replay = 4}), "call 4, step 40, fwd/a_0, fwd/b_0");
}

TEST(ReadOpLog, OfACallThatIsNotKeptItSaysWhichAre) {
  testing_support::MemorySource source = LogOfCalls();
  std::vector<std::string> others;
  const Result<OpLog> log = ReadOpLog(source, {.replay = 8, .typed = {"job"}}, &others);
  ASSERT_FALSE(log.ok());
  EXPECT_EQ(log.error().message,
            "memory has no call 8 in its op log; it keeps 4, 7, 9. Type: cgdebug-cli ops "
            "'job@call:9'");
}

TEST(DiffOpRuns, PairsCallsByTheirNumbers) {
  testing_support::MemorySource a = LogOfCalls(), b = LogOfCalls();
  const Result<OpRunsDiff> same = DiffOpRuns(a, "", b, "");
  ASSERT_TRUE(same.ok());
  EXPECT_EQ(same->pairs, 3u);
  EXPECT_EQ(same->diff.different, 0u);
  b.Change(3, 7, {100});
  const Result<OpRunsDiff> runs = DiffOpRuns(a, "", b, "");
  ASSERT_TRUE(runs.ok());
  EXPECT_EQ(runs->verdict(), OpDiff::Verdict::kDifferent);
  EXPECT_EQ(runs->a.RunText(), "call 7");
}

// `calls` calls of two rows each, of an eager log or of the graph 5.
testing_support::MemorySource TwoRows(std::uint64_t calls, std::uint64_t graph = 0) {
  testing_support::MemorySource source;
  for (const auto& [probe, op] :
       {std::pair("fwd/a_0", "1 aten.a.default"), std::pair("fwd/b_0", "2 aten.b.default 1")}) {
    const std::size_t slot = source.AddSlot(probe, {1});
    source.Slots()[slot].graph_id = graph;
    source.Slots()[slot].in_body = graph == 0;
    source.Slots()[slot].op = op;
    for (std::uint64_t call = 1; call <= calls; ++call) source.Add(slot, call, {1});
  }
  return source;
}

std::string DiffText(testing_support::MemorySource a, testing_support::MemorySource b) {
  const Result<OpRunsDiff> runs = DiffOpRuns(a, "", b, "");
  return runs.ok() ? OpRunsAnswer(*runs).Text() : runs.error().message;
}

TEST(DiffOpRuns, EqualRunsOfWhichNothingIsMissingAreTheSame) {
  EXPECT_EQ(DiffText(TwoRows(3), TwoRows(3)), "same: 6 rows compared in 3 replays, 0 differ");
  EXPECT_EQ(DiffText(TwoRows(3), TwoRows(3, 5)), "same: 6 rows compared in 3 replays, 0 differ");
}

TEST(DiffOpRuns, IsInconclusiveOverWhatEitherSideLacksAlsoIfBothLackIt) {
  using testing_support::MemorySource;
  const auto lacks_rows = [](MemorySource& source) {
    for (const std::size_t slot : {0u, 1u}) {
      source.Remove(slot, 2);
      source.gaps.push_back(
          {.slot = slot, .count = 1, .after_replay = 1, .before_replay = 3, .cause = "dropped"});
    }
  };
  const auto is_cut_off = [](MemorySource& source) { source.description.is_cut_off = true; };
  const auto goes_on = [](MemorySource& source) { source.description.is_growing = true; };
  const auto is_damaged = [](MemorySource& source) { source.description.damage = {"a hole"}; };
  const auto is_unread = [](MemorySource& source) { source.description.unread = {"b.cgrec"}; };
  const auto was_refused = [](MemorySource& source) {
    source.description.not_seen = {
        {.what = {.kind = layout::NotSeenKind::kRefused, .count = 1, .name = "fwd/c_0"}}};
  };
  const auto has_thread = [](MemorySource& source) {
    source.Slots()[source.AddSlot("ops/gap", {1})].op = "gap job ops on thread 'x' are not shown";
  };
  const std::vector<std::pair<std::function<void(MemorySource&)>, std::string>> kinds = {
      {lacks_rows, "lacks 1 snapshot of fwd/a_0"},
      {is_cut_off, "ends early"},
      {goes_on, "is still being written"},
      {is_damaged, "a hole"},
      {is_unread, "b.cgrec"},
      {was_refused, "fwd/c_0"},
      {has_thread, "ops on thread 'x'"}};
  for (const auto& [make, text] : kinds) {
    for (const auto& [in_a, in_b] : {std::pair(true, true), {true, false}, {false, true}}) {
      MemorySource a = TwoRows(3), b = TwoRows(3);
      if (in_a) make(a);
      if (in_b) make(b);
      const std::string answer = DiffText(std::move(a), std::move(b));
      EXPECT_TRUE(answer.starts_with("inconclusive: ")) << answer;
      EXPECT_EQ(answer.find("not compared: A: ") != std::string::npos, in_a) << answer;
      EXPECT_NE(answer.find(text), std::string::npos) << answer;
    }
  }
}

TEST(ReadOpLog, OfARecordingThatEndsEarlyTheCallsThatWereUnderWayMayLackRows) {
  testing_support::MemorySource source = TwoRows(3);
  const auto gaps_of = [&](std::int64_t call) {
    std::vector<std::string> others;
    const Result<OpLog> log = ReadOpLog(source, {.replay = call, .is_call = true}, &others);
    return log.ok() ? log->gaps.size() : 99;
  };
  EXPECT_EQ(gaps_of(3), 0u);
  source.description.is_cut_off = true;
  EXPECT_EQ(gaps_of(3), 0u) << "of another rank";
  for (const std::size_t row : {0u, 1u}) source.accounts[row] = {.is_end_known = false};
  for (const std::size_t row : {0u, 1u}) source.serials[{row, 3}] = 100;
  source.timestamp_ns = 99;
  EXPECT_EQ(gaps_of(3), 1u);
  EXPECT_EQ(gaps_of(2), 0u);
  source.timestamp_ns = 101;  // of a row of call 2: another thread has it
  EXPECT_EQ(gaps_of(2), 1u);
}

TEST(ReadOpLog, WhatTheRowsOfOtherCallsTellIsNotMissingFromACall) {
  testing_support::MemorySource source = TwoRows(3);
  layout::NotSeen told{.count = 1, .of = 2, .calls = 1, .name = "op log rows"};
  source.description.not_seen = {{.of = {}, .what = told}};
  const auto missing_in = [&](std::uint64_t call) {
    std::vector<std::string> others;
    const OpLogChoice choice{.replay = static_cast<std::int64_t>(call), .is_call = true};
    const Result<OpLog> log = ReadOpLog(source, choice, &others);
    Scope scope;
    scope.first_replay = scope.last_replay = call;
    const GapSummary gaps = SummarizeGaps(source, scope);
    return log.ok() ? std::pair(log->gaps.size(), gaps.sentences.size()) : std::pair(99ul, 99ul);
  };
  EXPECT_EQ(missing_in(1), std::pair(1ul, 1ul)) << "no row tells which call lacks it";
  const std::size_t gap = source.AddSlot("ops/gap", {1});
  source.Slots()[gap].op = "gap log tensors of complex64 are not shown";
  source.Slots()[gap].graph_id = 0;
  source.Slots()[gap].in_body = true;
  source.Add(gap, 2, {1});
  EXPECT_EQ(missing_in(1), std::pair(0ul, 0ul));
  EXPECT_EQ(missing_in(2), std::pair(1ul, 1ul));
  EXPECT_EQ(SummarizeGaps(source, Scope()).sentences.size(), 1u);
  source.description.not_seen[0].what.count = 2;  // and something that no row tells
  EXPECT_EQ(missing_in(1), std::pair(1ul, 1ul));
}

TEST(DiffOpRuns, AnEagerRunAndAGraphOfOtherCountsOfReplaysAreNeverTheSame) {
  const std::string answer = DiffText(TwoRows(2), TwoRows(4, 5));
  EXPECT_TRUE(answer.starts_with("inconclusive: 2 rows compared")) << answer;
  EXPECT_NE(answer.find("not compared: call 1 of A: A and B have other replays"), std::string::npos)
      << answer;
  EXPECT_NE(answer.find("not compared: replays 1..3 of capture of B"), std::string::npos) << answer;
}

TEST(TypedOf, NamesALiveJobByItsKeyIfNobodyNamedIt) {
  const OpLog log{.graph = "eager", .session = "job", .uuid = "3f2a91c0112233445566778899aabbcc"};
  EXPECT_EQ(TypedOf({"live", "", "", true}, log), "3f2a91c0");
  EXPECT_EQ(TypedOf({"live", "@g:eager", " --ranks 3", true}, log), "3f2a91c0@g:eager");
  EXPECT_EQ(TypedOf({"live", "", " -s job"}, log), "live");
  EXPECT_EQ(TypedOf({"job"}, log), "job");
  EXPECT_EQ(TypedOf({"live", "", "", true}, {.graph = "eager", .session = "job"}), "live");
}

TEST(ReadOpLog, TheReplayOfTheFirstNanIsNamedWithTheOneThatIsKept) {
  const auto kept = [](std::uint64_t nan) {
    testing_support::MemorySource source = LogOfSomeReplays();
    source.findings = {{.slot = 0, .kind = layout::FindingKind::kNan, .replay = nan}};
    std::vector<std::string> others;
    const Result<OpLog> log = ReadOpLog(source, {}, &others);
    EXPECT_TRUE(log.ok()) << log.error().message;
    EXPECT_EQ(log->nan_since, nan);
    return log->nan_kept;
  };
  EXPECT_EQ(kept(2), 4u);
  EXPECT_EQ(kept(5), 5u);
  EXPECT_EQ(kept(7), 9u);
  EXPECT_EQ(kept(10), 0u);
}

TEST(ChooseOpLog, AnyRowOfAnEagerRunNamesItWhateverCameLater) {
  const std::vector<OpLogHead> logs = {
      {.first_order = 1, .last_order = 640},
      {.graph_id = 7, .graph = "bs=8", .first_order = 641, .last_order = 700},
      {.first_order = 701, .last_order = 900}};
  std::vector<std::string> others;
  const auto chosen = [&](const std::string& graph) { return ChooseOpLog(logs, graph, &others); };
  EXPECT_EQ(chosen("eager.1"), 0u);
  EXPECT_EQ(chosen("eager.640"), 0u);
  EXPECT_EQ(chosen("eager.701"), 2u);
  EXPECT_EQ(chosen("eager.650"), std::nullopt) << "a row of a graph";
  EXPECT_EQ(chosen("eager"), 2u);
}

TEST(ChooseOpLog, TakesTheOneThatWasReplayedLastWhereNoneIsNamed) {
  const std::vector<OpLogHead> logs = {{.graph_id = 7, .graph = "bs=8", .last_timestamp_ns = 20},
                                       {.graph_id = 8, .graph = "bs=4", .last_timestamp_ns = 30},
                                       {.graph_id = 9, .graph = "bs=1"}};
  std::vector<std::string> others;
  EXPECT_EQ(ChooseOpLog(logs, "", &others), 1u);
  EXPECT_EQ(others, (std::vector<std::string>{"bs=8", "bs=1"}));
  EXPECT_EQ(ChooseOpLog(logs, "bs=1", &others), 2u);
  EXPECT_EQ(ChooseOpLog({logs[2], logs[2]}, "", &others), 1u) << "none: the newest capture";
}

TEST(OpGaps, MakeACheckInconclusiveAndAreNoProbes) {
  testing_support::MemorySource source = JobWithGaps();
  const Result<Check> check = RunCheck(source, {});
  ASSERT_TRUE(check.ok());
  EXPECT_EQ(check->slots, 4u);
  EXPECT_FALSE(check->found());
  EXPECT_FALSE(check->complete());
  EXPECT_EQ(check->missing, (std::vector<std::string>{"not logged: the first run has a gap",
                                                      "not logged: the graph has a gap",
                                                      "not logged: capture 3 has no log"}));
}

TEST(OpGaps, DoNotConcernACheckOfProbesAlone) {
  testing_support::MemorySource source = JobWithGaps();
  source.Add(source.AddSlot("act", {1}), 1, {1});
  CheckOptions options;
  options.scope.probes = *Selector::ParseList("act");
  const Result<Check> check = RunCheck(source, options);
  ASSERT_TRUE(check.ok());
  EXPECT_TRUE(check->complete());
}

TEST(OpGaps, ThatACallToldConcernACheckOfThatCall) {
  testing_support::MemorySource source = LogOfCalls();
  const auto missing = [&](std::uint64_t first, std::uint64_t last) {
    const Result<Check> check =
        RunCheck(source, {.scope = {.first_replay = first, .last_replay = last}});
    EXPECT_TRUE(check.ok());
    return check->missing;
  };
  EXPECT_EQ(missing(7, 7), std::vector<std::string>{"not logged: of call 7 alone"});
  EXPECT_EQ(missing(1, 9), missing(7, 7));
  EXPECT_EQ(missing(4, 4), std::vector<std::string>());
}

TEST(Coverage, NamesThePlaceOfWhatNoRowExplains) {
  EXPECT_EQ(Unseen(17, 18).Text(), "3 kernels between #17 and #18: flash_fwd_kernel");
  EXPECT_EQ(Unseen(0, 1).Text(), "3 kernels before #1: flash_fwd_kernel");
  EXPECT_EQ(Unseen(9, 0).Text(), "3 kernels after #9: flash_fwd_kernel");
  Coverage coverage{.is_known = true, .explained = 4};
  EXPECT_EQ(coverage.Gap(), "");
  coverage.unseen = {Unseen(1, 2), Unseen(3, 4)};
  EXPECT_EQ(coverage.nodes(), 10u);
  EXPECT_EQ(coverage.Gap(),
            "6 kernels that are in no row, in 2 places; the first are 3 kernels between #1 and #2: "
            "flash_fwd_kernel");
}

TEST(OpDiff, ARowIsNoFaultIfAnUnseenKernelMayHaveChangedWhatItRead) {
  OpLog b = Log();
  b.rows[2].stats = StatsWith(3.5);
  OpLog a = Log();
  a.coverage.unseen = {Unseen(2, 3)};
  EXPECT_EQ(FirstOf(a, b), "");
  EXPECT_NE(
      OpDiffAnswer(a, b, DiffOpLogs(a, b)).Text().find("no row shows 3 kernels between #2 and #3"),
      std::string::npos);
  // One that ran before its inputs were logged, or behind it, changes nothing.
  a.coverage.unseen = {Unseen(1, 2), Unseen(3, 4)};
  EXPECT_EQ(FirstOf(a, b), "fwd/m/g_0");
}

TEST(OpDiff, NothingIsBracketedIfAnUnseenKernelMayHaveChangedWhatItIsMadeOf) {
  const OpLog a = Plain(5, 7);
  OpLog b = Fused(6.5, 7.5);
  b.coverage.unseen = {Unseen(1, 2)};  // before all that the bracket holds
  EXPECT_TRUE(DiffOpLogs(a, b).first_suspect);
  b.coverage.unseen = {Unseen(2, 3)};
  EXPECT_FALSE(DiffOpLogs(a, b).first_suspect);
}

TEST(OpDiff, EqualLogsAreTheSame) {
  EXPECT_EQ(DiffOpLogs(Log(), Log()).verdict(), OpDiff::Verdict::kSame);
}

TEST(OpDiff, NamesTheFirstRowThatDiffersWhileItsInputsAgree) {
  OpLog b = Log();
  b.rows[2].stats = StatsWith(3.5);
  b.rows[3].stats = StatsWith(4.5);
  const OpLog a = Log();
  EXPECT_EQ(FirstOf(a, b), "fwd/m/g_0");
  EXPECT_EQ(DiffOpLogs(a, b).verdict(), OpDiff::Verdict::kDifferent);
  EXPECT_NE(OpDiffAnswer(a, b, DiffOpLogs(a, b)).Text().find("first divergence: #3 fwd/m/g_0"),
            std::string::npos);
}

TEST(OpDiff, ComparesOnHashAndMeasuresTogether) {
  OpLog b = Log();
  b.rows[3].stats->min = b.rows[3].stats->max = b.rows[3].stats->mean = -4;  // the same hash and l1
  EXPECT_EQ(FirstOf(Log(), b), "fwd/h_0");
}

TEST(OpDiff, DoesNotBlameARowWhoseInputsAreNotAllShown) {
  OpLog b = Log();
  b.rows[1].is_covered = false;
  b.rows[1].stats = StatsWith(2.5);
  const OpDiff diff = DiffOpLogs(Log(), b);
  EXPECT_FALSE(diff.first_fault);
  ASSERT_TRUE(diff.first_different);
  EXPECT_EQ(diff.pairs[*diff.first_different].a, 1u);
}

TEST(OpDiff, IsInconclusiveOverALostRow) {
  OpLog b = Log();
  b.rows[2].stats.reset();
  const OpDiff diff = DiffOpLogs(Log(), b);
  EXPECT_EQ(diff.verdict(), OpDiff::Verdict::kInconclusive);
  ASSERT_FALSE(diff.missing.empty());
  EXPECT_NE(diff.missing[0].find("fwd/m/g_0: lost in B"), std::string::npos) << diff.missing[0];
}

TEST(OpDiff, IsInconclusiveWhereOnlyOneLogHasARowOrAnOpReadWhatNoRowShows) {
  OpLog more = Log();
  more.rows.push_back(Row(5, "fwd/k_0", "aten.k.default", {4}, 5));
  EXPECT_EQ(DiffOpLogs(Log(), more).verdict(), OpDiff::Verdict::kInconclusive);
  OpLog uncovered = Log();
  uncovered.rows[3].is_covered = false;
  EXPECT_EQ(DiffOpLogs(Log(), uncovered).verdict(), OpDiff::Verdict::kInconclusive);
  EXPECT_EQ(DiffOpLogs(OpLog(), OpLog()).verdict(), OpDiff::Verdict::kInconclusive);
}

TEST(OpDiff, AHashThatDiffersByANanAloneProvesNothing) {
  OpLog a = Log(), b = Log();
  for (OpLog* log : {&a, &b}) log->rows[3].stats->nan = 1;
  b.rows[3].stats->hash += 1;
  EXPECT_EQ(DiffOpLogs(a, b).verdict(), OpDiff::Verdict::kInconclusive);
}

TEST(OpDiff, TheSameElementsInOtherPlacesAreADifference) {
  OpLog a = Log(), b = Log();
  for (OpLog* log : {&a, &b}) {
    for (OpRow& row : log->rows) {
      row.stats->count = 4;
      row.stats->max += 1;
      row.stats->has_ordered_hash = true;
    }
  }
  EXPECT_EQ(DiffOpLogs(a, b).verdict(), OpDiff::Verdict::kSame);
  b.rows[2].stats->ordered_hash = 1;
  EXPECT_EQ(FirstOf(a, b), "fwd/m/g_0");
  b.rows[2].stats->has_ordered_hash = false;  // of an older version
  EXPECT_EQ(DiffOpLogs(a, b).verdict(), OpDiff::Verdict::kInconclusive);
}

TEST(OpDiff, AnotherDtypeOrShapeIsADifference) {
  OpLog b = Log();
  b.rows[2].dtype = layout::Dtype::kBfloat16;
  b.rows[2].type = "bf16[1]";
  const OpLog a = Log();
  const OpDiff diff = DiffOpLogs(a, b);
  EXPECT_EQ(diff.verdict(), OpDiff::Verdict::kDifferent);
  EXPECT_EQ(FirstOf(a, b), "fwd/m/g_0");
  EXPECT_NE(OpDiffAnswer(a, b, diff).Text().find("f32[1] against bf16[1]: the dtype differs"),
            std::string::npos)
      << OpDiffAnswer(a, b, diff).Text();
}

TEST(OpDiff, RowsOfOneSideAreNamedInOrderWithTheirLine) {
  OpLog b = Log();
  b.rows.push_back(Row(5, "fwd/m/k_0", "aten.k.default", {4}, 5));
  b.rows.push_back(Row(6, "fwd/m/l_0", "aten.l.default", {5}, 6));
  b.rows[4].site = "net.py:12 in forward";
  const OpLog a = Log();
  const OpDiff diff = DiffOpLogs(a, b);
  EXPECT_NE(OpDiffAnswer(a, b, diff)
                .Text()
                .find("2 rows are only in B: #5 fwd/m/k_0 (net.py:12 in forward), #6 fwd/m/l_0"),
            std::string::npos)
      << OpDiffAnswer(a, b, diff).Text();
  EXPECT_EQ(OpDiffJson(a, b, diff)["rows_only_b"][0]["site"], "net.py:12 in forward");
}

TEST(OpDiff, AlignsAnOutVariantWithThePlainOpAndAnotherOrderByName) {
  OpLog b = Log();
  b.rows[1].op = "aten.f.out";
  EXPECT_EQ(DiffOpLogs(Log(), b).verdict(), OpDiff::Verdict::kSame);
  OpLog a;
  a.rows = {Row(1, "bwd/m/f_0", "aten.f.default", {}, 1),
            Row(2, "bwd/n/g_0", "aten.g.default", {}, 2)};
  b.rows = {Row(1, "bwd/n/g_0", "aten.g.default", {}, 2),
            Row(2, "bwd/m/f_0", "aten.f.default", {}, 1)};
  EXPECT_EQ(DiffOpLogs(a, b).verdict(), OpDiff::Verdict::kSame);
}

TEST(OpDiff, AnOpThatOneLogHasMoreShiftsNothing) {
  OpLog b = Log();
  b.rows.insert(b.rows.begin() + 1, Row(2, "fwd/m/extra_0", "aten.extra.default", {1}, 9));
  for (std::size_t i = 2; i < b.rows.size(); ++i)
    b.rows[i].number = static_cast<std::uint32_t>(i + 1);
  const OpDiff diff = DiffOpLogs(Log(), b);
  EXPECT_EQ(diff.different, 0u);
  ASSERT_EQ(diff.only_b.size(), 1u);
  EXPECT_EQ(b.rows[diff.only_b[0]].name, "fwd/m/extra_0");
  EXPECT_EQ(diff.pairs.size(), 4u);
}

TEST(OpLog, ARowKnowsWhetherItMadeItsNan) {
  OpLog log = Log();
  log.rows[2].stats->nan = 1;
  EXPECT_TRUE(HasFiniteInputs(log, log.rows[2]));
  EXPECT_FALSE(HasFiniteInputs(log, log.rows[3]));
  log.rows[1].stats.reset();
  EXPECT_FALSE(HasFiniteInputs(log, log.rows[2]));
}

}  // namespace
}  // namespace cgdebug::analysis
