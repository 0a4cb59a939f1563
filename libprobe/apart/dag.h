// dag.h: the nodes of a graph as numbers: where their order may be cut, and which of them no path
// orders. No CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cgdebug::apart {

struct Edge {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
};

class Dag {
 public:
  using Nodes = std::vector<std::uint32_t>;

  // Nodes are 0 to `count` - 1; an edge may be there twice.
  // Fails: throws std::invalid_argument if the edges have a cycle or name a node that is not there.
  Dag(std::size_t count, const std::vector<Edge>& edges);

  std::size_t count() const { return after_.size(); }
  // All nodes, each behind those that it comes after; of several that may be next, the first.
  const Nodes& order() const { return order_; }
  const Nodes& after(std::uint32_t node) const { return after_[node]; }
  const Nodes& before(std::uint32_t node) const { return before_[node]; }

  // All nodes in pieces that may run one after another, each as a whole: a node that is in order
  // with all others is a piece of its own, and what lies between two such nodes is one piece. So no
  // piece ends inside of a parallel region, where nodes may wait for each other.
  // `may_trail`: which nodes, if nothing but such nodes comes after them, do not count as parallel.
  // They wait for nobody beside them, and are pieces behind those that they come after.
  std::vector<Nodes> Cut(const std::vector<bool>& may_trail) const;

 private:
  std::vector<bool> Trailing(const std::vector<bool>& may_trail) const;
  // Which places of `path`, the nodes that do not trail, are in order with all others; `place` is
  // that of each node.
  std::vector<bool> InOrderWithAll(const Nodes& path, const std::vector<bool>& trails,
                                   const std::vector<std::size_t>& place) const;

  std::vector<Nodes> after_;
  std::vector<Nodes> before_;
  Nodes order_;
};

// What a node does to bytes.
struct Access {
  std::uint32_t node = 0;
  std::uint64_t begin = 0;  // address
  std::uint64_t end = 0;    // behind the last byte
  bool writes = false;
};

// Two nodes that no path orders, one of which writes bytes that the other reads or writes.
struct Conflict {
  std::size_t first = 0;  // places among the accesses
  std::size_t second = 0;
  std::uint64_t begin = 0;  // the bytes that both touch
  std::uint64_t end = 0;
};

inline constexpr std::size_t kMostConflictsOfAPair = 16;
// The conflicts between `accesses`, in the order of their nodes; of a pair of nodes those with the
// lowest addresses. `pieces`: as Dag::Cut() returns them; nodes of different pieces are in order.
// Takes memory in proportion to the square of the largest piece, a bit for each pair.
std::vector<Conflict> FindConflicts(const Dag& dag, const std::vector<Dag::Nodes>& pieces,
                                    const std::vector<Access>& accesses);

}  // namespace cgdebug::apart
