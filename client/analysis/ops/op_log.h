// op_log.h: what every op of one replay wrote, as a source shows it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/analysis/ops/between_calls.h"
#include "client/source/source.h"
#include "daemon/core/base/result.h"
#include "daemon/core/numerics/stats.h"
#include "daemon/core/ops/op_text.h"
#include "proto/layout/dtype.h"

namespace cgdebug::analysis {

using ops::BaseOf, ops::OpGap, ops::OpText, ops::ParseOpText, ops::StemOf, ops::UnseenNodes;

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
  std::string details = {};                          // source::Slot::details
};

// What the rows of a log explain of the nodes of its graph: kernels, copies and the like.
struct Coverage {
  bool is_known = false;  // not of eager runs
  std::uint64_t explained = 0;
  std::uint64_t left_out = 0;  // of ops and kernels that are followed, but were not to be logged
  std::vector<UnseenNodes> unseen = {};

  std::uint64_t unseen_count() const;
  std::uint64_t nodes() const { return explained + left_out + unseen_count(); }
  // "5 kernels are in no row, first 3 kernels between ..."; empty if there are none.
  std::string Gap() const;
};

// The rows of one replay of one graph, or of one eager run.
struct OpLog {
  std::string graph;  // what the graph is called; "eager"
  std::uint64_t graph_id = 0;
  std::string session;
  std::string uuid = {};  // of the session; empty: unknown
  int rank = -1;
  std::uint64_t replay = 0;
  bool has_calls = false;        // `replay` is the number of an eager call
  std::int64_t step = -1;        // the user's own, -1: none
  std::uint32_t thread = 0;      // of a call: answers::Slot::thread
  std::vector<OpRow> rows = {};  // by number
  // Sentences about what the log does not show, except lost rows.
  std::vector<std::string> gaps = {};
  Coverage coverage = {};
  // The first replay of the log in which the daemon saw a NaN; 0: none that is known.
  std::uint64_t nan_since = 0;
  // The first replay from then on of which a row is kept; 0: none.
  std::uint64_t nan_kept = 0;
  BetweenCalls between = {};  // which of its rows most likely are for the next call
  std::vector<std::uint64_t> other_ranks = {};  // that have op logs, too; ascending

  std::size_t lost() const;
  // "call 41", "replay 3 of bs=8".
  std::string RunText() const;
  // The row with that number; nullptr without one.
  const OpRow* Find(std::uint32_t number) const;
  // Unseen nodes that may have changed what `row` read, after its inputs were logged; nullptr
  // without any.
  const UnseenNodes* UnseenBeside(const OpRow& row) const;
};

// A slot that holds a row of an op log.
struct OpLogSlot {
  std::size_t slot = 0;
  OpText text;
};
// The slots of one op log, by number.
using OpLogSlots = std::vector<OpLogSlot>;
// Every list of rows of the source, oldest first, with the ends of inputs (OpEntry::is_input_end).
// A capture has one. What runs eagerly has one for the calls that have the same rows.
std::vector<OpLogSlots> OpLogsOf(const source::Source& source);

// Sentences about what op logs do not show: of the logs with a row that `wants_row`, where all
// eager runs of a job count as one, and of the jobs that `wants_job`, which gets a slot that has
// their session and rank. What an eager call told is its own; `wants_call` gets the slot that has
// it, empty: all.
using WantsSlot = std::function<bool(const source::Slot&)>;
std::vector<std::string> OpGapsOf(const source::Source& source, const WantsSlot& wants_row,
                                  const WantsSlot& wants_job,
                                  const std::function<bool(std::size_t)>& wants_call = {});

// "fwd/layers.3.attn" of "fwd/layers.3.attn/mm_2"; empty without a '/'.
std::string_view PlaceOf(const OpRow& row);
// Whether all that `row` read is shown and finite.
bool HasFiniteInputs(const OpLog& log, const OpRow& row);
bool HasInputsWithoutNan(const OpLog& log, const OpRow& row);

// What names an op log when it is typed: "train-4711@g:bs=8 --ranks 0".
struct TypedLog {
  std::string source = {};
  std::string at_graph = {};  // "@g:bs=8", or empty
  std::string options = {};   // " --ranks 0"
  bool is_any_job = false;    // nobody named the live job
};

// Selects one op log of a source.
struct OpLogChoice {
  // A label, the number of a capture, "eager" for the newest eager run, or "eager.N" for the one
  // that has the row with Slot::order N. Empty: the log that was replayed last, and then what the
  // job's logs do not show belongs to its gaps, too.
  std::string graph;
  std::int64_t replay = -1;  // from 1; -1 is the newest, -2 the one before it
  bool is_call = false;  // `replay` is the number of a call: the newest log that has it is meant
  TypedLog typed = {};
};

// What to type for `log`, without the options. A live job that was not named gets its key: a newer
// one may be alive by then.
std::string TypedOf(const TypedLog& typed, const OpLog& log);

// "a.cgrec@g:bs=8@1204", "live@call:41": names the log of `source` that has the row `slot`.
// `replay`: 0 for the newest.
std::string OpLogPlaceText(const std::string& source, const source::Slot& slot,
                           std::uint64_t replay);

// What names one of several op logs.
struct OpLogHead {
  std::uint64_t graph_id = 0;  // 0: eager
  std::string graph;           // as source::Slot
  // Slot::order of its rows.
  std::uint64_t first_order = 0;
  std::uint64_t last_order = 0;
  std::int64_t last_timestamp_ns = 0;  // of its newest replay; 0: none is kept
};
// Whether a source has rows of op logs.
bool HasOpLog(const source::Source& source);
// The place of the log that `graph` means, as OpLogChoice. `logs`: oldest first. `others`: what the
// logs are called that were not chosen; the same name twice gets numbers: "eager#1", "eager#2".
std::optional<std::size_t> ChooseOpLog(const std::vector<OpLogHead>& logs, const std::string& graph,
                                       std::vector<std::string>* others);
// Why `path` has no such log. `others`: those that it has.
std::string NoOpLogText(const std::string& path, const std::string& graph,
                        const std::vector<std::string>& others);

// `others`: as ChooseOpLog(), without those of other ranks.
// Fails: the source has no op log, or none of that graph or replay.
Result<OpLog> ReadOpLog(source::Source& source, const OpLogChoice& choice,
                        std::vector<std::string>* others);

// One replay of one op log of a source; an eager call is one as well.
struct OpReplay {
  std::string name;     // what the log is called, without a number: "bs=8", "eager", "capture"
  std::size_t nth = 0;  // among the logs of that name
  std::uint64_t replay = 0;
  std::uint64_t serial = 0;                      // when it began; 0: unknown
  std::vector<std::size_t> rows = {};            // of a call: the slots of its rows
  std::shared_ptr<const OpLogSlots> whole = {};  // all rows of its log
  // Set where `replay` is the number of the call that it is paired with.
  std::optional<std::uint64_t> own_replay = {};
};
// Those that the source keeps, of all of its logs or of the one that `graph` means (OpLogChoice),
// in the order in which they ran. Fails: as ReadOpLog().
Result<std::vector<OpReplay>> ListOpReplays(source::Source& source, const std::string& graph);
// The slots of all rows of these logs, also of replays that are not kept. Fails: likewise.
Result<std::vector<std::size_t>> SlotsOfOpLogs(source::Source& source, const std::string& graph);
// Requires: `replay` is of ListOpReplays() of this source. `with_job`: what the job's logs do not
// show belongs to its gaps.
Result<OpLog> ReadOpReplay(source::Source& source, const OpReplay& replay, bool with_job);

// What an answer about all of a source lacks, in sentences: what cannot be read, what nobody saw,
// and what op logs do not show.
std::vector<std::string> GapsOfAll(const source::Source& source);

}  // namespace cgdebug::analysis
