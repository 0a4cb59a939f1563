// request_rows.h: which token of which request each row of a call holds, as cgdebug.rows() told,
// and where its snapshots are.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "client/analysis/diff/align.h"
#include "client/source/source.h"
#include "daemon/core/base/result.h"

namespace cgdebug::analysis::requests {

// The probe of cgdebug.rows(): int64[rows,2], a request and a position in a row. A negative request
// is padding. "rows/lm_head" is that of cgdebug.rows(..., of="lm_head").
inline constexpr std::string_view kRowsProbe = "rows";

// In front of the name of a probe that keeps a sketch of each row of what another one sees:
// python/cgdebug/_watching/sketches.py.
inline constexpr std::string_view kSketchOf = "sketch/";

struct Token {
  std::int64_t request = 0;
  std::int64_t position = 0;
  auto operator<=>(const Token&) const = default;
};

// "request 17 position 412". The number of a request that was named by a text is shown in
// hexadecimal.
std::string TokenText(const Token& token);

// One call of a model outside of graphs, or one replay of a graph.
struct CallName {
  std::string process;
  std::uint64_t graph_id = 0;
  std::uint64_t replay = 0;
  auto operator<=>(const CallName&) const = default;
};

// A probe, whatever graph it lies in: its name, which call of it in the call of the model, and
// which iteration of a conditional body.
using ProbeName = std::tuple<std::string, std::uint32_t, std::uint32_t>;

// Which token each row holds. A row without one is padding.
using Table = std::vector<std::optional<Token>>;

// Of Seen::slot: the source has let the snapshot go.
inline constexpr std::size_t kGone = SIZE_MAX;

struct Seen {
  std::size_t slot = 0;
  source::Key key;
  std::int64_t began_ns = 0;  // in a graph: when the rows of this graph were seen
};

// One call of a model. Several graphs and what runs between them may compute it, each of which
// tells the same rows.
struct Call {
  std::uint64_t number = 0;  // in the order in which they came, from 1; 0: nothing was seen in it
  source::Moment moment;
  std::optional<Table> rows;            // nothing: nobody told them
  std::map<std::string, Table> tables;  // of modules whose outputs have other rows, by their names
  std::map<ProbeName, Seen> probes;
  std::map<ProbeName, Seen> sketches;  // by the probe of which they are
  bool is_gone = false;                // the source has let go all of it
  std::set<std::uint64_t> graphs;      // that computed it; 0: code outside of graphs
  // The first ProbeName of what a probe saw in a part of it; of tensors of these first dimensions
  // outside of graphs, where each has calls of its own.
  std::map<std::tuple<std::string, CallName, std::vector<std::uint64_t>>, std::uint32_t> firsts;

  // The rows of what a probe sees. Requires: `rows`.
  const Table& TableOf(const ProbeName& probe) const;
};

// The probe of whose rows this one keeps sketches; nothing: it is another one.
std::optional<std::string> SketchedBy(std::string_view probe);

// The calls of one source, which is looked at once, or again and again while it lets calls go.
class RequestRows {
 public:
  // Returns the calls with rows that no look before has seen, in the order in which they came.
  // Fails: a source that cannot be read, or rows that are not int64[rows,2] with values.
  // Lifetime: a call lives until it is gone and ForgetGone() is called.
  Result<std::vector<Call*>> Look(source::Source& source, const Scope& scope);
  void ForgetGone();

  bool empty() const { return last_number_ == 0; }
  std::uint64_t CountCallsWithoutRows() const;  // of which probes saw something
  // The shortest time in which the snapshots came that the source keeps of a slot, of those slots
  // that had a new one in the last look. Nothing: none had, or it was the first look.
  std::optional<std::int64_t> kept_ns() const { return kept_ns_; }
  // What is missing from all looks, given the source of the last one.
  std::vector<std::string> Gaps(source::Source& source, const Scope& scope) const;

 private:
  // The snapshots of a slot in all looks.
  struct Counted {
    std::uint64_t count = 0;
    std::uint64_t last_id = 0;  // Key::id
  };

  // A call whose rows were told, or a part of one.
  struct Part {
    CallName call;
    std::int64_t began_ns = 0;
  };
  using Calls = std::map<CallName, Call>;

  // Makes it a part of one with the same rows that lacks what it has, or, if it is of another
  // graph, some of it: several parts may call one module. Whether there is one: then it is no call
  // of its own any more.
  bool JoinsAnother(Calls::iterator call, const std::vector<source::Slot>& slots);
  Result<void> ReadTables(source::Source& source, const Scope& scope);
  Result<void> ReadProbes(source::Source& source, const Scope& scope);
  Result<void> CountSeen(source::Source& source, std::size_t slot);

  Calls calls_;
  std::map<CallName, Part> parts_;
  // Numbered calls, by process and first token.
  std::multimap<std::pair<std::string, Token>, CallName> by_token_;
  std::uint64_t last_number_ = 0;
  std::uint64_t gone_without_rows_ = 0;
  std::optional<std::int64_t> kept_ns_;
  std::map<std::tuple<std::string, std::uint64_t, std::uint64_t, std::string>, Counted> counted_;
  // By slot of the last source: how many of its snapshots were seen and are gone.
  std::map<std::size_t, std::uint64_t> seen_and_gone_;
};

}  // namespace cgdebug::analysis::requests
