// What causes are found in the logs of graphs, and that nothing is called clean that was not looked
// at.
#include "client/analysis/why/why.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "client/analysis/ops/op_log.h"
#include "client/analysis/ops/races.h"
#include "client/analysis/why/why_report.h"
#include "tests/support/analysis/memory_source.h"

namespace cgdebug::analysis::why {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing_support::MemorySource;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

using Values = std::vector<float>;

// A log of a graph, whose row n is the slot n - 1: what it holds in each replay.
class GraphLog : public MemorySource {
 public:
  void Row(const std::string& name, const std::string& op, const std::vector<Values>& replays,
           const std::string& inputs = "") {
    const std::size_t slot = AddSlot(name, {replays.empty() ? 2 : replays.front().size()});
    Slots()[slot].op = std::to_string(slot + 1) + " " + op + (inputs.empty() ? "" : " " + inputs);
    Slots()[slot].graph = "bs=8";
    for (std::size_t i = 0; i < replays.size(); ++i) {
      Add(slot, i + 1, replays[i]);
      serials[{slot, i + 1}] = i + 1;
    }
  }
  // Likewise, but the values are those of every other replay.
  void EveryOtherRow(const std::string& name, const std::string& op, const Values& values,
                     std::size_t replays, const std::string& inputs) {
    const std::size_t slot = AddSlot(name, {values.size()});
    Slots()[slot].op = std::to_string(slot + 1) + " " + op + " " + inputs;
    Slots()[slot].graph = "bs=8";
    for (std::size_t replay = 1; replay <= replays; replay += 2) {
      Add(slot, replay, values);
      serials[{slot, replay}] = replay;
    }
  }
};

Causes CausesOf(MemorySource& source) {
  Result<Causes> causes = FindCauses(source);
  EXPECT_TRUE(causes.ok()) << causes.error().message;
  return *std::move(causes);
}

std::vector<std::string_view> KindsOf(const Causes& causes) {
  std::vector<std::string_view> kinds;
  for (const Finding& finding : causes.findings) kinds.push_back(finding.kind);
  return kinds;
}

const std::vector<Values> kMoving = {{1, 2}, {3, 4}, {5, 6}, {7, 8}};

GraphLog Healthy() {
  GraphLog log;
  log.Row("in/layer/mm_0.self", "input", kMoving);
  log.Row("in/weight", "input", {{1, 1}, {1, 1}, {1, 1}, {1, 1}});
  log.Row("fwd/layer/mm_0", "aten.mm.default", {{2, 3}, {4, 5}, {6, 7}, {8, 9}}, "1 2");
  return log;
}

TEST(Why, AHealthyLogIsCleanAndComplete) {
  GraphLog log = Healthy();
  const Causes causes = CausesOf(log);
  EXPECT_THAT(causes.findings, IsEmpty());
  EXPECT_TRUE(causes.complete());
  EXPECT_THAT(CausesAnswer(log, causes, CommandsOf("a.cgrec")).Text(),
              HasSubstr("no cause found\nlooked at and clean: no NaN or Inf in 12 snapshots"));
}

TEST(Why, TheMakerOfTheFirstNanIsNamedAndWhatFollowsIsCounted) {
  GraphLog log = Healthy();
  log.Row("fwd/layer/log_0", "aten.log.default", {{1, 2}, {1, 3}, {1, kNan}, {1, kNan}}, "3");
  log.Row("fwd/layer/add_0", "aten.add.Tensor", {{1, 2}, {1, 3}, {1, kNan}, {1, kNan}}, "4");
  const Causes causes = CausesOf(log);
  ASSERT_THAT(KindsOf(causes), ElementsAre("domain"));
  EXPECT_TRUE(causes.found());
  EXPECT_THAT(causes.findings[0].sentence, HasSubstr("fwd/layer/log_0 made 1 NaN in replay 3 of "
                                                     "bs=8: the logarithm of a negative number"));
  EXPECT_THAT(causes.findings[0].follows, ElementsAre(4));
  const Json json = CausesJson(log, causes, CommandsOf("a.cgrec"));
  EXPECT_EQ(json["findings"][0]["place"]["number"], 4);
  EXPECT_EQ(json["findings"][0]["place"]["replay"], 3);
  EXPECT_EQ(json["findings"][0]["next"], "cgdebug-cli ops 'a.cgrec@g:bs=8@3'");
}

TEST(Why, AMaskIsNoCauseAndARowThatIsMaskedWholeIsOne) {
  GraphLog log = Healthy();
  log.Row("fwd/masked_fill_0", "aten.masked_fill.Scalar",
          {{1, -kInf}, {1, -kInf}, {1, -kInf}, {-kInf, -kInf}}, "3");
  log.Row("fwd/_softmax_0", "aten._softmax.default", {{1, 0}, {1, 0}, {1, 0}, {0.5f, 0.5f}}, "4");
  EXPECT_THAT(CausesOf(log).findings, IsEmpty());
  log.Change(4, 4, {kNan, kNan});
  const Causes causes = CausesOf(log);
  ASSERT_THAT(KindsOf(causes), ElementsAre("masked_row"));
  EXPECT_EQ(causes.findings[0].place.slot, 4u);
  EXPECT_EQ(causes.findings[0].place.replay, 4u);
}

TEST(Why, AnInputThatChangedWhileAReplayRanIsNamedWithBothHashes) {
  GraphLog log = Healthy();
  log.Row("end/layer/mm_0.self", "input.end", {{1, 2}, {3, 4}, {5, 9}, {7, 8}}, "1");
  const Causes causes = CausesOf(log);
  ASSERT_THAT(KindsOf(causes), ElementsAre("torn_input"));
  EXPECT_EQ(causes.outcome(), Outcome::kFound);
  EXPECT_THAT(causes.findings[0].sentence,
              HasSubstr("the input in/layer/mm_0.self changed while replay 3 of bs=8 ran, and no "
                        "op of the graph writes it: hash "));
  EXPECT_EQ(causes.findings[0].place.slot, 0u);
  EXPECT_EQ(causes.findings[0].place.replay, 3u);
  EXPECT_THAT(causes.findings[0].follows, ElementsAre(2));
  EXPECT_THAT(causes.findings[0].facts[0].text, HasSubstr("changed in 1 of 4 replays, first in"));
}

TEST(Why, AnInputThatIsTheSameAtTheEndOfItsGraphIsCleanAndIsNoOtherRow) {
  GraphLog log = Healthy();
  log.Row("end/layer/mm_0.self", "input.end", kMoving, "1");
  const Causes causes = CausesOf(log);
  EXPECT_THAT(causes.findings, IsEmpty());
  EXPECT_TRUE(causes.complete());
  EXPECT_THAT(causes.clean, Contains("1 input stays the same while its graph runs"));
  std::vector<std::string> others;
  const Result<OpLog> rows = ReadOpLog(log, {}, &others);
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(rows->rows.size(), 3u);
}

TEST(Why, AnInputThatAKernelWithoutARowMayHaveWrittenIsNotSaidToBeTorn) {
  GraphLog log = Healthy();
  log.Row("fwd/layer/add_0", "aten.add.Tensor <1:memset", {{1, 2}, {3, 4}, {5, 6}, {7, 8}}, "3");
  log.Row("end/layer/mm_0.self", "input.end", {{1, 2}, {3, 4}, {5, 9}, {7, 8}}, "1");
  const Causes causes = CausesOf(log);
  ASSERT_THAT(KindsOf(causes), ElementsAre("torn_input"));
  EXPECT_EQ(causes.findings[0].level, Level::kConsistent);
  EXPECT_EQ(causes.outcome(), Outcome::kInconclusive);
}

TEST(Why, PaddingThatReachesRealRowsInAReplayIsNamedWhereTheGraphTellsItsRows) {
  GraphLog log;
  log.Row("in/valid_rows", "valid_rows", {{1, 0}, {1, 0}, {1, 0}, {1, 0}});
  log.Row("in/x", "input", {{1, kNan}, {2, kNan}, {3, kNan}, {4, kNan}});
  log.Row("in/x.padding", "padding", {{0, kNan}, {0, kNan}, {0, kNan}, {0, kNan}}, "2");
  log.Row("fwd/mean_0", "aten.mean.dim", {{kNan}, {kNan}, {kNan}, {kNan}}, "2");
  log.Row("fwd/sub_0", "aten.sub.Tensor", {{kNan, kNan}, {kNan, kNan}, {kNan, kNan}, {kNan, kNan}},
          "2 4");
  log.Row("fwd/sub_0.padding", "padding.mixed", {{0, kNan}, {0, kNan}, {0, kNan}, {0, kNan}}, "5");
  const Causes causes = CausesOf(log);
  ASSERT_FALSE(causes.findings.empty());
  EXPECT_EQ(causes.findings[0].kind, "padding_leak");
  EXPECT_THAT(causes.findings[0].sentence,
              HasSubstr("fwd/mean_0 (aten.mean.dim) lets NaN or Inf of padding into real rows in "
                        "replay 1 of bs=8"));
}

TEST(Why, TwoCausesThatDoNotFollowFromEachOtherAreBothTold) {
  GraphLog log = Healthy();
  log.Row("fwd/a/scale_0", "quant.scale.default", {{1, 2}, {1, kNan}, {1, 3}, {1, 3}}, "3");
  log.Row("fwd/b/exp_0", "aten.exp.default", {{1, 2}, {1, 3}, {kInf, 3}, {1, 3}}, "3");
  EXPECT_THAT(KindsOf(CausesOf(log)), ElementsAre("nonfinite", "overflow"));
}

TEST(Why, AWeightThatJumpedBeforeTheNanIsNamed) {
  for (const float now : {90.0f, 120.0f}) {
    GraphLog log;
    log.Row("in/x", "input", kMoving);
    log.Row("in/bias", "input", {{1, 1}, {1, 1}, {1, now}, {1, now}});
    log.Row("fwd/add_0", "aten.add.Tensor", {{2, 3}, {4, 5}, {6, now}, {8, now}}, "1 2");
    log.Row("fwd/log_0", "aten.log.default", {{1, 2}, {1, 3}, {1, kNan}, {1, kNan}}, "3");
    const Causes causes = CausesOf(log);
    ASSERT_THAT(KindsOf(causes), Contains("domain"));
    const bool is_named = causes.findings[0].facts.front().text.starts_with(
        "it is made of in/bias, whose largest value went from 1 in replay 2 of bs=8 to 120");
    EXPECT_EQ(is_named, now > 100) << causes.findings[0].facts.front().text;
  }
}

TEST(Why, AnOpThatIsComputedOnceMoreOfTheSameRowsIsNoOtherCause) {
  GraphLog log = Healthy();
  const std::vector<Values> logarithms = {{1, 2}, {1, 3}, {1, kNan}, {1, 3}};
  log.Row("fwd/layer/log_0", "aten.log.default", logarithms, "3");
  log.Row("bwd/layer/log_0", "aten.log.default", logarithms, "3");
  const Causes causes = CausesOf(log);
  ASSERT_THAT(KindsOf(causes), ElementsAre("domain"));
  EXPECT_THAT(causes.findings[0].sentence, HasSubstr("fwd/layer/log_0 made"));
  ASSERT_EQ(causes.findings[0].folded.size(), 1u);
  EXPECT_THAT(causes.findings[0].folded[0].sentence, HasSubstr("bwd/layer/log_0 made"));
}

TEST(Why, AnInputThatStaysIsConsistentAndNeverShown) {
  GraphLog log = Healthy();
  log.Row("in/layer/embedding_0.indices", "input", {{3, 4}, {3, 4}, {3, 4}, {3, 4}});
  const Causes causes = CausesOf(log);
  ASSERT_THAT(KindsOf(causes), ElementsAre("frozen_input"));
  EXPECT_EQ(causes.findings[0].level, Level::kConsistent);
  EXPECT_FALSE(causes.found());
  EXPECT_THAT(causes.findings[0].sentence,
              HasSubstr("in/layer/embedding_0.indices is the same in 4 replays, in which "
                        "in/layer/mm_0.self changes 3 times"));
}

TEST(Why, ElementsInAnotherOrderAreAChange) {
  GraphLog log = Healthy();
  log.Row("in/layer/embedding_0.indices", "input", {{3, 4}, {4, 3}, {3, 4}, {4, 3}});
  EXPECT_THAT(CausesOf(log).findings, IsEmpty());
}

TEST(Why, WithoutTheOrderOfElementsNothingIsCalledTheSame) {
  GraphLog log = Healthy();
  log.Row("in/layer/embedding_0.indices", "input", {{3, 4}, {3, 4}, {3, 4}, {3, 4}});
  log.has_ordered_hash = false;
  EXPECT_THAT(CausesOf(log).findings, IsEmpty());
}

TEST(Why, AProductThatStaysThoughNothingItReadsIsZeroIsShown) {
  GraphLog log = Healthy();
  log.Row("fwd/layer/mm_1", "aten.mm.default", {{2, 9}, {2, 9}, {2, 9}, {2, 9}}, "1 2");
  log.Row("fwd/layer/sigmoid_0", "aten.sigmoid.default", {{1, 2}, {1, 2}, {1, 2}, {1, 2}}, "3 4");
  const Causes causes = CausesOf(log);
  ASSERT_THAT(KindsOf(causes), ElementsAre("stale_output"));
  EXPECT_TRUE(causes.found());
  EXPECT_THAT(causes.findings[0].sentence, HasSubstr("fwd/layer/mm_1 (aten.mm.default) does not"));
  ASSERT_EQ(causes.findings[0].folded.size(), 1u) << "what is made of it lies behind it";
}

// Eager calls: the second row of the first two calls is another than that of the last two.
TEST(Why, AResultBesideItsTangentMayBeLeftUnread) {
  for (const char* const weights : {"3", "1"}) {
    GraphLog log;
    log.Row("in/0/mm_0.self", "input", kMoving);
    log.Row("in/0/mm_1.self", "input", kMoving);
    log.Row("in/0.weight", "input", {{2, 2}, {2, 2}, {2, 2}, {2, 2}});
    log.Row("fwd/0/mm_0", "aten.mm.default", kMoving, "1 3");
    log.Row("fwd/0/mm_1", "aten.mm.default", kMoving, std::string("2 ") + weights);
    log.Row("fwd/0/add_0", "aten.add.Tensor", kMoving, "5");
    const bool is_unread = std::ranges::count(KindsOf(CausesOf(log)), "unread") > 0;
    EXPECT_EQ(is_unread, weights == std::string("1")) << weights;
  }
}

TEST(Why, ARowOfACallReadsWhatHasTheNumberInThatCall) {
  MemorySource calls;
  const auto add = [&](const std::string& name, const std::string& op,
                       const std::vector<std::uint64_t>& of, const Values& values) {
    const std::size_t slot = calls.AddSlot(name, {2});
    calls.Slots()[slot].graph_id = 0;
    calls.Slots()[slot].in_body = true;
    calls.Slots()[slot].op = op;
    for (const std::uint64_t call : of) {
      calls.Add(slot, call, values);
      calls.serials[{slot, call}] = call;
    }
    return slot;
  };
  add("in/x", "1 input", {1, 2, 3, 4}, {-1, 2});
  add("fwd/gelu_0", "2 aten.gelu.default 1", {1, 2}, {1, 2});
  const std::size_t log = add("fwd/log_0", "3 aten.log.default 2", {1, 2, 3, 4}, {0, 1});
  add("fwd/tanh_0", "2 aten.tanh.default 1", {3, 4}, {-0.5f, 1});
  calls.Change(log, 4, {kNan, 0});
  const Causes causes = CausesOf(calls);
  ASSERT_THAT(KindsOf(causes), ElementsAre("domain"));
  EXPECT_THAT(causes.findings[0].sentence, HasSubstr("fwd/log_0 made 1 NaN in call 4"));
  ASSERT_EQ(causes.findings[0].facts.size(), 1u);
  EXPECT_THAT(causes.findings[0].facts[0].text, HasSubstr("it read fwd/tanh_0"));
}

// Counts how often somebody looks for a row in a call.
class CountedLog : public GraphLog {
 public:
  Result<std::optional<source::Key>> Find(std::size_t slot, std::uint64_t replay,
                                          std::optional<std::uint32_t> iteration) override {
    ++looks;
    return GraphLog::Find(slot, replay, iteration);
  }
  int looks = 0;
};

TEST(Why, TheCallOfEachRowThatIsZeroIsNotReadAgain) {
  const auto looks_of = [](int rows) {
    CountedLog log;
    for (int row = 0; row < rows; ++row) log.Row("in/" + std::to_string(row), "input", {{0, 0}});
    for (source::Slot& slot : log.Slots()) {
      slot.graph_id = 0;
      slot.in_body = true;
    }
    CausesOf(log);
    return log.looks;
  };
  EXPECT_LE(looks_of(200), 10 * looks_of(20));
}

TEST(Why, AGraphWithoutAReplayIsTold) {
  GraphLog log = Healthy();
  log.Row("fwd/x", "aten.mm.default", {});
  log.Slots().back().graph_id = 2;
  log.Slots().back().graph = "bs=16";
  log.accounts[log.slots().size() - 1] = {};
  const Causes causes = CausesOf(log);
  ASSERT_THAT(KindsOf(causes), ElementsAre("unreplayed"));
  EXPECT_THAT(causes.findings[0].sentence, HasSubstr("bs=16 was captured and never replayed"));
}

TEST(Why, AReplicaThatTheDaemonSawDifferIsShown) {
  GraphLog log = Healthy();
  log.Slots()[1].rank = 1;
  log.findings.push_back({.slot = 1,
                          .kind = layout::FindingKind::kReplica,
                          .replay = 2,
                          .text = "rank 1 differs from ranks 0, 2"});
  const Causes causes = CausesOf(log);
  EXPECT_THAT(KindsOf(causes), ElementsAre("replica"));
  EXPECT_TRUE(causes.found());
}

TEST(Why, WhatWasNotLookedAtIsSaid) {
  GraphLog few;
  few.Row("in/layer/mm_0.self", "input", {{1, 2}, {3, 4}});
  few.Row("fwd/layer/mm_0", "aten.mm.default", {{2, 3}, {4, 5}}, "1");
  EXPECT_THAT(CausesOf(few).not_looked,
              ElementsAre("what stays the same from run to run, for which 4 are needed: bs=8 has 2 "
                          "replays"));
  MemorySource probes = testing_support::TwoLayers(5);
  const Causes causes = CausesOf(probes);
  EXPECT_FALSE(causes.complete());
  EXPECT_THAT(causes.not_looked, ElementsAre(HasSubstr("there is no op log")));
  GraphLog gap = Healthy();
  gap.gaps.push_back({0, 2, 4, 0, "overwritten"});
  EXPECT_THAT(CausesOf(gap).not_looked, ElementsAre(HasSubstr("lacks 2 snapshots")));
}

TEST(Why, TheFirstProbeThatIsNotFiniteIsNamedWithoutAnOpLog) {
  MemorySource source = testing_support::TwoLayers(5);
  source.Change(1, 3, {1, 1, 1, kNan});
  const Causes causes = CausesOf(source);
  ASSERT_THAT(KindsOf(causes), ElementsAre("nonfinite"));
  EXPECT_EQ(causes.findings[0].sentence, "y is the first probe that is not finite, in replay 3");
}

// --- ranks ---------------------------------------------------------------------------------------

// The calls of two ranks of one run. Each has the rows of `Row`, in call 1, 2, ...
class TwoRanks : public MemorySource {
 public:
  Result<source::Snapshot> Get(std::size_t slot, const source::Key& key) override {
    Result<source::Snapshot> snapshot = MemorySource::Get(slot, key);
    snapshot->timestamp_ns = static_cast<std::int64_t>(10 * key.replay + slot);
    return snapshot;
  }
  std::size_t Row(int rank, const std::string& name, const std::string& op,
                  const std::vector<Values>& calls, std::uint64_t first_call = 1) {
    const std::size_t slot = AddSlot(name, {2});
    source::Slot& one = Slots()[slot];
    one.op = op;
    one.graph_id = 0;
    one.in_body = true;
    one.rank = rank;
    one.run = "train";
    one.session = "train/r" + std::to_string(rank);
    for (std::size_t i = 0; i < calls.size(); ++i) {
      Add(slot, first_call + i, calls[i]);
      serials[{slot, first_call + i}] = first_call + i;
    }
    return slot;
  }
};

constexpr const char* kReduce = "3 c10d.allreduce_.default 2";

TwoRanks AlikeRanks() {
  TwoRanks source;
  for (const int rank : {1, 0}) {
    source.Row(rank, "in/x", "1 input", kMoving);
    source.Row(rank, "fwd/mm_0", "2 aten.mm.default 1", kMoving);
    source.Row(rank, "fwd/c10d.allreduce__0", kReduce, kMoving);
  }
  return source;
}

TEST(Why, RanksThatDoTheSameAreClean) {
  TwoRanks source = AlikeRanks();
  const Causes causes = CausesOf(source);
  EXPECT_THAT(causes.findings, IsEmpty());
  EXPECT_TRUE(causes.complete());
  EXPECT_THAT(causes.clean, Contains("2 ranks take the same way through graphs and collectives"));
}

TEST(Why, ANanThatCameFromAnotherRankLiesBehindTheOpThatMadeIt) {
  TwoRanks source = AlikeRanks();
  for (const std::size_t row : {1, 2, 5}) source.Change(row, 3, {kNan, 1});
  const Causes causes = CausesOf(source);
  ASSERT_THAT(KindsOf(causes), ElementsAre("nonfinite"));
  EXPECT_THAT(causes.findings[0].sentence, HasSubstr("fwd/mm_0 made 1 NaN in call 3 of rank 1"));
  ASSERT_EQ(causes.findings[0].folded.size(), 1u);
  EXPECT_THAT(causes.findings[0].folded[0].sentence,
              HasSubstr("in call 3 of rank 0, of this rank"));
}

TEST(Why, AProductThatCannotBeTooLargeIsNoOverflow) {
  GraphLog log = Healthy();
  log.Change(2, 3, {kNan, 7});
  const Causes causes = CausesOf(log);
  ASSERT_THAT(KindsOf(causes), ElementsAre("nonfinite"));
  EXPECT_THAT(causes.findings[0].sentence, HasSubstr("and all that it read is finite"));
  for (const std::size_t row : {0, 1}) log.Change(row, 3, {1e30f, 7});
  EXPECT_THAT(KindsOf(CausesOf(log)), ElementsAre("overflow"));
}

TEST(Why, ACollectiveThatOneRankLacksIsTold) {
  TwoRanks source = AlikeRanks();
  source.Row(1, "fwd/c10d.allreduce__1", "4 c10d.allreduce_.default 3", {{1, 2}}, 3);
  const Causes causes = CausesOf(source);
  ASSERT_THAT(KindsOf(causes), ElementsAre("unlike_ranks"));
  EXPECT_FALSE(causes.found());
  EXPECT_THAT(causes.findings[0].sentence,
              HasSubstr("in call 3: rank 1 has c10d.allreduce_.default of f32[2], where rank 0 has "
                        "none"));
}

TEST(Why, ARankThatIsCallsBehindIsTold) {
  TwoRanks source = AlikeRanks();
  for (const std::size_t row : {0, 1, 2}) source.Remove(row, 4);
  const Causes causes = CausesOf(source);
  ASSERT_THAT(KindsOf(causes), ElementsAre("hang"));
  EXPECT_THAT(causes.findings[0].sentence,
              HasSubstr("rank 1 has ended call 3, and rank 0 has ended call 4"));
}

TEST(Why, AProcessThatWasStartedAgainIsNotBehindItself) {
  TwoRanks source = AlikeRanks();
  for (const std::size_t row : {0, 1, 2}) source.Remove(row, 4);
  for (source::Slot& slot : source.Slots()) {  // both are rank 0, one after the other
    slot.uuid = slot.rank == 0 ? "first" : "second";
    slot.restart = slot.rank;
    slot.rank = 0;
    slot.session = "job/r0";
  }
  EXPECT_THAT(KindsOf(CausesOf(source)), Not(Contains("hang")));
}

// A source whose snapshots came one after another.
class InTime : public MemorySource {
 public:
  Result<source::Snapshot> Get(std::size_t slot, const source::Key& key) override {
    Result<source::Snapshot> snapshot = MemorySource::Get(slot, key);
    snapshot->timestamp_ns = static_cast<std::int64_t>(10 * key.replay + slot);
    return snapshot;
  }
};

// A job of three probes whose newest call passed the first `passed` of them.
InTime InCall(int passed, double stalled_seconds) {
  InTime source;
  source.description.stalled_seconds = stalled_seconds;
  source.description.is_growing = true;
  for (int i = 0; i < 3; ++i) {
    const std::size_t slot = source.AddSlot("fwd/" + std::to_string(i), {1});
    source.Slots()[slot].graph_id = 0;
    for (std::uint64_t call = 1; call <= (i < passed ? 4u : 3u); ++call) {
      source.Add(slot, call, {static_cast<float>(call)});
      source.serials[{slot, call}] = 10 * call + i;
    }
  }
  return source;
}

TEST(Why, AJobThatStandsStillInsideACallIsToldAndWhere) {
  InTime source = InCall(2, 75);
  source.accounts[0] = {.produced = 904, .kept = 4, .lost = {{"no longer kept", 900}}};
  const Causes causes = CausesOf(source);
  ASSERT_THAT(KindsOf(causes), ElementsAre("hang"));
  EXPECT_THAT(causes.findings[0].sentence,
              HasSubstr("the job stands in call 4, after fwd/1 and before fwd/2, for 1m15s"));
  EXPECT_FALSE(causes.found()) << "it may wait on purpose";
}

TEST(Why, ProcessesOfOneLabelStandEachInItsOwnCall) {
  InTime source = InCall(3, 75);
  for (source::Slot& slot : source.Slots()) slot.uuid = "first";
  for (int i = 0; i < 3; ++i) {
    const std::size_t slot = source.AddSlot("fwd/" + std::to_string(i), {1});
    source.Slots()[slot].graph_id = 0;
    source.Slots()[slot].uuid = "second";
    for (std::uint64_t call = 1; call <= (i < 2 ? 2u : 1u); ++call) source.Add(slot, call, {1});
  }
  const Causes causes = CausesOf(source);
  ASSERT_THAT(KindsOf(causes), ElementsAre("hang"));
  EXPECT_THAT(causes.findings[0].sentence,
              HasSubstr("the job stands in call 2, after fwd/1 and before fwd/2, for 1m15s"));
}

TEST(Why, RanksThatStandStillInACallAreToldAndNotCalledAlike) {
  TwoRanks source = AlikeRanks();
  for (const std::size_t row : {2, 5}) {
    source.Remove(row, 4);
    source.Slots()[row].site = "train.py:34 in average";
  }
  source.description.stalled_seconds = 75;
  source.description.is_growing = true;
  const Causes causes = CausesOf(source);
  ASSERT_THAT(KindsOf(causes), ElementsAre("hang"));
  EXPECT_THAT(causes.findings[0].sentence,
              HasSubstr("stands in call 4, after fwd/mm_0, and rank "));
  EXPECT_EQ(causes.findings[0].facts.back().text,
            "in rank 0, call 3 went on with #3 fwd/c10d.allreduce__0 (train.py:34 in average)");
  EXPECT_THAT(CausesAnswer(source, causes, CommandsOf("live")).Text(),
              HasSubstr("the job stands still"));
  EXPECT_FALSE(causes.complete()) << "what they do in that call is not known";
  EXPECT_THAT(causes.clean, Not(Contains(HasSubstr("take the same way"))));
}

// What rank `rank` tells of its eager ops (layout::IsOpOrder), after what it told before.
void TellOfOps(TwoRanks* source, int rank, const std::string& note) {
  const std::size_t slot = source->Row(rank, "ops/order", "order 0 " + note, {});
  source->Slots()[slot].order = slot;
}

TEST(Why, TheOpThatARankWaitsInIsToldOfAJobThatStandsStill) {
  TwoRanks source = AlikeRanks();
  source.description.is_growing = true;
  TellOfOps(&source, 0, "stands 1 c10d.barrier (train.py:33)");
  TellOfOps(&source, 1, "stands 1 c10d.allreduce_ f32[8] (train.py:38)");
  EXPECT_THAT(KindsOf(CausesOf(source)), IsEmpty()) << "it may be slow";
  source.description.stalled_seconds = 75;
  const Causes causes = CausesOf(source);
  ASSERT_THAT(KindsOf(causes), ElementsAre("hang"));
  EXPECT_THAT(causes.findings[0].sentence, HasSubstr("in or after c10d.barrier (train.py:33)"));
  EXPECT_THAT(causes.findings[0].sentence,
              HasSubstr("in or after c10d.allreduce_ f32[8] (train.py:38), for 1m15s"));
  for (const int rank : {0, 1}) TellOfOps(&source, rank, "passed 2");
  EXPECT_THAT(KindsOf(CausesOf(source)), IsEmpty());
}

TEST(Why, WhereAJobStandsIsKnownIfOnlyOlderSnapshotsWereLost) {
  for (const bool is_older : {true, false}) {
    InTime source = InCall(2, 75);
    source.accounts[0] = {
        .produced = 904, .kept = 4, .lost = {{"no longer kept", 899}, {"overwritten", 1}}};
    source.gaps = {{.slot = 0,
                    .count = 1,
                    .after_replay = is_older ? 1u : 4u,
                    .before_replay = is_older ? 3u : 0u,
                    .cause = "overwritten"}};
    const Causes causes = CausesOf(source);
    EXPECT_EQ(KindsOf(causes).size(), is_older ? 1u : 0u);
  }
}

TEST(Why, AJobThatMovesOrHasEndedItsCallDoesNotHang) {
  InTime moves = InCall(2, 0);
  InTime idle = InCall(3, 75);
  for (InTime* source : {&moves, &idle}) {
    EXPECT_THAT(KindsOf(CausesOf(*source)), IsEmpty());
  }
}

TEST(Why, RanksThatShareNoCallAreNotCalledAlike) {
  TwoRanks source = AlikeRanks();
  for (const std::size_t row : {0, 1, 2}) {
    for (const std::uint64_t call : {3, 4}) source.Remove(row, call);
    for (const std::uint64_t call : {1, 2}) source.Remove(row + 3, call);
  }
  for (const std::string& clean : CausesOf(source).clean) {
    EXPECT_THAT(clean, Not(HasSubstr("same way")));
    EXPECT_THAT(clean, Not(HasSubstr("ended the same")));
  }
}

TEST(Why, RanksAreNotComparedWhereSnapshotsAreLost) {
  TwoRanks source = AlikeRanks();
  for (const std::size_t row : {0, 1, 2}) source.Remove(row, 4);
  source.accounts[2] = {.produced = 4, .kept = 3, .lost = {{"overwritten", 1}}};
  const Causes causes = CausesOf(source);
  EXPECT_THAT(causes.findings, IsEmpty());
  EXPECT_FALSE(causes.complete());
  for (const std::string& clean : causes.clean) EXPECT_THAT(clean, Not(HasSubstr("ranks")));
}

TEST(Why, RanksInOtherGraphsAtTheSameReplayAreTold) {
  MemorySource source;
  const auto add = [&](int rank, std::uint64_t graph, const std::vector<std::uint64_t>& serials) {
    const std::size_t slot = source.AddSlot("in/x", {2});
    source.Slots()[slot].op = "1 input";
    source.Slots()[slot].rank = rank;
    source.Slots()[slot].run = "serve";
    source.Slots()[slot].session = "serve/r" + std::to_string(rank);
    source.Slots()[slot].graph_id = graph;
    source.Slots()[slot].graph = graph == 1 ? "bs=8" : "bs=256";
    for (std::size_t i = 0; i < serials.size(); ++i) {
      source.Add(slot, i + 1, {1.0f + static_cast<float>(serials[i]), 2});
      source.serials[{slot, i + 1}] = serials[i];
    }
  };
  add(0, 1, {1, 2, 3, 4});
  add(0, 2, {5});
  add(1, 1, {1, 2, 4, 5});
  add(1, 2, {3});
  const Causes causes = CausesOf(source);
  ASSERT_THAT(KindsOf(causes), ElementsAre("unlike_ranks"));
  EXPECT_THAT(causes.findings[0].sentence, HasSubstr("in replay 3: rank 0 has graph bs=8, where "
                                                     "rank 1 has graph bs=256"));
}

// --- growth --------------------------------------------------------------------------------------

std::vector<Values> Growing(float first, float factor, std::size_t count) {
  std::vector<Values> values;
  for (std::size_t i = 0; i < count; ++i, first *= factor) values.push_back({first, 1});
  return values;
}

TEST(Why, ValuesThatWillOverflowAreTold) {
  GraphLog log;
  log.Row("in/x", "input", Growing(1, -1, 9));
  log.Row("fwd/state_0", "aten.mul.Tensor", Growing(10, 100, 9), "1");
  const Causes causes = CausesOf(log);
  ASSERT_THAT(KindsOf(causes), ElementsAre("growth"));
  EXPECT_EQ(causes.findings[0].level, Level::kConsistent);
  EXPECT_THAT(causes.findings[0].sentence,
              HasSubstr("fwd/state_0 grows 1e+02-fold in each of the last 6 replays"));
  EXPECT_THAT(causes.findings[0].sentence, HasSubstr("too large for float32 in 11 replays"));
}

TEST(Why, AStepCounterAndWhatLevelsOffDoNotOverflow) {
  GraphLog log;
  std::vector<Values> counter, level;
  for (int i = 1; i <= 9; ++i) {
    counter.push_back({static_cast<float>(i), 0});
    level.push_back({1e30f * (1 - 1 / static_cast<float>(1 << i)), 0});
  }
  log.Row("in/step", "input", counter);
  log.Row("fwd/level_0", "aten.mul.Tensor", level, "1");
  const Causes causes = CausesOf(log);
  EXPECT_THAT(causes.findings, IsEmpty());
  EXPECT_THAT(causes.clean, Contains("2 rows do not grow to an overflow"));
}

// --- captures ------------------------------------------------------------------------------------

TEST(Why, CapturesThatFailedOrHoldNoWorkAreToldOfALiveJob) {
  GraphLog log = Healthy();
  layout::GraphFacts good{.order = 1, .label = "bs=8", .state = layout::GraphState::kLive};
  good.nodes = 3;
  good.replays = 4;
  log.graphs = {{.of = log.Slots()[0], .census = {}}};
  log.graphs->front().census.graphs = {good};
  EXPECT_THAT(CausesOf(log).findings, IsEmpty());
  EXPECT_THAT(CausesOf(log).clean, Contains("1 capture has work and is replayed"));
  layout::GraphFacts failed = good, empty = good, unused = good;
  failed.state = layout::GraphState::kFailed;
  failed.stack = "model.py:7 in forward";
  empty.nodes = 0;
  unused.replays = 0;
  log.graphs->front().census.graphs = {good, failed, empty, unused};
  const Causes causes = CausesOf(log);
  EXPECT_THAT(KindsOf(causes), ElementsAre("failed_capture", "empty_capture", "unreplayed"));
  EXPECT_THAT(causes.findings[0].facts[0].text, HasSubstr("captured by model.py:7 in forward"));
  const Json json = CausesJson(log, causes, CommandsOf("live"));
  EXPECT_EQ(json["findings"][0]["next"], "cgdebug-cli graphs live");
}

TEST(Why, TheOpThatBrokeACaptureIsNamedLiveAndInARecording) {
  const std::string broke = "aten.item.default at model.py:7 raised RuntimeError: CUDA error";
  GraphLog log = Healthy();
  const std::size_t slot = log.AddSlot("ops/order", {0});
  log.Slots()[slot].op = "order 12 broke " + broke;
  log.Slots()[slot].graph_id = 0;
  const Causes recorded = CausesOf(log);
  ASSERT_THAT(KindsOf(recorded), ElementsAre("failed_capture"));
  EXPECT_EQ(recorded.findings[0].level, Level::kConsistent);
  EXPECT_EQ(recorded.findings[0].sentence,
            "capture 12 ended with an error: there is no graph; " + broke);
  EXPECT_THAT(FindRaces(log).graphs, IsEmpty());
  layout::GraphFacts failed{.order = 3, .graph_id = 12, .state = layout::GraphState::kFailed};
  log.graphs = {{.of = log.Slots()[0], .census = {}}};
  log.graphs->front().census.graphs = {failed};
  const Causes live = CausesOf(log);
  ASSERT_THAT(KindsOf(live), ElementsAre("failed_capture"));
  EXPECT_EQ(live.findings[0].sentence,
            "capture 3 ended with an error: there is no graph; " + broke);
}

TEST(Why, AGraphThatWaitsForItsBatchSizeIsNoFindingIfOthersOfItsPlaceAreReplayed) {
  GraphLog log = Healthy();
  layout::GraphFacts used{.order = 1, .label = "bs=8", .state = layout::GraphState::kLive};
  used.nodes = 3;
  used.replays = 4;
  used.stack = "engine.py:7 in capture";
  layout::GraphFacts spare = used, elsewhere = used;
  spare.label = "bs=16";
  spare.replays = 0;
  elsewhere.label = "alone";
  elsewhere.replays = 0;
  elsewhere.stack = "train.py:9 in capture";
  log.graphs = {{.of = log.Slots()[0], .census = {}}};
  log.graphs->front().census.graphs = {used, spare};
  Causes causes = CausesOf(log);
  EXPECT_THAT(causes.findings, IsEmpty());
  EXPECT_THAT(causes.clean, Contains(HasSubstr("but for 1 captured where those are")));
  log.graphs->front().census.graphs = {used, spare, elsewhere};
  causes = CausesOf(log);
  ASSERT_THAT(KindsOf(causes), ElementsAre("unreplayed"));
  EXPECT_THAT(causes.findings[0].sentence, HasSubstr("graph alone was never replayed"));
}

TEST(Why, CapturesOfAProcessWithoutAProbeAndThoseThatAreNotListedAreNotLookedAt) {
  GraphLog log = Healthy();
  layout::GraphFacts failed{.order = 1, .label = "bs=8", .state = layout::GraphState::kFailed};
  source::Slot other = log.Slots()[0];
  other.session = "bare-7";
  other.rank = -1;
  log.graphs = {{.of = other, .census = {}}, {.of = log.Slots()[0], .census = {}}};
  log.graphs->front().census.graphs = {failed};
  log.graphs->back().census.unlisted = 12;
  const Causes causes = CausesOf(log);
  EXPECT_FALSE(causes.complete());
  EXPECT_THAT(causes.not_looked,
              Contains(AllOf(HasSubstr("captures of bare-7, which has no probe: graph bs=8 ended"),
                             HasSubstr("12 captures of "), HasSubstr("not listed one by one"))));
}

TEST(Why, WhatNobodyAskedForIsSaidAndLeavesTheAnswerComplete) {
  GraphLog log = Healthy();
  const Causes causes = CausesOf(log);
  EXPECT_TRUE(causes.complete());
  EXPECT_THAT(causes.not_asked, ElementsAre(HasSubstr("run --races"), HasSubstr("graphs")));
  EXPECT_THAT(CausesAnswer(log, causes, CommandsOf("a.cgrec")).Text(),
              HasSubstr("\nnot asked for: races"));
}

// Of two batches in turn, one head reads the same one each time.
TEST(Why, AnInputThatChangedAndChangedBackIsNoReasonToFollow) {
  GraphLog log;
  std::vector<Values> turns;
  for (int i = 0; i < 8; ++i) turns.push_back(i % 2 == 0 ? Values{1, 2} : Values{3, 4});
  log.Row("fwd/trunk/mm_0", "input", turns);
  log.Row("in/weight", "input", std::vector<Values>(8, {1, 1}));
  log.EveryOtherRow("fwd/head_a/mm_0", "aten.mm.default", {2, 3}, 8, "1 2");
  EXPECT_THAT(KindsOf(CausesOf(log)), testing::Not(Contains("stale_output")));
}

TEST(Why, ZerosWhoseSignsChangeAreNoReasonToFollow) {
  GraphLog log;
  log.Row("fwd/gate/mul_0", "input", {{0.F, -0.F}, {-0.F, 0.F}, {0.F, 0.F}, {-0.F, -0.F}});
  log.Row("in/weight", "input", std::vector<Values>(4, {1, 1}));
  log.Row("fwd/head/mm_0", "aten.mm.default", std::vector<Values>(4, {2, 3}), "1 2");
  EXPECT_THAT(KindsOf(CausesOf(log)), Not(Contains("stale_output")));
}

TEST(Why, TheArcCosineOfANumberAboveOneIsSaid) {
  GraphLog log = Healthy();
  log.Row("fwd/sum_0", "input", {{0, 1}, {0, 1.001F}, {0, 1}, {0, 1}});
  log.Row("fwd/acos_0", "aten.acos.default", {{1, 0}, {1, kNan}, {1, 0}, {1, 0}}, "4");
  const Causes causes = CausesOf(log);
  ASSERT_FALSE(causes.findings.empty());
  EXPECT_EQ(causes.findings.front().kind, "domain");
  EXPECT_THAT(causes.findings.front().sentence, HasSubstr("a number above 1 or below -1"));
}

TEST(Why, ANumeratorOfZeroIsNoDivisionByZero) {
  GraphLog log = Healthy();
  log.Row("fwd/relu_0", "input", {{0, 1}, {0, 2}, {0, 3}, {0, 4}});
  log.Row("fwd/div_0", "aten.div.Tensor", {{0, 1}, {0, kInf}, {0, 3}, {0, 4}}, "4");
  const Causes causes = CausesOf(log);
  ASSERT_FALSE(causes.findings.empty());
  EXPECT_THAT(causes.findings.front().sentence, testing::Not(HasSubstr("division by 0")));
}

TEST(Why, AnOpOfTheUserThatGivesOneValueThroughoutDoesNotFollow) {
  GraphLog log = Healthy();
  log.Row("fwd/layer/scaled_mm_0", "mine.scaled_mm.default", {{0, 0}, {0, 0}, {0, 0}, {0, 0}},
          "1 2");
  const Causes causes = CausesOf(log);
  ASSERT_THAT(KindsOf(causes), ElementsAre("stale_output"));
  EXPECT_FALSE(causes.found());
}

// --- training ------------------------------------------------------------------------------------

const std::vector<Values> kStill(4, {1, 1});
const std::vector<Values> kZeros(4, {0, 0});

// A forward and a backward pass of one layer whose weight stays the same: rows 1 to 4. Row 5 is the
// gradient of the weight.
GraphLog WithoutStep() {
  GraphLog log;
  log.Row("in/layer/mm_0.mat1", "input", kMoving);
  log.Row("in/layer.weight", "input", kStill);
  log.Row("fwd/layer/mm_0", "aten.mm.default", kMoving, "1 2");
  log.Row("bwd/mul_0", "aten.mul.Tensor", kMoving, "3");
  log.Row("bwd/layer/mm_0", "aten.mm.default", kMoving, "4 1");
  return log;
}

TEST(Why, GradientsThatNoOptimizerStepsAreTold) {
  GraphLog log = WithoutStep();
  const Causes causes = CausesOf(log);
  ASSERT_THAT(KindsOf(causes), ElementsAre("not_stepped"));
  EXPECT_EQ(causes.findings[0].level, Level::kConsistent);
  EXPECT_THAT(causes.findings[0].sentence,
              HasSubstr("gradients are computed and no optimizer steps: none of 1 weight changes "
                        "in 4 replays"));
}

TEST(Why, AnOptimizerMayBeMissingWhereRowsAreLost) {
  GraphLog log = WithoutStep();
  log.accounts[0].lost["overrun"] = 1;
  EXPECT_THAT(KindsOf(CausesOf(log)), IsEmpty());
}

TEST(Why, GradientsThatAreUsedOrStayTheSameNeedNoOptimizer) {
  GraphLog attack = WithoutStep();
  attack.Row("fwd/sign_0", "aten.sign.default", kMoving, "5");
  GraphLog accumulation = WithoutStep();
  accumulation.Row("grad/layer.weight", "aten.add_.Tensor", kMoving, "5");
  GraphLog measurement = WithoutStep();
  for (std::uint64_t replay = 1; replay <= 4; ++replay) measurement.Change(4, replay, {1, 2});
  GraphLog frozen = WithoutStep();
  frozen.Slots()[4].probe = "bwd/mul_1";
  for (std::uint64_t replay = 1; replay <= 4; ++replay) {
    frozen.Change(4, replay, {static_cast<float>(replay), 2});
  }
  GraphLog trained = WithoutStep();
  for (std::uint64_t replay = 1; replay <= 4; ++replay) {
    trained.Change(1, replay, {static_cast<float>(replay), 2});
  }
  for (GraphLog* log : {&attack, &accumulation, &measurement, &frozen, &trained}) {
    EXPECT_THAT(KindsOf(CausesOf(*log)), Not(Contains("not_stepped")));
  }
}

TEST(Why, ABackwardPassThatReachesNoWeightIsTold) {
  GraphLog log;
  log.Row("in/layer/mm_0.mat1", "input", kMoving);
  log.Row("in/layer.weight", "input", kStill);
  log.Row("fwd/layer/mm_0", "aten.mm.default", kMoving, "1 2");
  log.Row("fwd/ones_like_0", "aten.ones_like.default", {{1}, {1}, {1}, {1}});
  log.Row("bwd/copy__0", "aten.copy_.default", {{1}, {1}, {1}, {1}}, "4");
  const Causes causes = CausesOf(log);
  ASSERT_THAT(KindsOf(causes), ElementsAre("no_gradient"));
  EXPECT_EQ(causes.findings[0].level, Level::kConsistent);
  EXPECT_THAT(causes.findings[0].sentence,
              HasSubstr("the backward pass reaches none of 1 weight in 4 replays"));
}

TEST(Why, AGradScalerThatSkipsEachStepIsTold) {
  for (const bool skips_all : {true, false}) {
    GraphLog log = WithoutStep();
    const std::string unscale = "_amp_foreach_non_finite_check_and_unscale_";
    const Values last = skips_all ? Values{1} : Values{0};
    log.Row("scaler/" + unscale + "_0.found_inf", "aten." + unscale + ".default",
            {{1}, {1}, {1}, last}, "5");
    const Causes causes = CausesOf(log);
    if (!skips_all) {
      EXPECT_THAT(KindsOf(causes), Not(Contains("skipped_steps")));
      continue;
    }
    ASSERT_THAT(KindsOf(causes), ElementsAre("skipped_steps"));
    EXPECT_THAT(causes.findings[0].sentence, HasSubstr("the GradScaler skips all 4 steps"));
  }
}

TEST(Why, WhatTheFrameworkKeepsOfItsStepsIsNoInput) {
  GraphLog log = Healthy();
  log.Row("in/scaler/_amp_update_scale__0.growth_tracker", "input", kZeros);
  log.Row("in/opt/mul__0.self", "input", kZeros);
  log.Row("opt/mul__0", "aten.mul_.Tensor", kZeros, "5");
  EXPECT_THAT(KindsOf(CausesOf(log)), Not(Contains("frozen_input")));
  log.Row("in/opt/div_0.self", "input", kStill);  // a learning rate
  log.Row("opt/div_0", "aten.div.Tensor", kMoving, "7");
  EXPECT_THAT(KindsOf(CausesOf(log)), Contains("frozen_input"));
}

TEST(Why, LabelsThatTheProgramDrawsChangeWhileABatchStays) {
  for (const bool is_label : {true, false}) {
    GraphLog log;
    log.Row("in/layer/mm_0.mat1", "input", {{1, 2}, {1, 2}, {1, 2}, {1, 2}});
    log.Row("fwd/randint_0", "aten.randint.low", kMoving);
    log.Row("fwd/nll_loss_forward_0.0", "aten.nll_loss_forward.default", kMoving, "2");
    for (source::Slot& slot : log.Slots()) slot.graph_id = 0;
    if (is_label) log.Slots()[1].dtype = layout::Dtype::kInt32;
    const auto frozen = Contains("frozen_input");
    if (is_label) {
      EXPECT_THAT(KindsOf(CausesOf(log)), frozen);
    } else {
      EXPECT_THAT(KindsOf(CausesOf(log)), Not(frozen)) << "noise";
    }
  }
}

TEST(Why, WeightsThatSomethingElseWritesNeedNoGradient) {
  for (const bool is_teacher : {true, false}) {
    GraphLog log = Healthy();
    log.Row("in/student.weight", "input", kMoving);
    log.Row("in/teacher.weight", "input", is_teacher ? kMoving : kStill);
    log.Row("fwd/teacher/mm_0", "aten.mm.default", kMoving, "1 5");
    log.Row("fwd/student/mm_0", "aten.mm.default", kMoving, "1 4");
    log.Row("bwd/student/mm_0", "aten.mm.default", kMoving, "7 1");
    log.Row("opt/add__0", "aten.add_.Tensor", kMoving, "4 8");
    const Causes causes = CausesOf(log);
    const bool is_told = std::ranges::any_of(causes.findings, [](const Finding& finding) {
      return finding.sentence.find("teacher.weight") != std::string::npos;
    });
    EXPECT_EQ(is_told, !is_teacher);
  }
}

}  // namespace
}  // namespace cgdebug::analysis::why
