// Where the order of a graph's nodes may be cut, and which accesses no path orders.
#include "libprobe/apart/dag.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

namespace cgdebug::apart {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Nodes = Dag::Nodes;

std::vector<Nodes> CutAll(const Dag& dag) { return dag.Cut(std::vector<bool>(dag.count(), false)); }

// By the definition: which nodes come after which.
std::vector<std::vector<bool>> Closure(const Dag& dag) {
  std::vector<std::vector<bool>> later(dag.count(), std::vector<bool>(dag.count(), false));
  for (auto node = dag.order().rbegin(); node != dag.order().rend(); ++node) {
    for (const std::uint32_t next : dag.after(*node)) {
      later[*node][next] = true;
      for (std::size_t i = 0; i < dag.count(); ++i) {
        if (later[next][i]) later[*node][i] = true;
      }
    }
  }
  return later;
}

TEST(Dag, OrderHasEachNodeBehindThoseThatItComesAfterAndTheFirstOfSeveral) {
  const Dag dag(4, {{2, 0}, {2, 3}, {0, 1}, {3, 1}});
  EXPECT_THAT(dag.order(), ElementsAre(2, 0, 3, 1));
}

TEST(Dag, ACycleAndANodeThatIsNotThereAreRefused) {
  EXPECT_THROW(Dag(2, {{0, 1}, {1, 0}}), std::invalid_argument);
  EXPECT_THROW(Dag(2, {{0, 2}}), std::invalid_argument);
}

TEST(Dag, AChainIsCutBehindEachNode) {
  EXPECT_THAT(CutAll(Dag(3, {{0, 1}, {1, 2}})),
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2)));
  EXPECT_THAT(CutAll(Dag(0, {})), IsEmpty());
}

TEST(Dag, AParallelRegionIsOnePiece) {
  // 0 -> (1 -> 2 | 3) -> 4 -> 5
  const Dag dag(6, {{0, 1}, {1, 2}, {0, 3}, {2, 4}, {3, 4}, {4, 5}});
  EXPECT_THAT(CutAll(dag),
              ElementsAre(ElementsAre(0), ElementsAre(1, 2, 3), ElementsAre(4), ElementsAre(5)));
}

TEST(Dag, AnEdgePastANodeThatIsInOrderAnywayJoinsNothing) {
  EXPECT_THAT(CutAll(Dag(3, {{0, 1}, {1, 2}, {0, 2}})),
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2)));
}

TEST(Dag, NodesThatNoEdgeJoinsAreOnePiece) {
  EXPECT_THAT(CutAll(Dag(3, {{0, 1}})), ElementsAre(ElementsAre(0, 1, 2)));
}

TEST(Dag, LeavesThatWaitForNobodyDoNotHoldTheirGraphTogether) {
  // 0 -> 1 -> 2, with leaves 3 behind 0 and 4 behind 1 and 3.
  const Dag dag(5, {{0, 1}, {1, 2}, {0, 3}, {1, 4}, {3, 4}});
  EXPECT_THAT(CutAll(dag), ElementsAre(ElementsAre(0), ElementsAre(1, 2, 3, 4)));
  EXPECT_THAT(
      dag.Cut({false, false, false, true, true}),
      ElementsAre(ElementsAre(0), ElementsAre(3), ElementsAre(1), ElementsAre(4), ElementsAre(2)));
}

TEST(Dag, ANodeThatOthersComeAfterIsNoLeaf) {
  const Dag dag(3, {{0, 1}, {1, 2}});
  EXPECT_THAT(dag.Cut({false, true, false}),
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2)));
}

TEST(Dag, PiecesOfRandomGraphsAreWholeAndCutAtEachNodeThatIsInOrderWithAll) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const std::uint32_t count = 1 + random() % 24;
    std::vector<Edge> edges;
    for (std::uint32_t to = 1; to < count; ++to) {
      for (std::uint32_t i = random() % 3; i > 0; --i) {
        edges.push_back({static_cast<std::uint32_t>(random() % to), to});
      }
    }
    const Dag dag(count, edges);
    std::vector<bool> may_trail;
    for (std::uint32_t i = 0; i < count; ++i) may_trail.push_back(random() % 4 == 0);
    const std::vector<Nodes> pieces = dag.Cut(may_trail);
    const auto later = Closure(dag);
    std::vector<std::size_t> piece_of(count, pieces.size());
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      for (const std::uint32_t node : pieces[p]) {
        ASSERT_EQ(piece_of[node], pieces.size()) << "in two pieces";
        piece_of[node] = p;
      }
    }
    std::vector<bool> trails(count);
    for (std::uint32_t node = 0; node < count; ++node) {
      ASSERT_LT(piece_of[node], pieces.size()) << "in no piece";
      trails[node] = may_trail[node];
      for (std::uint32_t other = 0; other < count; ++other) {
        if (later[node][other]) {
          ASSERT_LE(piece_of[node], piece_of[other]);
          if (!may_trail[other]) trails[node] = false;
        }
      }
    }
    for (std::uint32_t node = 0; node < count; ++node) {
      if (trails[node]) continue;
      bool is_in_order = true;
      for (std::uint32_t other = 0; other < count; ++other) {
        const bool is_beside =
            other != node && !trails[other] && !later[node][other] && !later[other][node];
        if (!is_beside) continue;
        is_in_order = false;
        ASSERT_EQ(piece_of[node], piece_of[other]) << "a region was cut";
      }
      if (is_in_order) {
        ASSERT_THAT(pieces[piece_of[node]], ElementsAre(node));
      }
    }
  }
}

TEST(Conflicts, AWriteBesideAReadOfTheSameBytesIsOne) {
  const Dag dag(4, {{0, 1}, {0, 2}, {1, 3}, {2, 3}});
  const auto found = FindConflicts(dag, CutAll(dag), {{1, 100, 200, true}, {2, 150, 300, false}});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].first, 0u);
  EXPECT_EQ(found[0].second, 1u);
  EXPECT_EQ(found[0].begin, 150u);
  EXPECT_EQ(found[0].end, 200u);
}

TEST(Conflicts, TwoReadsOrOtherBytesOrAPathBetweenAreNone) {
  const Dag dag(4, {{0, 1}, {0, 2}, {1, 3}, {2, 3}});
  EXPECT_THAT(FindConflicts(dag, CutAll(dag), {{1, 0, 8, false}, {2, 0, 8, false}}), IsEmpty());
  EXPECT_THAT(FindConflicts(dag, CutAll(dag), {{1, 0, 8, true}, {2, 8, 16, true}}), IsEmpty());
  EXPECT_THAT(FindConflicts(dag, CutAll(dag), {{0, 0, 8, true}, {2, 0, 8, true}}), IsEmpty());
  EXPECT_THAT(FindConflicts(dag, CutAll(dag), {{1, 8, 8, true}, {2, 0, 16, true}}), IsEmpty());
}

// A program on streams that waits wherever bytes are handed over. Left out: one of the waits.
struct Program {
  std::vector<Edge> edges;
  std::vector<Access> accesses;
  std::uint32_t count = 0;
};

constexpr std::uint64_t kBuffers = 12;
constexpr std::uint64_t kBytes = 64;

Program RandomProgram(std::mt19937& random) {
  Program program;
  std::vector<std::int64_t> last_of_stream(1 + random() % 4, -1);
  std::vector<std::int64_t> writer(kBuffers, -1);
  std::vector<std::vector<std::uint32_t>> readers(kBuffers);
  program.count = 10 + random() % 40;
  for (std::uint32_t node = 0; node < program.count; ++node) {
    std::int64_t& last = last_of_stream[random() % last_of_stream.size()];
    if (last >= 0) program.edges.push_back({static_cast<std::uint32_t>(last), node});
    last = node;
    const auto waits_for = [&](std::int64_t other) {
      if (other >= 0 && other != node) {
        program.edges.push_back({static_cast<std::uint32_t>(other), node});
      }
    };
    for (std::uint32_t i = random() % 3; i > 0; --i) {
      const std::uint64_t buffer = random() % kBuffers;
      waits_for(writer[buffer]);
      readers[buffer].push_back(node);
      program.accesses.push_back({node, buffer * kBytes, (buffer + 1) * kBytes, false});
    }
    const std::uint64_t buffer = random() % kBuffers;
    waits_for(writer[buffer]);
    for (const std::uint32_t reader : readers[buffer]) waits_for(reader);
    readers[buffer].clear();
    writer[buffer] = node;
    program.accesses.push_back({node, buffer * kBytes, (buffer + 1) * kBytes, true});
  }
  return program;
}

std::set<std::pair<std::uint32_t, std::uint32_t>> ByDefinition(const Program& program,
                                                               const Dag& dag) {
  const auto later = Closure(dag);
  std::set<std::pair<std::uint32_t, std::uint32_t>> found;
  for (const Access& a : program.accesses) {
    for (const Access& b : program.accesses) {
      const bool is_pair = a.node < b.node && (a.writes || b.writes) && a.begin < b.end &&
                           b.begin < a.end && !later[a.node][b.node] && !later[b.node][a.node];
      if (is_pair) found.emplace(a.node, b.node);
    }
  }
  return found;
}

TEST(Conflicts, InRandomProgramsEachPlantedOneIsFoundAndNoOther) {
  std::mt19937 random(11);
  int planted = 0;
  for (int round = 0; round < 100; ++round) {
    Program program = RandomProgram(random);
    const Dag right(program.count, program.edges);
    ASSERT_THAT(FindConflicts(right, CutAll(right), program.accesses), IsEmpty());
    for (int take = 0; take < 5 && !program.edges.empty(); ++take) {
      program.edges.erase(program.edges.begin() +
                          static_cast<std::ptrdiff_t>(random() % program.edges.size()));
      const Dag dag(program.count, program.edges);
      std::set<std::pair<std::uint32_t, std::uint32_t>> found;
      for (const Conflict& one : FindConflicts(dag, CutAll(dag), program.accesses)) {
        found.emplace(program.accesses[one.first].node, program.accesses[one.second].node);
      }
      const auto expected = ByDefinition(program, dag);
      ASSERT_EQ(found, expected);
      planted += static_cast<int>(expected.size());
    }
  }
  EXPECT_GT(planted, 100);
}

}  // namespace
}  // namespace cgdebug::apart
