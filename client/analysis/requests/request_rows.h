// request_rows.h: which token of which request each row of a call holds, as cgdebug.rows() told,
// and where its snapshots are.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "client/analysis/diff/align.h"
#include "client/source/source.h"
#include "daemon/core/base/result.h"

namespace cgdebug::analysis::requests {

// The probe of cgdebug.rows(): int64[rows,2], a request and a position in a row. A negative request
// is padding.
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

// One call of a model, or one replay of a graph.
struct CallName {
  std::string process;
  std::uint64_t graph_id = 0;
  std::uint64_t replay = 0;
  auto operator<=>(const CallName&) const = default;
};

// A probe, whatever graph it lies in: its name, which call of it in the capture, and which in the
// replay.
using ProbeName = std::tuple<std::string, std::uint32_t, std::uint32_t>;

struct Seen {
  std::size_t slot = 0;
  source::Key key;
};

struct Call {
  source::Moment moment;
  std::vector<std::optional<Token>> rows;  // nothing: padding
  std::map<ProbeName, Seen> probes;
  std::map<ProbeName, Seen> sketches;  // by the probe of which they are
};

struct RowPlace {
  std::size_t call = 0;  // place in RequestRows::calls
  std::size_t row = 0;
};

// The calls of one source whose rows are known.
struct RequestRows {
  std::vector<Call> calls;                        // in the order in which they came
  std::map<Token, std::vector<RowPlace>> tokens;  // each as often as it was computed
  std::uint64_t calls_without_rows = 0;           // of which probes saw something
};

// The probe of whose rows this one keeps sketches; nothing: it is another one.
std::optional<std::string> SketchedBy(std::string_view probe);

// Fails: a source that cannot be read, or rows that are not int64[rows,2] with values.
Result<RequestRows> ReadRequestRows(source::Source& source, const Scope& scope);

}  // namespace cgdebug::analysis::requests
