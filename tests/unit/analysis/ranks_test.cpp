// Replicas are compared over ranks by step, voted on, and never called the same over a gap.
#include "client/analysis/ranks/ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/analysis/ranks/ranks_report.h"
#include "client/analysis/ranks/ranks_state.h"
#include "daemon/core/replicas/shard_text.h"
#include "daemon/core/replicas/spread.h"
#include "tests/support/analysis/answer_text.h"
#include "tests/support/analysis/memory_source.h"

namespace cgdebug::analysis {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing_support::MemorySource;

constexpr std::int64_t kSecond = 1'000'000'000;

// One recording for each rank of a run: "w" and "b" are replicas, "fwd" is not.
class Ranked {
 public:
  explicit Ranked(int ranks, int steps = 10, int restart = 0) {
    for (int rank = 0; rank < ranks; ++rank) {
      MemorySource& source = *sources.emplace_back(std::make_unique<MemorySource>());
      for (const char* name : {"w", "b", "fwd"}) source.AddSlot(name, {4});
      for (source::Slot& slot : source.Slots()) {
        slot.rank = rank;
        slot.world_size = ranks;
        slot.restart = restart;
        slot.run = "run";
        slot.session = "run/r" + std::to_string(rank);
        slot.uuid = slot.session + "." + std::to_string(restart);
        if (slot.probe != "fwd") {
          slot.shard = "R of [4] at (" + std::to_string(rank) +
                       ") of ddp=" + std::to_string(ranks) + ", from [0], replicas 0.." +
                       std::to_string(ranks - 1);
        }
      }
      for (int step = 1; step <= steps; ++step) Step(rank, step);
    }
  }

  void Step(int rank, int step) {
    const auto n = static_cast<float>(step);
    const auto replay = static_cast<std::uint64_t>(step);
    sources[rank]->Add(0, replay, {n, 2 * n, 3, 4}, 100 + step);
    sources[rank]->Add(1, replay, {n, n, n, n}, 100 + step);
    sources[rank]->Add(2, replay, {n, static_cast<float>(rank), 0, 1}, 100 + step);
  }

  // As Report(), and with their values at hand.
  RanksReport ReportWithValues(RanksOptions options = {}) {
    options.open = [this](const std::string& path) { return sources.at(path[1] - '0').get(); };
    return Report(std::move(options));
  }
  RanksReport Report(RanksOptions options = {}) {
    RankFold fold(std::move(options));
    for (std::size_t i = 0; i < sources.size(); ++i) AddTo(&fold, i);
    return fold.Finish();
  }
  void AddTo(RankFold* fold, std::size_t at) {
    const Result<void> added = fold->Add(*sources[at], "r" + std::to_string(at) + ".cgrec");
    ASSERT_TRUE(added.ok()) << added.error().message;
  }

  std::vector<std::unique_ptr<MemorySource>> sources;
};

std::vector<int> Minority(const RanksReport& report) {
  std::vector<int> ranks;
  for (std::size_t i = 1; i < report.first->values.size(); ++i) {
    for (const std::size_t row : report.first->values[i].processes) {
      ranks.push_back(report.rows[row].process.rank);
    }
  }
  return ranks;
}

TEST(Replicas, TheTextOfAShardSaysWhichRanksHaveTheSameTensor) {
  const auto ranks = [](const char* text) {
    const replicas::Replicas replicas = replicas::ReplicasOf(text);
    EXPECT_EQ(replicas.kind, replicas::Replication::kKnown) << text;
    return replicas.ranks;
  };
  EXPECT_THAT(ranks("R of [4] at (1) of ddp=3, from [0], replicas 0..2"), ElementsAre(0, 1, 2));
  EXPECT_THAT(ranks("S(0),R of [4] at (0,1) of 2,3, replicas 1..5/2"), ElementsAre(1, 3, 5));
  EXPECT_THAT(ranks("R of [] at () of , replicas 0,3,7..8"), ElementsAre(0, 3, 7, 8));
  for (const char* text : {"R of [4] at (0) of 1", "", "S(0) of [8] at (1) of 2, from [4]"}) {
    EXPECT_EQ(replicas::ReplicasOf(text).kind, replicas::Replication::kNone) << text;
  }
  for (const char* text :
       {"x, replicas ?", "x, replicas 1", "x, replicas 3..1", "x, replicas 0..1x",
        "x, replicas 2,1", "x, replicas 0..9/0", "x, replicas 0..99999999", "x, replicas "}) {
    EXPECT_EQ(replicas::ReplicasOf(text).kind, replicas::Replication::kUnknown) << text;
  }
  EXPECT_EQ(replicas::ReplicasOf(std::string(511, 'x')).kind, replicas::Replication::kUnknown);
}

TEST(Ranks, ReplicasOfWhichOnlyAPartWasRecordedAreNoted) {
  Ranked run(2);
  for (const auto& source : run.sources) source->Slots()[1].part = "first:4 of [64]";
  const RanksReport report = run.Report();
  EXPECT_TRUE(report.complete());
  EXPECT_THAT(report.notes,
              ElementsAre("of 1 of 2 replicas only a part was recorded, and compared"));
}

TEST(Ranks, HealthyReplicasAreTheSameAndOtherTensorsAreNotCompared) {
  const RanksReport report = Ranked(4).Report();
  EXPECT_FALSE(report.found());
  EXPECT_TRUE(report.complete());
  EXPECT_EQ(report.replicas, 2u);
  EXPECT_EQ(report.compared, 20u);
  EXPECT_EQ(report.unequal, 0u);
  EXPECT_TRUE(report.by_step);
  for (const RankRow& row : report.rows) EXPECT_EQ(row.verdict, ReplicaVerdict::kSame);
  EXPECT_THAT(RanksText(report, {}),
              AllOf(HasSubstr("same: 2 replicas on 4 ranks"), Not(HasSubstr("note:"))));
}

TEST(Ranks, TheMinorityIsNamedWithTheStepAndTheProbeAtWhichItBegan) {
  Ranked run(4);
  for (std::uint64_t step = 6; step <= 10; ++step) {
    const auto n = static_cast<float>(step);
    run.sources[2]->Change(1, step, {n, n, n, n + 64});
    if (step > 6) run.sources[2]->Change(0, step, {n, 2 * n, 3, 99});
  }
  const RanksReport report = run.Report();
  ASSERT_TRUE(report.first.has_value());
  EXPECT_EQ(report.first->probe, "b");
  EXPECT_EQ(report.first->position, (Position{true, 106, 0}));
  EXPECT_EQ(report.first->equal_before, 5u);
  EXPECT_TRUE(report.first->has_majority);
  EXPECT_THAT(Minority(report), ElementsAre(2));
  ASSERT_TRUE(report.first_bad.has_value());
  EXPECT_EQ(report.rows[*report.first_bad].process.rank, 2);
  EXPECT_EQ(report.rows[2].verdict, ReplicaVerdict::kDifferent);
  EXPECT_EQ(report.rows[0].verdict, ReplicaVerdict::kSame);
  EXPECT_THAT(RanksText(report, {}),
              AllOf(HasSubstr("first bad: rank 2: b at step 106: differs from the other ranks"),
                    HasSubstr("b f32[4] at step 106: rank 2 does not have what 3 of 4 ranks have"),
                    HasSubstr("the same on all of them: 5 times")));
  const Json json = RanksJson(report, {});
  EXPECT_EQ(json["verdict"], "found");
  EXPECT_EQ(json["first_difference"]["minority"], Json::array({2}));
  EXPECT_EQ(json["first_difference"]["step"], 106);
}

TEST(Ranks, OneLastBitIsAFindingWhereReplicasWereEqualBefore) {
  Ranked run(4);
  for (std::uint64_t step = 7; step <= 10; ++step) {
    const auto n = static_cast<float>(step);
    run.sources[1]->Change(0, step, {n, 2 * n, std::nextafter(3.0f, 4.0f), 4});
  }
  const RanksReport report = run.Report();
  ASSERT_TRUE(report.first.has_value());
  EXPECT_EQ(report.first->position.number, 107u);
  EXPECT_EQ(report.first->distance, replicas::Distance::kUnknown);
  EXPECT_THAT(Minority(report), ElementsAre(1));
}

TEST(Ranks, OneWithoutAHashDoesNotMakeOthersTheSameWhoseHashesDiffer) {
  const numerics::Stats stats = {};
  Vote vote, later;
  vote.Add(0, stats, std::nullopt);
  vote.Add(1, stats, 1);
  EXPECT_EQ(vote.values().size(), 1u);
  vote.Add(2, stats, 2);
  EXPECT_EQ(vote.values().size(), 3u) << "of which of the two it is the same nobody can tell";
  later.Add(0, stats, 2);
  vote.Merge(later, {3});
  later = Vote();
  later.Add(0, stats, std::nullopt);
  later.Merge(vote, {0, 1, 2, 3});
  EXPECT_EQ(later.values().size(), 2u) << "in whatever order";
}

TEST(Ranks, OneWithoutAHashOfStatisticsDoesNotMakeOthersTheSameEither) {
  numerics::Stats stats = {};
  Vote vote;
  vote.Add(0, stats, 5);
  stats.has_hash = true;
  vote.Add(1, stats, std::nullopt);
  EXPECT_EQ(vote.values().size(), 1u);
  stats.hash = 2;
  vote.Add(2, stats, std::nullopt);
  EXPECT_EQ(vote.values().size(), 3u);
}

// Or who is blamed would depend on how the recordings are shared out among workers.
TEST(Ranks, OneWithoutAHashIsTheSameAsTheMostWhateverIsMergedFirst) {
  const std::optional<std::uint64_t> hashes[] = {1, std::nullopt, 2, 2};
  numerics::Stats stats = {};
  stats.count = 2;
  stats.min = 0;
  stats.max = 1;
  std::vector<std::size_t> order = {0, 1, 2, 3};
  do {
    for (std::size_t first = 0; first <= order.size(); ++first) {
      Vote halves[2];
      for (std::size_t i = 0; i < order.size(); ++i) {
        halves[i < first ? 0 : 1].Add(order[i], stats, hashes[order[i]]);
      }
      halves[0].Merge(halves[1], {0, 1, 2, 3});
      const std::vector<Vote::Choice> values = halves[0].values();
      ASSERT_EQ(values.size(), 2u);
      const Vote::Choice& most = values[values[0].hash == 2 ? 0 : 1];
      EXPECT_THAT(most.processes.Members(), ElementsAre(1, 2, 3));
      EXPECT_TRUE(halves[0].lacks_hash());
    }
  } while (std::ranges::next_permutation(order).found);
}

TEST(Vote, OneThatIsMergedWithAScatteredOneIsScattered) {
  numerics::Stats stats = {};
  stats.count = 2;
  Vote scattered;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i <= Vote::kMostValues; ++i) {
    scattered.Add(i, stats, i);
    places.push_back(i + 1);
  }
  ASSERT_TRUE(scattered.is_scattered());
  Vote vote;
  vote.Add(0, stats, 0);
  vote.Merge(scattered, places);
  EXPECT_TRUE(vote.is_scattered());
  EXPECT_TRUE(vote.values().empty()) << "one value would be that of all";
  EXPECT_EQ(vote.processes().Count(), Vote::kMostValues + 2);
}

TEST(Vote, OnlyElementsThatCanChangePlacesNeedAHash) {
  const auto lacks_hash = [](std::uint64_t count, double min, double max) {
    numerics::Stats stats = {};
    stats.count = count;
    stats.min = min;
    stats.max = max;
    Vote vote;
    vote.Add(0, stats, std::nullopt);
    return vote.lacks_hash();
  };
  EXPECT_TRUE(lacks_hash(2, 1, 3));
  EXPECT_FALSE(lacks_hash(2, 3, 3));
  EXPECT_FALSE(lacks_hash(1, 0, 0));
  EXPECT_TRUE(lacks_hash(2, 0, 0)) << "of two signs";
}

// The statistics of these are the same.
TEST(Ranks, AReplicaWithItsElementsInOtherPlacesIsNeverTheSameOrClose) {
  Ranked run(2);
  for (std::uint64_t step = 1; step <= 10; ++step) {
    const auto n = static_cast<float>(step);
    run.sources[1]->Change(0, step, {2 * n, n, 3, 4});
  }
  const RanksReport with_values = run.ReportWithValues();
  ASSERT_TRUE(with_values.first.has_value());
  EXPECT_EQ(with_values.first->distance, replicas::Distance::kBeyond);
  const RanksReport unknown = run.Report();
  EXPECT_FALSE(unknown.found());
  EXPECT_FALSE(unknown.complete());
  EXPECT_EQ(unknown.unknown, 10u);
}

TEST(Ranks, OneElementThatIsFarOffIsFoundThoughTheSumsAreNear) {
  std::vector<float> values(1'000'000, 0.02f);
  values[0] = 1;
  Ranked run(2, 0);
  for (int rank = 0; rank < 2; ++rank) {
    MemorySource& source = *run.sources[rank];
    const std::size_t large = source.AddSlot("large", {values.size()});
    source::Slot slot = source.slots()[0];
    slot.probe = "large";
    slot.shape = {values.size()};
    slot.order = source.slots()[large].order;
    source.Slots()[large] = slot;
    values[7] = rank == 0 ? 0.02f : 0.021f;
    source.Add(large, 1, values, 101);
  }
  EXPECT_TRUE(run.ReportWithValues().found());
}

std::optional<bool> Within(const std::vector<float>& a, const std::vector<float>& b) {
  replicas::Spread spread;
  for (const auto* values : {&a, &b}) {
    spread.Add(layout::Dtype::kFloat32, std::as_bytes(std::span(*values)));
  }
  return spread.Within(1e-6);
}

TEST(Spread, NanAndInfinitiesHaveToBeTheSameOnAllRanks) {
  constexpr float kNan = NAN, kInf = INFINITY;
  EXPECT_EQ(Within({1, kNan, -kInf}, {1, kNan, -kInf}), true);
  EXPECT_EQ(Within({1, kNan, 2}, {1, 2, kNan}), false);
  EXPECT_EQ(Within({1, 2}, {1, kNan}), false);
  EXPECT_EQ(Within({1, kNan}, {1, 2}), false);
  EXPECT_EQ(Within({1, kInf}, {1, -kInf}), false);
  EXPECT_EQ(Within({1, kInf}, {1, 2}), false);
  EXPECT_EQ(Within({kNan}, {kNan}), true);
  EXPECT_EQ(Within({1, 2}, {1, 2, 3}), std::nullopt);
}

// Of values that all lie one last place beside those of the other rank.
TEST(Vote, StatisticsProveADifferenceOnlyBeyondTheBoundOfTheDtype) {
  const auto stats_of = [](double factor) {
    numerics::Stats stats;
    stats.count = 1000;
    stats.min = -1 * factor;
    stats.max = 1 * factor;
    stats.l1 = 500 * factor;
    stats.mean = 0.01 * factor;
    return stats;
  };
  const auto proves = [&](double factor, layout::Dtype dtype) {
    return replicas::ProvesBeyond(stats_of(1), stats_of(factor), replicas::BoundOf(dtype, 1e-6));
  };
  EXPECT_FALSE(proves(1 + 0x1p-7, layout::Dtype::kBfloat16));
  EXPECT_TRUE(proves(1 + 0x1p-5, layout::Dtype::kBfloat16));
  EXPECT_TRUE(proves(1 + 0x1p-7, layout::Dtype::kFloat32));
  EXPECT_FALSE(proves(1 + 0x1p-22, layout::Dtype::kFloat32));
  numerics::Stats sums = stats_of(1);
  sums.l1 *= 1.001;
  EXPECT_TRUE(replicas::ProvesBeyond(stats_of(1), sums, 1e-6));
  sums = stats_of(1);
  sums.mean += 1e-4;
  EXPECT_TRUE(replicas::ProvesBeyond(stats_of(1), sums, 1e-6));
  sums = stats_of(1);
  sums.nan = 1;
  EXPECT_TRUE(replicas::ProvesBeyond(stats_of(1), sums, 1e-6));
}

TEST(Ranks, TransposedReplicasOfTwoRanksAreATieAndBothAreMarked) {
  Ranked run(2);
  run.sources[1]->Change(0, 1, {2, 1, 3, 4});
  for (std::uint64_t step = 2; step <= 10; ++step) {
    const auto n = static_cast<float>(step);
    run.sources[1]->Change(0, step, {2 * n, n, 3, 4});
  }
  const RanksReport report = run.ReportWithValues();
  ASSERT_TRUE(report.found());
  EXPECT_FALSE(report.first->has_majority);
  for (const RankRow& row : report.rows) EXPECT_NE(row.verdict, ReplicaVerdict::kSame);
}

TEST(Ranks, StatisticsOfAnOlderVersionAreNotTheSame) {
  Ranked run(2);
  for (const auto& source : run.sources) {
    source->has_stats = true;
    source->has_ordered_hash = false;
  }
  const RanksReport report = run.Report();
  EXPECT_FALSE(report.complete());
  EXPECT_THAT(RanksText(report, {}), HasSubstr("without an ordered_hash"));
}

TEST(Ranks, ReplicasThatWereNeverBitwiseEqualAreCloseAndNoAlarm) {
  Ranked run(4);
  for (int rank = 0; rank < 4; ++rank) {
    for (std::uint64_t step = 2; step <= 10; ++step) {
      float third = 3;
      for (int i = 0; i < rank; ++i) third = std::nextafter(third, 4.0f);
      const auto n = static_cast<float>(step);
      run.sources[rank]->Change(0, step, {n, 2 * n, third, 4});
    }
  }
  const RanksReport report = run.ReportWithValues();
  EXPECT_FALSE(report.found());
  EXPECT_TRUE(report.complete());
  ASSERT_TRUE(report.first_close.has_value());
  EXPECT_EQ(report.first_close->position.number, 102u);
  EXPECT_EQ(report.unequal, 9u);
  EXPECT_EQ(report.rows[3].verdict, ReplicaVerdict::kClose);
  EXPECT_THAT(RanksText(report, {}),
              AllOf(HasSubstr("not equal bit for bit, but each element is within 1e-06"),
                    Not(HasSubstr("same:"))));
  EXPECT_EQ(RanksJson(report, {})["verdict"], "close");
  EXPECT_TRUE(run.Report({.bitwise = true}).found());

  // Without the values the same statistics prove nothing.
  const RanksReport unknown = run.Report();
  EXPECT_FALSE(unknown.found());
  EXPECT_FALSE(unknown.complete());
  EXPECT_EQ(unknown.unknown, 9u);
  EXPECT_EQ(unknown.rows[3].verdict, ReplicaVerdict::kUnknown);
  EXPECT_THAT(RanksText(unknown, {}), HasSubstr("by how much is not known"));
  EXPECT_EQ(RanksJson(unknown, {})["verdict"], "incomplete");

  // A rank that leaves the tolerance is still found among ranks of which no two are equal.
  run.sources[1]->Change(0, 8, {8, 16, 30, 4});
  const RanksReport worse = run.ReportWithValues();
  ASSERT_TRUE(worse.first.has_value());
  EXPECT_EQ(worse.first->position.number, 108u);
  EXPECT_THAT(Minority(worse), ElementsAre(1));
  EXPECT_THAT(RanksText(worse, {}), HasSubstr("w at step 102: not equal bit for bit; then "
                                              "w at step 108: differs from the other ranks"));
}

TEST(Ranks, AWeightThatOnlyOneRankChangesIsAFindingHoweverSmall) {
  Ranked run(3, 4);
  for (int rank = 0; rank < 3; ++rank) {
    for (std::uint64_t step = 1; step <= 4; ++step) {
      run.sources[rank]->Change(0, step, {1, 2, 3, 4});
      run.sources[rank]->Change(1, step, {1, 1, 1, 1});
    }
  }
  run.sources[2]->Change(0, 3, {1, 2, std::nextafter(3.0f, 4.0f), 4});
  const RanksReport report = run.Report();
  ASSERT_TRUE(report.first.has_value());
  EXPECT_EQ(report.first->position.number, 103u);
  EXPECT_THAT(Minority(report), ElementsAre(2));
}

TEST(Ranks, ATieSaysSoAndBlamesNobody) {
  Ranked run(2);
  run.sources[1]->Change(0, 5, {5, 10, 3, 77});
  const RanksReport report = run.Report();
  ASSERT_TRUE(report.first.has_value());
  EXPECT_FALSE(report.first->has_majority);
  EXPECT_TRUE(report.found());
  EXPECT_FALSE(report.first_bad.has_value());
  EXPECT_EQ(report.rows[0].verdict, ReplicaVerdict::kTie);
  EXPECT_THAT(RanksText(report, {}), AllOf(HasSubstr("a tie of 2 ranks: no majority"),
                                           HasSubstr("rank 0: hash"), Not(HasSubstr("first bad"))));
}

TEST(Ranks, NothingIsTheSameOverAMissingSnapshot) {
  Ranked run(4);
  run.sources[3]->Remove(1, 4);
  const RanksReport report = run.Report();
  EXPECT_FALSE(report.found());
  EXPECT_FALSE(report.complete());
  EXPECT_EQ(report.rows[3].verdict, ReplicaVerdict::kIncomplete);
  EXPECT_EQ(report.rows[0].verdict, ReplicaVerdict::kSame);
  EXPECT_THAT(report.missing, Contains(HasSubstr("rank 3 has no b at step 104")));
  EXPECT_THAT(RanksText(report, {}), AllOf(HasSubstr("inconclusive: 1 snapshot or rank missing"),
                                           Not(HasSubstr("same:"))));
}

TEST(Ranks, ARankThatIsNotThereIsMissing) {
  Ranked run(4);
  run.sources.erase(run.sources.begin() + 1);
  const RanksReport report = run.Report();
  EXPECT_FALSE(report.complete());
  EXPECT_THAT(report.missing, ElementsAre("rank 1 of 4 is not here"));

  // One that was not asked for is not.
  RanksOptions options;
  options.scope.wants_rank = [](int rank) { return rank != 1; };
  EXPECT_TRUE(run.Report(std::move(options)).complete());
}

TEST(Ranks, ARankThatGoesOnMayBeBehind) {
  Ranked run(3);
  for (std::uint64_t step = 8; step <= 10; ++step) {
    for (const std::size_t slot : {0, 1, 2}) run.sources[1]->Remove(slot, step);
  }
  run.sources[1]->Remove(1, 7);
  EXPECT_FALSE(run.Report().complete());
  run.sources[1]->description.is_growing = true;
  const RanksReport report = run.Report();
  EXPECT_TRUE(report.complete()) << RanksText(report, {});
  EXPECT_TRUE(report.goes_on);
  EXPECT_EQ(report.rows[1].behind, 7u);
  EXPECT_THAT(RanksText(report, {}),
              AllOf(HasSubstr("same so far: "), HasSubstr("note: rank 1 is behind: ")));
}

// A job that counts its steps from the start again in each epoch.
TEST(Ranks, StepsThatComeAgainAreNotComparedAndNotCalledTheSame) {
  Ranked run(2, 4);
  for (int rank = 0; rank < 2; ++rank) {
    for (std::uint64_t replay = 5; replay <= 8; ++replay) {
      const auto n = static_cast<float>(rank);
      run.sources[rank]->Add(0, replay, {n, n, n, n}, 96 + static_cast<std::int64_t>(replay));
    }
  }
  const RanksReport report = run.Report();
  EXPECT_FALSE(report.complete()) << RanksText(report, {});
  EXPECT_EQ(report.missing_count, 8u);
  EXPECT_THAT(report.missing, Contains(AllOf(HasSubstr("rank 1 has 4 snapshots of replicas at "
                                                       "steps that it had before"),
                                             HasSubstr("--replays 1..4"))));
  RanksOptions first;
  first.scope.last_replay = 4;
  EXPECT_TRUE(run.Report(first).complete());
  RanksOptions second;
  second.scope.first_replay = 5;
  EXPECT_TRUE(run.Report(second).found());
}

TEST(Ranks, WhatTheDaemonSawAndDidNotKeepIsTheFirstNan) {
  Ranked run(3);
  run.sources[1]->findings.push_back(
      {.slot = 2, .kind = layout::FindingKind::kNan, .replay = 3, .step = 103, .count = 1});
  run.sources[2]->findings.push_back(
      {.slot = 2, .kind = layout::FindingKind::kMismatch, .replay = 2, .step = 102, .count = 1});
  EXPECT_THAT(RanksText(run.Report(), {}),
              HasSubstr("first bad: rank 1: fwd at step 103: NaN or Inf"));
}

TEST(Ranks, AMaskInAnOpLogIsNotTheFirstInf) {
  Ranked run(2);
  for (const auto& source : run.sources) {
    const source::Slot like = source->slots()[2];
    const std::size_t row = source->AddSlot("row", {4});
    const std::uint64_t order = source->Slots()[row].order;
    source->Slots()[row] = like;
    source->Slots()[row].probe = "row";
    source->Slots()[row].order = order;
    source->Slots()[row].op = "1 aten.full.default";
    for (std::uint64_t replay = 1; replay <= 10; ++replay) {
      source->Add(row, replay, {-INFINITY, 0, 0, 0}, 100 + static_cast<std::int64_t>(replay));
    }
  }
  EXPECT_FALSE(run.Report().found()) << RanksText(run.Report(), {});
  EXPECT_THAT(run.Report().notes, ElementsAre(HasSubstr("2 rows of op logs hold -Inf")));
  run.sources[1]->Slots().back().op = "1 aten.log.default";
  EXPECT_THAT(RanksText(run.Report(), {}),
              HasSubstr("first bad: rank 1: row at step 101: NaN or Inf"));
}

TEST(Ranks, NobodyIsBlamedAloneForWhatSeveralSawAtTheSamePlace) {
  Ranked run(3);
  for (const int rank : {0, 2}) run.sources[rank]->Change(2, 4, {NAN, 3, 0, 1});
  EXPECT_THAT(RanksText(run.Report(), {}),
              HasSubstr("first bad: rank 0: fwd at step 104: NaN or Inf. Bad at the same place: "
                        "rank 2"));
}

TEST(Ranks, WhatWasBadLaterIsNotBadAtTheSamePlace) {
  Ranked run(3);
  for (const int rank : {0, 1}) run.sources[rank]->Change(2, 4, {NAN, 3, 0, 1});
  run.sources[2]->Change(2, 2, {NAN, 3, 0, 1});
  const RanksReport report = run.Report();
  ASSERT_TRUE(report.first_bad.has_value());
  EXPECT_EQ(report.rows[*report.first_bad].process.rank, 2);
  EXPECT_TRUE(report.bad_beside.empty());
}

TEST(Ranks, NothingIsTheSameOverDamage) {
  Ranked run(2);
  run.sources[1]->description.damage = {"000.seg at byte 512: a record"};
  const RanksReport report = run.Report();
  EXPECT_FALSE(report.complete());
  EXPECT_THAT(report.missing, ElementsAre("not read: r1.cgrec is damaged: 000.seg at byte 512: a "
                                          "record"));
}

TEST(Ranks, ARankThatAReplicaNamesIsMissingWhateverTheSizeOfTheJob) {
  Ranked run(4);
  run.sources.pop_back();
  const auto set_world = [&](int size) {
    for (const auto& source : run.sources) {
      for (source::Slot& slot : source->Slots()) slot.world_size = size;
    }
  };
  set_world(1);
  EXPECT_THAT(run.Report().missing, ElementsAre("rank 3 of 4 is not here"));
  set_world(std::numeric_limits<int>::max());  // which no job has
  EXPECT_THAT(run.Report().missing, ElementsAre("ranks 3..1048575 of 1048576 are not here"));
}

TEST(Ranks, NaNOfOneRankIsTheFirstBadThingIfItCameBeforeTheReplicasDiffer) {
  Ranked run(4);
  run.sources[3]->Change(2, 4, {NAN, 3, 0, 1});
  for (std::uint64_t step = 5; step <= 10; ++step) {
    run.sources[3]->Change(0, step, {NAN, NAN, NAN, NAN});
  }
  const RanksReport report = run.Report();
  ASSERT_TRUE(report.first_bad.has_value());
  EXPECT_THAT(RanksText(report, {}),
              HasSubstr("first bad: rank 3: fwd at step 104: NaN or Inf; then w at step 105: "
                        "differs from the other ranks"));
}

// Two snapshots a step: if one of them is lost, which of the two is left is not known.
TEST(Ranks, SnapshotsOfAStepAreNotPairedOverALoss) {
  Ranked run(3, 0);
  for (int rank = 0; rank < 3; ++rank) {
    for (std::uint64_t replay = 1; replay <= 8; ++replay) {
      const auto n = static_cast<float>(replay);
      run.sources[rank]->Add(0, replay, {n, n, n, n}, static_cast<std::int64_t>(replay + 1) / 2);
    }
  }
  EXPECT_TRUE(run.Report().complete());
  run.sources[1]->Remove(0, 3);
  const RanksReport report = run.Report();
  EXPECT_FALSE(report.found()) << RanksText(report, {});
  EXPECT_FALSE(report.complete());
  EXPECT_EQ(report.rows[1].missing, 2u) << "both of step 2";

  // Nor where a recording begins in the middle of a step.
  run.sources[1]->Remove(0, 1);
  run.sources[1]->Remove(0, 2);
  EXPECT_FALSE(run.Report().found());
}

// With one a step, a loss changes the place of no other.
TEST(Ranks, ALossInARunWithOneSnapshotAStepHidesNothingElse) {
  Ranked run(3);
  run.sources[1]->Remove(0, 3);
  run.sources[1]->Change(0, 9, {9, 18, 3, 5});
  const RanksReport report = run.Report();
  ASSERT_TRUE(report.first.has_value());
  EXPECT_EQ(report.first->position.number, 109u);
  EXPECT_EQ(report.rows[1].missing, 1u);
}

// Two captures of one probe are told apart by their order, which means nothing if one is missing.
TEST(Ranks, CapturesWithoutALabelAreNotPairedWhereARankLacksOne) {
  Ranked run(3, 0);
  for (int rank = 0; rank < 3; ++rank) {
    MemorySource& source = *run.sources[rank];
    const source::Slot first = source.slots()[0];
    const std::size_t second = source.AddSlot("w", {4});
    const std::uint64_t order = source.Slots()[second].order;
    source.Slots()[second] = first;
    source.Slots()[second].order = order;
    source.Slots()[second].graph_id = 2;
    for (std::uint64_t step = 1; step <= 4; ++step) {
      const auto n = static_cast<float>(step);
      source.Add(0, step, {n, 1, 1, 1}, static_cast<std::int64_t>(step));
      source.Add(second, step, {n, 2, 2, 2}, static_cast<std::int64_t>(step));
    }
  }
  EXPECT_TRUE(run.Report().complete());
  // Rank 1 shows its second capture alone.
  std::vector<source::Slot>& slots = run.sources[1]->Slots();
  slots[0].probe = "other";
  slots[0].shard.clear();
  const RanksReport report = run.Report();
  EXPECT_FALSE(report.found()) << RanksText(report, {});
  EXPECT_FALSE(report.complete());
  EXPECT_THAT(report.missing, Contains(HasSubstr("w is captured more often on some ranks")));

  // Eager calls are never paired with captured ones.
  for (const int rank : {0, 1, 2}) run.sources[rank]->Slots()[0].graph_id = 0;
  const RanksReport eager = run.Report();
  EXPECT_FALSE(eager.found());
  EXPECT_FALSE(eager.complete());
  EXPECT_EQ(eager.rows[1].missing, 4u) << "its eager calls";
}

TEST(Ranks, RestartsAreComparedApart) {
  Ranked before(3, 6, 0), after(3, 10, 1);
  before.sources[1]->Remove(0, 6);
  before.sources[1]->Remove(1, 6);
  before.sources[1]->Remove(2, 6);
  for (int rank = 0; rank < 3; ++rank) {
    for (std::uint64_t step = 1; step <= 10; ++step) {
      const auto n = static_cast<float>(step);
      after.sources[rank]->Change(0, step, {-n, n, 7, 8});
    }
  }
  for (auto& source : after.sources) before.sources.push_back(std::move(source));
  const RanksReport report = before.Report();
  EXPECT_FALSE(report.found()) << RanksText(report, {});
  EXPECT_TRUE(report.complete()) << RanksText(report, {});
  EXPECT_EQ(report.rows.size(), 6u);
  EXPECT_THAT(report.notes, Contains(HasSubstr("was restarted once")));
}

TEST(Ranks, ARunThatWasRestartedTwiceIsThreeTimesComparedApart) {
  Ranked run(2, 3, 0), second(2, 3, 1), third(2, 3, 2);
  for (Ranked* other : {&second, &third}) {
    for (auto& source : other->sources) run.sources.push_back(std::move(source));
  }
  for (const std::size_t at : {4, 5}) run.sources[at]->Change(0, 2, {1, 1, 1, 1});
  const RanksReport same = run.Report();
  EXPECT_TRUE(same.complete() && !same.found()) << RanksText(same, {});
  EXPECT_THAT(same.notes, Contains(HasSubstr("was restarted 2 times")));
  run.sources[5]->Change(1, 3, {9, 9, 9, 9});
  const RanksReport report = run.Report();
  ASSERT_TRUE(report.first.has_value());
  EXPECT_EQ(report.first->position, (Position{true, 103, 0}));
  EXPECT_EQ(report.rows[report.first->values[1].processes[0]].process.restart, 2);
}

// Expert-parallel ranks: each has the probes of its own experts, and no two the same graph.
TEST(Ranks, ProbesOfSomeRanksOnlyAreNamedAndRaiseNoAlarm) {
  Ranked run(3);
  for (int rank = 0; rank < 3; ++rank) {
    MemorySource& source = *run.sources[rank];
    for (int layer = 0; layer <= rank; ++layer) {
      const std::string name = "expert" + std::to_string(rank) + "." + std::to_string(layer);
      const std::size_t slot = source.AddSlot(name, {4});
      const std::uint64_t order = source.slots()[slot].order;
      source.Slots()[slot] = source.slots()[2];
      source.Slots()[slot].probe = name;
      source.Slots()[slot].order = order;
      source.Add(slot, 1, {1, 2, 3, static_cast<float>(rank)}, 101);
    }
  }
  const RanksReport report = run.Report();
  EXPECT_TRUE(report.complete() && !report.found()) << RanksText(report, {});
  EXPECT_THAT(report.notes,
              ElementsAre("on rank 0 only: expert0.0", "on rank 1 only: expert1.0 and 1 more probe",
                          "on rank 2 only: expert2.0 and 2 more probes"));
  RankFold parts({});
  for (std::size_t at = 0; at < 3; ++at) {
    RankFold one({});
    run.AddTo(&one, at);
    parts.Merge(*RankFold::Decode(one.Encode(), {}));
  }
  EXPECT_EQ(parts.Finish().notes, report.notes);
}

// A recording may lack what the daemon compared while it ran.
TEST(Ranks, WhatTheDaemonSawOfReplicasIsFoundWhereItsSnapshotsAreMissing) {
  Ranked run(3);
  run.sources[1]->findings.push_back({.slot = 0,
                                      .kind = layout::FindingKind::kReplica,
                                      .replay = 4,
                                      .step = 104,
                                      .text = "f32[4] of rank 1 is not what 2 of 3 ranks have"});
  const RanksReport report = run.Report();
  EXPECT_TRUE(report.found());
  EXPECT_FALSE(report.first.has_value());
  EXPECT_THAT(RanksText(report, {}),
              HasSubstr("as the daemon saw while it ran: rank 1: w at step 104: f32[4] of rank 1 "
                        "is not what 2 of 3 ranks have"));
  for (std::uint64_t step = 4; step <= 10; ++step) run.sources[1]->Change(0, step, {9, 9, 9, 9});
  EXPECT_TRUE(run.Report().told.empty()) << "it is here";
}

TEST(Ranks, AToleranceHoldsForWhatTheDaemonSawAsWell) {
  Ranked run(3);
  run.sources[1]->Change(0, 4, {4, 8, 3, 4.001f});
  run.sources[1]->findings.push_back(
      {.slot = 0, .kind = layout::FindingKind::kReplica, .replay = 4, .step = 104, .text = "no"});
  EXPECT_TRUE(run.Report().first.has_value());
  const RanksReport lenient = run.ReportWithValues({.tolerance = 1e-3});
  EXPECT_FALSE(lenient.found()) << RanksText(lenient, {});
  EXPECT_TRUE(lenient.first_close.has_value());
}

TEST(Ranks, TwoRanksInOneRecordingAreTwoRanks) {
  Ranked run(4);
  MemorySource both;
  for (const int rank : {0, 1}) {
    for (const source::Slot& slot : run.sources[rank]->slots()) {
      const std::size_t added = both.AddSlot(slot.probe, slot.shape);
      const std::uint64_t order = slot.order;
      both.Slots()[added] = slot;
      both.Slots()[added].order = order;
      for (std::uint64_t step = 1; step <= 10; ++step) {
        const auto n = static_cast<float>(step);
        if (slot.probe == "w")
          both.Add(added, step, {n, 2 * n, 3, 4}, 100 + static_cast<int>(step));
        if (slot.probe == "b") both.Add(added, step, {n, n, n, n}, 100 + static_cast<int>(step));
      }
    }
  }
  run.sources.erase(run.sources.begin(), run.sources.begin() + 2);
  run.sources.push_back(std::make_unique<MemorySource>(std::move(both)));
  const RanksReport report = run.Report();
  EXPECT_EQ(report.rows.size(), 4u);
  EXPECT_TRUE(report.complete()) << RanksText(report, {});
  EXPECT_THAT(report.notes, Contains("r2.cgrec holds ranks 0..1"));
}

TEST(Ranks, NamedProbesAreReplicasOnAllRanks) {
  Ranked run(3);
  for (const auto& source : run.sources) {
    for (source::Slot& slot : source->Slots()) slot.shard.clear();
  }
  const RanksReport nothing = run.Report();
  EXPECT_FALSE(nothing.complete());
  EXPECT_THAT(RanksText(nothing, {}), HasSubstr("nothing was compared"));
  RanksOptions options;
  const std::vector<std::string> globs = {"w"};
  options.replicated = *Selector::Parse(globs);
  options.has_replicated = true;
  EXPECT_EQ(run.Report(options).replicas, 1u);
  EXPECT_TRUE(run.Report(options).complete());

  // A name that nothing has is not passed over, even if other replicas are the same.
  const std::vector<std::string> typo = {"ww"};
  options.replicated = *Selector::Parse(typo);
  EXPECT_THAT(Ranked(3).Report(options).missing, ElementsAre(HasSubstr("named by --replicated")));
}

TEST(Ranks, ManyDifferentValuesAreNoReplicasAndTakeBoundedMemory) {
  Ranked run(100, 1);
  for (int rank = 0; rank < 100; ++rank) {
    const auto n = static_cast<float>(rank);
    run.sources[rank]->Change(0, 1, {n, n, n, n});
  }
  const RanksReport report = run.Report();
  ASSERT_TRUE(report.first.has_value());
  EXPECT_TRUE(report.first->is_scattered);
  EXPECT_TRUE(report.first->values.empty());
  EXPECT_THAT(RanksText(report, {}), HasSubstr("too many different values"));
}

// The state of some recordings goes to another process; order and partition change nothing.
TEST(Ranks, FoldsOfPartsComeToTheSameAsOneFold) {
  Ranked run(6);
  run.sources[4]->Change(0, 3, {3, 6, 3, 5});
  run.sources[5]->Remove(1, 9);
  run.sources[2]->Change(2, 8, {INFINITY, 0, 0, 0});
  const Json whole = RanksJson(run.Report(), {});
  RankFold odd(RanksOptions{}), even(RanksOptions{});
  for (const std::size_t at : {5, 1, 3}) run.AddTo(&odd, at);
  for (const std::size_t at : {2, 0, 4}) run.AddTo(&even, at);
  Result<RankFold> decoded = RankFold::Decode(even.Encode(), {});
  ASSERT_TRUE(decoded.ok()) << decoded.error().message;
  odd.Merge(*decoded);
  EXPECT_EQ(Dump(RanksJson(odd.Finish(), {}), true), Dump(whole, true));
  EXPECT_FALSE(RankFold::Decode("x", {}).ok());
  EXPECT_FALSE(RankFold::Decode(even.Encode().substr(1), {}).ok());
}

TEST(Ranks, AStateThatNoFoldEncodedIsRefused) {
  Ranked run(3, 1);
  RankFold fold(RanksOptions{});
  for (const std::size_t at : {0, 1, 2}) run.AddTo(&fold, at);
  const std::string good = fold.Encode();
  const auto is_refused = [](const std::string& bytes) { return !RankState::Decode(bytes).ok(); };
  ASSERT_FALSE(is_refused(good));
  for (std::size_t size = 0; size < good.size(); ++size) {
    ASSERT_TRUE(is_refused(good.substr(0, size))) << size;
  }
  EXPECT_TRUE(is_refused(good + '\0'));

  const auto changed = [&](auto change) {
    RankState state = *RankState::Decode(good);
    change(&state, &state.replicas.begin()->second);
    return state.Encode();
  };
  EXPECT_TRUE(is_refused(changed([](RankState*, Replica* w) { w->processes.Set(3); })));
  EXPECT_TRUE(is_refused(changed([](RankState* of, Replica*) { of->probes["w"].Set(3); })));
  EXPECT_TRUE(is_refused(changed([](RankState* of, Replica*) { of->unknown["w"].Set(3); })));
  EXPECT_TRUE(is_refused(
      changed([](RankState*, Replica* w) { w->votes.begin()->second.Add(3, {}, std::nullopt); })));
  EXPECT_TRUE(is_refused(changed([](RankState* of, Replica*) { of->processes.pop_back(); })));
}

// Whatever became of the bytes.
TEST(Ranks, ADamagedStateIsRefusedOrCanBeMerged) {
  Ranked run(3, 1);
  RankFold fold(RanksOptions{});
  for (const std::size_t at : {0, 1, 2}) run.AddTo(&fold, at);
  const std::string good = fold.Encode();
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(~bad[at]);
    const Result<RankFold> decoded = RankFold::Decode(bad, {});
    if (!decoded.ok()) continue;
    RankFold other(RanksOptions{});
    other.Merge(*decoded);
  }
}

// A process that was recorded twice goes on if one of its recordings does.
TEST(Ranks, AProcessGoesOnIfOneOfItsRecordingsDoes) {
  for (const std::size_t growing : {0, 1}) {
    Ranked run(2, 4), again(2, 4);
    Ranked* runs[] = {&run, &again};
    runs[growing]->sources[0]->description.is_growing = true;
    RankFold whole({}), parts({});
    for (const Ranked* one : runs) {
      RankFold part({});
      for (const std::size_t at : {0, 1}) {
        const std::string path = std::to_string(one == &again) + "r" + std::to_string(at);
        ASSERT_TRUE(whole.Add(*one->sources[at], path).ok());
        ASSERT_TRUE(part.Add(*one->sources[at], path).ok());
      }
      parts.Merge(part);
    }
    EXPECT_TRUE(whole.Finish().goes_on);
    EXPECT_EQ(Dump(RanksJson(whole.Finish(), {}), true), Dump(RanksJson(parts.Finish(), {}), true));
  }
}

TEST(Ranks, AGrowingSourceIsTakenInOnce) {
  Ranked run(2, 4);
  RankFold fold(RanksOptions{.follows = true});
  run.AddTo(&fold, 0);
  run.AddTo(&fold, 1);
  run.Step(0, 5);
  run.Step(1, 5);
  run.AddTo(&fold, 0);
  run.AddTo(&fold, 1);
  const RanksReport report = fold.Finish();
  EXPECT_EQ(report.compared, 10u);
  EXPECT_EQ(report.snapshots, 30u);
  EXPECT_TRUE(report.complete());
}

TEST(Ranks, AClockThatIsOffIsSaidAndPairsNothingWrong) {
  Ranked run(3);
  for (const auto& source : run.sources) source->timestamp_ns = 1'000 * kSecond;
  run.sources[1]->timestamp_ns += 60 * kSecond;
  const RanksReport report = run.Report();
  EXPECT_TRUE(report.complete());
  EXPECT_FALSE(report.found());
  EXPECT_THAT(report.notes, ElementsAre(HasSubstr("the clock of rank 1 is 60 s ahead of")));
}

}  // namespace
}  // namespace cgdebug::analysis
