// What is told of the order of graphs, from three sides: a race, none, and what nobody looked at.
#include "client/analysis/ops/races.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "client/analysis/check/check.h"
#include "client/analysis/why/why.h"
#include "tests/support/analysis/memory_source.h"

namespace cgdebug::analysis {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing_support::MemorySource;

constexpr const char* kRace = "aten.mul.out fwd/mul_0 writes y, which aten.add.out fwd/add_0 reads";

void Tell(MemorySource* source, const std::string& text) {
  const std::size_t slot = source->AddSlot("ops/order", {0});
  source->Slots()[slot].op = "order " + text;
  source->Slots()[slot].graph_id = 0;
}

TEST(Races, OneIsFoundAlsoIfSomethingElseIsNotKnown) {
  MemorySource source;
  Tell(&source, "12 looked 9 4 1");
  Tell(&source, std::string("12 race ") + kRace);
  Tell(&source, "12 missing a node that no op made was launched");
  const Races races = FindRaces(source);
  EXPECT_EQ(races.outcome(), Outcome::kFound);
  ASSERT_THAT(races.graphs, SizeIs(1));
  EXPECT_THAT(races.graphs[0].races, ElementsAre(kRace));
  EXPECT_THAT(RacesAnswer(races).Text(), HasSubstr("graph 12: 1 race: no path"));
  EXPECT_THAT(RacesAnswer(races).Text(), HasSubstr(kRace));
}

TEST(Races, NoneIsSaidOfGraphsThatWereLookedAt) {
  MemorySource source;
  Tell(&source, "12 looked 9 0 0");
  Tell(&source, "13 looked 5 2 0");
  const Races races = FindRaces(source);
  EXPECT_EQ(races.outcome(), Outcome::kNothing);
  EXPECT_EQ(RacesAnswer(races).Text(),
            "no race\nlooked at 2 graphs with 14 nodes, of which 2 run beside others");
}

TEST(Races, NothingIsNotSaidOfWhatNobodyLookedAt) {
  MemorySource none;
  EXPECT_EQ(FindRaces(none).outcome(), Outcome::kInconclusive);
  EXPECT_THAT(RacesAnswer(FindRaces(none)).Text(), HasSubstr("cgdebug-cli run --races"));

  MemorySource unknown;
  Tell(&unknown, "12 looked 9 4 2");
  Tell(&unknown, "12 missing a node that no op made was launched");
  EXPECT_EQ(FindRaces(unknown).outcome(), Outcome::kInconclusive);
  EXPECT_THAT(RacesAnswer(FindRaces(unknown)).Text(), HasSubstr("2 nodes of graph 12"));

  MemorySource possible;
  Tell(&possible, "12 looked 9 4 0");
  Tell(&possible, std::string("12 possible ") + kRace);
  EXPECT_EQ(FindRaces(possible).outcome(), Outcome::kInconclusive);

  MemorySource failed;
  Tell(&failed, "12 missing an op log adds kernels");
  EXPECT_EQ(FindRaces(failed).outcome(), Outcome::kInconclusive);

  MemorySource later;  // whose notes this version does not know
  Tell(&later, "12 looked 9 0 0");
  Tell(&later, "12 seen something");
  EXPECT_THAT(FindRaces(later).graphs[0].missing, ElementsAre("something"));
  EXPECT_EQ(FindRaces(later).outcome(), Outcome::kInconclusive);

  MemorySource other;  // with a graph of which nothing is known
  Tell(&other, "12 looked 9 0 0");
  other.Slots()[other.AddSlot("blk", {4})].graph_id = 13;
  EXPECT_EQ(FindRaces(other).outcome(), Outcome::kInconclusive);
  EXPECT_THAT(FindRaces(other).not_looked, ElementsAre(HasSubstr("the order of 1 graph")));
}

TEST(Races, NotesAreNoProbesAndNoGaps) {
  MemorySource source;
  Tell(&source, "12 looked 9 0 0");
  const Result<Check> check = RunCheck(source, {});
  ASSERT_TRUE(check.ok());
  EXPECT_EQ(check->slots, 0u);
}

TEST(Races, ThatAreFoundAreCauses) {
  MemorySource source;
  Tell(&source, "12 looked 9 4 0");
  Tell(&source, std::string("12 race ") + kRace);
  const Result<why::Causes> causes = why::FindCauses(source);
  ASSERT_TRUE(causes.ok());
  ASSERT_THAT(causes->findings, SizeIs(1));
  EXPECT_EQ(causes->findings[0].kind, "race");
  EXPECT_THAT(causes->findings[0].sentence, HasSubstr(kRace));

  MemorySource clean;
  Tell(&clean, "12 looked 9 4 0");
  EXPECT_THAT(why::FindCauses(clean)->findings, IsEmpty());
  EXPECT_THAT(why::FindCauses(clean)->clean, ElementsAre("1 graph has its ops in order"));
}

}  // namespace
}  // namespace cgdebug::analysis
