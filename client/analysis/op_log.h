// op_log.h: what every op of one replay wrote, as a source shows it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/source/source.h"
#include "daemon/core/base/result.h"
#include "daemon/core/numerics/stats.h"
#include "proto/layout/dtype.h"

namespace cgdebug::analysis {

// One tensor that an op wrote.
struct OpRow {
  std::uint32_t number = 0;  // in its log, from 1; a row comes after those that it read
  std::string name;          // "fwd/layers.3.attn/mm_2"
  std::string op;            // "aten.mm.default"; "input": nothing in the log has written it
  std::vector<std::uint32_t> inputs;  // numbers of the rows that the op read
  bool is_covered = true;             // whether rows show all that it read
  std::string site = {};
  std::string type;  // "bf16[8,512]"
  layout::Dtype dtype = layout::Dtype::kInvalid;
  std::vector<std::uint64_t> shape;
  std::optional<numerics::Stats> stats = {};         // of the replay; absent: they are lost
  std::optional<numerics::Stats> stats_before = {};  // of the replay before it
};

// The rows of one replay of one graph, or of one eager run.
struct OpLog {
  std::string graph;  // what the graph is called; "eager"
  std::uint64_t graph_id = 0;
  std::string session;
  int rank = -1;
  std::uint64_t replay = 0;
  std::vector<OpRow> rows = {};  // by number
  // Sentences about what the log does not show, except lost rows.
  std::vector<std::string> gaps = {};

  std::size_t lost() const;
  // The row with that number; nullptr without one.
  const OpRow* Find(std::uint32_t number) const;
};

// Parses SlotRegistration::op. Fails: nullopt if it does not describe a row.
struct OpText {
  std::uint32_t number = 0;
  std::string op;
  std::vector<std::uint32_t> inputs = {};
  bool is_covered = true;
};
std::optional<OpText> ParseOpText(std::string_view text);

// "fwd/layers.3.attn" of "fwd/layers.3.attn/mm_2"; empty without a '/'.
std::string_view PlaceOf(const OpRow& row);
// "mm" of "aten.mm.default" and of "aten.mm.out"; with the namespace if it is not aten.
std::string_view BaseOf(std::string_view op);

// The first row with a NaN or an Inf, except those that may be masks (masks.h); nullptr without
// one.
const OpRow* FirstNonfinite(const OpLog& log);
const OpRow* FirstNan(const OpLog& log);
// Whether all that `row` read is shown and finite.
bool HasFiniteInputs(const OpLog& log, const OpRow& row);
bool HasInputsWithoutNan(const OpLog& log, const OpRow& row);

// Selects one op log of a source.
struct OpLogChoice {
  std::string graph;         // a label, the number of a capture, or "eager"; empty: the newest log
  std::int64_t replay = -1;  // from 1; -1 is the newest, -2 the one before it
};

// `others`: the names of the logs that were not chosen.
// Fails: the source has no op log, or none of that graph or replay.
Result<OpLog> ReadOpLog(source::Source& source, const OpLogChoice& choice,
                        std::vector<std::string>* others);

}  // namespace cgdebug::analysis
