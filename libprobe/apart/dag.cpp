#include "libprobe/apart/dag.h"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace cgdebug::apart {

Dag::Dag(std::size_t count, const std::vector<Edge>& edges) : after_(count), before_(count) {
  std::vector<std::size_t> left(count, 0);
  for (const Edge& edge : edges) {
    if (edge.from >= count || edge.to >= count) {
      throw std::invalid_argument("an edge of the graph names a node that is not there");
    }
    after_[edge.from].push_back(edge.to);
    before_[edge.to].push_back(edge.from);
    ++left[edge.to];
  }
  std::priority_queue<std::uint32_t, Nodes, std::greater<>> ready;
  for (std::uint32_t node = 0; node < count; ++node) {
    if (left[node] == 0) ready.push(node);
  }
  while (!ready.empty()) {
    const std::uint32_t node = ready.top();
    ready.pop();
    order_.push_back(node);
    for (const std::uint32_t next : after_[node]) {
      if (--left[next] == 0) ready.push(next);
    }
  }
  if (order_.size() != count) throw std::invalid_argument("the edges of the graph have a cycle");
}

std::vector<bool> Dag::Trailing(const std::vector<bool>& may_trail) const {
  std::vector<bool> trails(count(), false);
  for (auto node = order_.rbegin(); node != order_.rend(); ++node) {
    trails[*node] =
        may_trail[*node] && std::all_of(after_[*node].begin(), after_[*node].end(),
                                        [&](std::uint32_t next) { return trails[next]; });
  }
  return trails;
}

std::vector<bool> Dag::InOrderWithAll(const Nodes& path, const std::vector<bool>& trails,
                                      const std::vector<std::size_t>& place) const {
  // A node is in order with all others if it is the only one up to its place that nothing up to it
  // comes after, and the only one from its place on that comes after nothing from it on.
  const std::size_t size = path.size();
  std::vector<std::size_t> followed(size + 1, 0);  // nodes whose first follower is at this place
  std::vector<std::size_t> preceded(size + 1, 0);  // nodes that come last after the one here
  for (const std::uint32_t node : path) {
    std::size_t first = size;
    std::size_t last = size;
    for (const std::uint32_t next : after_[node]) {
      if (!trails[next]) first = std::min(first, place[next]);
    }
    for (const std::uint32_t previous : before_[node]) {
      last = last == size ? place[previous] : std::max(last, place[previous]);
    }
    ++followed[first];
    ++preceded[last];
  }
  std::vector<bool> is_cut(size, false);
  for (std::size_t i = 0, ends = 0; i < size; ++i) {
    ends += 1 - followed[i];
    is_cut[i] = ends == 1;
  }
  for (std::size_t i = size, begins = 0; i-- > 0;) {
    begins += 1 - preceded[i];
    if (begins != 1) is_cut[i] = false;
  }
  return is_cut;
}

std::vector<Dag::Nodes> Dag::Cut(const std::vector<bool>& may_trail) const {
  const std::vector<bool> trails = Trailing(may_trail);
  Nodes path;  // the others, in order
  std::vector<std::size_t> place(count(), 0);
  for (const std::uint32_t node : order_) {
    if (trails[node]) continue;
    place[node] = path.size();
    path.push_back(node);
  }
  const std::size_t size = path.size();
  const std::vector<bool> is_cut = InOrderWithAll(path, trails, place);
  std::vector<Nodes> pieces;
  std::vector<std::size_t> piece_of(count(), 0);
  for (std::size_t i = 0; i < size; ++i) {
    if (i == 0 || is_cut[i] || is_cut[i - 1]) pieces.emplace_back();
    pieces.back().push_back(path[i]);
    piece_of[path[i]] = pieces.size() - 1;
  }
  std::vector<Nodes> behind(pieces.size() + 1);  // the last: of those that come after no piece
  for (const std::uint32_t node : order_) {
    if (!trails[node]) continue;
    std::size_t last = pieces.size();
    for (const std::uint32_t previous : before_[node]) {
      if (piece_of[previous] == pieces.size()) continue;
      last = last == pieces.size() ? piece_of[previous] : std::max(last, piece_of[previous]);
    }
    piece_of[node] = last;
    behind[last].push_back(node);
  }
  std::vector<Nodes> all;
  if (!behind.back().empty()) all.push_back(std::move(behind.back()));
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    all.push_back(std::move(pieces[i]));
    if (!behind[i].empty()) all.push_back(std::move(behind[i]));
  }
  return all;
}

namespace {

// Which nodes of one piece come after which.
class Reach {
 public:
  Reach(const Dag& dag, const Dag::Nodes& nodes)
      : words_((nodes.size() + 63) / 64), bits_(nodes.size() * words_, 0) {
    for (std::size_t i = 0; i < nodes.size(); ++i) place_[nodes[i]] = i;
    for (std::size_t i = nodes.size(); i-- > 0;) {  // a piece has them in order
      for (const std::uint32_t next : dag.after(nodes[i])) {
        const auto found = place_.find(next);
        if (found == place_.end()) continue;
        const std::size_t j = found->second;
        bits_[i * words_ + j / 64] |= std::uint64_t{1} << (j % 64);
        for (std::size_t w = 0; w < words_; ++w) bits_[i * words_ + w] |= bits_[j * words_ + w];
      }
    }
  }
  bool AreOrdered(std::uint32_t a, std::uint32_t b) const {
    const std::size_t i = place_.at(a);
    const std::size_t j = place_.at(b);
    return i == j || Has(i, j) || Has(j, i);
  }

 private:
  bool Has(std::size_t i, std::size_t j) const {
    return (bits_[i * words_ + j / 64] >> (j % 64) & 1) != 0;
  }
  const std::size_t words_;
  std::vector<std::uint64_t> bits_;
  std::map<std::uint32_t, std::size_t> place_;
};

}  // namespace

std::vector<Conflict> FindConflicts(const Dag& dag, const std::vector<Dag::Nodes>& pieces,
                                    const std::vector<Access>& accesses) {
  std::vector<std::vector<std::size_t>> of_node(dag.count());
  for (std::size_t i = 0; i < accesses.size(); ++i) {
    if (accesses[i].begin < accesses[i].end) of_node.at(accesses[i].node).push_back(i);
  }
  std::vector<Conflict> found;
  for (const Dag::Nodes& piece : pieces) {
    if (piece.size() < 2) continue;
    std::vector<std::size_t> here;
    for (const std::uint32_t node : piece) {
      here.insert(here.end(), of_node[node].begin(), of_node[node].end());
    }
    std::sort(here.begin(), here.end(), [&](std::size_t a, std::size_t b) {
      return std::tie(accesses[a].begin, a) < std::tie(accesses[b].begin, b);
    });
    const Reach reach(dag, piece);
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<Conflict>> by_nodes;
    std::vector<std::size_t> open;  // those that may reach the bytes of the next one
    for (const std::size_t i : here) {
      const Access& next = accesses[i];
      std::erase_if(open, [&](std::size_t j) { return accesses[j].end <= next.begin; });
      for (const std::size_t j : open) {
        const Access& other = accesses[j];
        if ((!next.writes && !other.writes) || reach.AreOrdered(next.node, other.node)) continue;
        const bool is_first = next.node < other.node;
        std::vector<Conflict>& of_pair = by_nodes[std::minmax(next.node, other.node)];
        if (of_pair.size() >= kMostConflictsOfAPair) continue;
        of_pair.push_back(
            {is_first ? i : j, is_first ? j : i, next.begin, std::min(next.end, other.end)});
      }
      open.push_back(i);
    }
    for (const auto& [nodes, of_pair] : by_nodes) {
      found.insert(found.end(), of_pair.begin(), of_pair.end());
    }
  }
  return found;
}

}  // namespace cgdebug::apart
