#include "client/analysis/where.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace cgdebug::analysis {
namespace {

using Kind = Place::Kind;

Passed At(const std::string& name, std::uint64_t order, std::uint64_t replay,
          std::uint64_t graph_id = 1) {
  return {.name = name,
          .order = order,
          .graph_id = graph_id,
          .graph = graph_id == 0 ? "" : "g" + std::to_string(graph_id),
          .replay = replay,
          .last_ns = static_cast<std::int64_t>(10 * replay + order)};
}

Passed Row(std::uint32_t number, std::uint32_t launch, std::uint64_t replay) {
  Passed passed = At("row" + std::to_string(number), 100 + number, replay);
  passed.number = number;
  passed.launch = launch;
  return passed;
}

std::string Around(const Place& place) {
  const auto name = [](const auto& stop) { return stop ? stop->name : std::string("-"); };
  return name(place.after) + " | " + name(place.before) + " .. " + name(place.before_last);
}

TEST(Where, IsBetweenTheLastProbeThatCommittedTheReplayAndTheNextInGraphOrder) {
  const Place place = FindPlace({.passed = {At("c", 3, 6), At("a", 1, 7), At("b", 2, 7)}});
  EXPECT_EQ(place.kind, Kind::kInside);
  EXPECT_EQ(Around(place), "b | c .. -");
  EXPECT_EQ(place.replay, 7u);
  EXPECT_EQ(place.count, 2u);
  EXPECT_EQ(place.total, 3u);
  EXPECT_EQ(place.moved_ns, 72);
}

TEST(Where, AProbeThatStoppedEarlierSaysNothing) {
  const Place place = FindPlace({.passed = {At("a", 1, 7), At("closed", 2, 2), At("c", 3, 7)}});
  EXPECT_EQ(place.kind, Kind::kPassed);
  EXPECT_EQ(Around(place), "c | - .. -");
  EXPECT_EQ(place.total, 2u);
}

TEST(Where, AProbeThatDoesNotWantTheReplaySaysNothing) {
  Trail trail{.passed = {At("a", 1, 7), At("seldom", 2, 6), At("c", 3, 7)}};
  trail.passed[1].every = 5;  // 1, 6, 11
  EXPECT_EQ(FindPlace(trail).kind, Kind::kPassed);
  trail.passed[0].replay = 11;
  trail.passed[2].replay = 10;
  EXPECT_EQ(Around(FindPlace(trail)), "a | seldom .. -");
}

TEST(Where, KnowsALaunchThatPassedNothingYetFromOneThatFinished) {
  Trail trail{.passed = {At("a", 1, 7), At("b", 2, 7)}, .graphs = {{1, "g1", 7}}};
  EXPECT_EQ(FindPlace(trail).kind, Kind::kFinished);
  trail.graphs[0].count = 9;
  const Place place = FindPlace(trail);
  EXPECT_EQ(place.kind, Kind::kLaunched);
  EXPECT_EQ(place.replay, 8u);
  EXPECT_EQ(Around(place), "- | a .. -");
  trail.graphs[0].count.reset();
  EXPECT_EQ(FindPlace(trail).kind, Kind::kPassed);
}

TEST(Where, RowsOfOneLaunchAreNamedTogetherAndSayMoreThanProbes) {
  const Trail trail{.passed = {At("p", 1, 3), At("q", 2, 2), Row(1, 1, 3), Row(2, 1, 3),
                               Row(3, 2, 2), Row(4, 2, 2), Row(5, 3, 2)}};
  const Place place = FindPlace(trail);
  EXPECT_TRUE(place.has_rows);
  EXPECT_EQ(Around(place), "row2 | row3 .. row4");
  EXPECT_EQ(place.total, 5u);
}

TEST(Where, PrefersTheGraphThatIsUnderWay) {
  const Place place = FindPlace(
      {.passed = {At("a", 1, 9, 1), At("b", 2, 2, 2), At("c", 3, 1, 2), At("eager", 4, 99, 0)},
       .graphs = {{1, "g1", 10}, {2, "g2", 2}}});
  EXPECT_EQ(place.graph, "g2");
  EXPECT_EQ(Around(place), "b | c .. -");
  EXPECT_EQ(place.moved_ns, 994) << "of the process";
  ASSERT_EQ(place.also_launched.size(), 1u);
  EXPECT_EQ(place.also_launched[0].graph, "g1");
  EXPECT_EQ(place.also_launched[0].count, 10u);
}

TEST(Where, OfTheRowsOfACallTheLastOneSaysWhereItIs) {
  Trail trail{.passed = {Row(1, 0, 4), Row(2, 0, 4), Row(3, 0, 4)}};
  for (Passed& row : trail.passed) row.graph_id = 0, row.last_ns = 40;
  trail.passed[1].order = 200;  // an earlier call had no such row
  const Place place = FindPlace(trail);
  EXPECT_EQ(place.kind, Kind::kEagerRuns);
  EXPECT_EQ(place.after->name, "row3");
}

TEST(Where, EagerProbesTellByTheirTime) {
  const Place place = FindPlace({.passed = {At("a", 1, 9, 0), At("b", 2, 9, 0), At("c", 3, 8, 0)}});
  EXPECT_EQ(place.kind, Kind::kEager);
  EXPECT_EQ(Around(place), "b | c .. -");
}

// A trigger makes a probe pass a replay that it need not tell of.
TEST(Where, AReplayThatWasPassedOutOfTurnIsWhereItStands) {
  Trail trail{.passed = {At("a", 1, 8), At("b", 2, 1)}};
  for (Passed& passed : trail.passed) passed.every = 10;
  const Place place = FindPlace(trail);
  EXPECT_EQ(place.kind, Kind::kPassed);
  EXPECT_EQ(place.replay, 8u);
  EXPECT_EQ(Around(place), "a | - .. -");
}

TEST(Where, NothingIsNowhere) {
  EXPECT_EQ(FindPlace({}).kind, Kind::kNowhere);
  EXPECT_EQ(FindPlace({.passed = {At("a", 1, 0)}}).kind, Kind::kNowhere);
  EXPECT_EQ(FindPlace({.passed = {At("a", 1, 0, 0)}}).kind, Kind::kNowhere);
  EXPECT_EQ(FindPlace({.passed = {At("a", 1, 0)}, .graphs = {{1, "g1", 1}}}).kind, Kind::kLaunched);
}

TEST(Where, NumbersThatNoJobHasDoNotBreakIt) {
  const std::uint64_t most = ~std::uint64_t{0};
  Passed odd = At("a", most, most);
  odd.every = 0;
  const Place place = FindPlace({.passed = {odd, At("b", 0, 1)}, .graphs = {{1, "", most}}});
  EXPECT_EQ(place.replay, most);
}

TEST(Where, TheOddOneIsNotWhereMostAreOrElseBehind) {
  const auto at = [](std::uint64_t replay) { return FindPlace({.passed = {At("a", 1, replay)}}); };
  EXPECT_THAT(FindOdd({at(5), at(4), at(4)}), ::testing::ElementsAre(true, false, false));
  EXPECT_THAT(FindOdd({at(5), at(4)}), ::testing::ElementsAre(false, true));
  EXPECT_THAT(FindOdd({at(5), at(5)}), ::testing::ElementsAre(false, false));
  EXPECT_THAT(FindOdd({}), ::testing::ElementsAre());
}

}  // namespace
}  // namespace cgdebug::analysis
