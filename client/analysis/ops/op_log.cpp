#include "client/analysis/ops/op_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <tuple>

#include "client/analysis/diff/align.h"

namespace cgdebug::analysis {
namespace {

using source::Key;
using source::Slot;
using source::Source;

using Entry = OpLogSlot;
using Entries = OpLogSlots;

// Whether the log has the eager calls of a process. The rows of each may differ: which slots have
// them is known by the number of the call.
bool HasCalls(const Source& source, const Entries& entries) {
  return source.slots()[entries.front().slot].counts_calls();
}

// Every op log of the source, oldest first. A capture has one, and so have the eager calls of a
// process. Where these have no numbers, as in old recordings and for tensors on a GPU, the row
// numbers of a log ascend in the order of registration, and one that does not ascend begins the
// next log.
// `joins_calls`: else calls of other rows are logs of their own.
// `has_ends`: whether the ends of inputs are among the rows.
std::vector<Entries> LogsOf(const Source& source, bool joins_calls = true, bool has_ends = false) {
  std::map<std::tuple<std::string, int, std::uint64_t, bool>,
           std::vector<std::pair<std::uint64_t, Entry>>>
      places;
  for (std::size_t i = 0; i < source.slots().size(); ++i) {
    const Slot& slot = source.slots()[i];
    const OpText* const text = slot.op.row();
    if (text == nullptr || (!has_ends && slot.op.is_input_end())) continue;
    places[{slot.session, slot.rank, slot.graph_id, slot.counts_calls()}].push_back(
        {slot.order, {i, *text}});
  }
  std::vector<std::pair<std::uint64_t, Entries>> logs;
  for (auto& [place, entries] : places) {
    const bool is_captured = std::get<2>(place) != 0;
    const bool has_calls = std::get<3>(place) && joins_calls;
    std::stable_sort(entries.begin(), entries.end(), [&](const auto& a, const auto& b) {
      return is_captured ? a.second.text.number < b.second.text.number : a.first < b.first;
    });
    std::uint32_t last = UINT32_MAX;
    for (auto& [order, entry] : entries) {
      const bool is_first = last == UINT32_MAX;
      const bool begins = is_captured || has_calls ? is_first : entry.text.number <= last;
      if (begins) logs.push_back({order, {}});
      const bool is_again = !begins && entry.text.number == last;
      if (is_again && !has_calls) continue;  // a replay has each number once
      last = entry.text.number;
      logs.back().second.push_back(std::move(entry));
    }
  }
  std::stable_sort(logs.begin(), logs.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Entries> sorted;
  for (auto& [order, entries] : logs) sorted.push_back(std::move(entries));
  return sorted;
}

std::string NameOf(const OpLogHead& log) {
  if (log.graph_id == 0) return "eager";
  return log.graph.empty() ? fmt::format("capture {}", log.graph_id) : log.graph;
}

// Nothing if it is not there, or cannot be read.
std::optional<source::Snapshot> SnapshotAt(Source& source, std::size_t slot, std::uint64_t replay) {
  const Result<std::optional<Key>> key = source.Find(slot, replay);
  if (!key.ok() || !*key) return std::nullopt;
  const Result<source::Snapshot> snapshot = source.Get(slot, **key);
  return snapshot.ok() ? std::optional(*snapshot) : std::nullopt;
}

Result<std::optional<numerics::Stats>> StatsAt(Source& source, std::size_t slot,
                                               std::uint64_t replay) {
  const Result<std::optional<Key>> key = source.Find(slot, replay);
  if (!key.ok()) return key.error();
  if (!*key) return std::optional<numerics::Stats>();
  const Result<source::Snapshot> snapshot = source.Get(slot, **key);
  if (!snapshot.ok()) return std::optional<numerics::Stats>();  // it cannot be read: lost
  const Result<numerics::Stats> stats = source::StatsOf(source, *snapshot);
  return stats.ok() ? std::optional<numerics::Stats>(*stats) : std::nullopt;
}

// The newest replay that any row has; 0 without one.
Result<std::uint64_t> NewestOf(Source& source, const Entries& entries) {
  std::uint64_t newest = 0;
  for (const Entry& entry : entries) {
    const Result<std::uint64_t> replay = source.NewestReplay(entry.slot);
    if (!replay.ok()) return replay.error();
    newest = std::max(newest, *replay);
  }
  return newest;
}

// A replay has each number once.
void SortRows(Entries* rows) {
  std::stable_sort(rows->begin(), rows->end(),
                   [](const Entry& a, const Entry& b) { return a.text.number < b.text.number; });
  const auto rest = std::unique(rows->begin(), rows->end(), [](const Entry& a, const Entry& b) {
    return a.text.number == b.text.number;
  });
  rows->erase(rest, rows->end());
}

// The rows of one replay, by number: of a log that has calls, those that ran in this one.
Result<Entries> RowsOf(Source& source, const Entries& entries, std::uint64_t replay) {
  if (!HasCalls(source, entries)) return entries;
  Entries rows;
  for (const Entry& entry : entries) {
    const Result<std::optional<Key>> key = source.Find(entry.slot, replay);
    if (!key.ok()) return key.error();
    if (*key) rows.push_back(entry);
  }
  SortRows(&rows);
  return rows;
}

// When the newest snapshot of the slot was taken that is kept; 0 without one.
Result<std::int64_t> LastNsOf(Source& source, std::size_t slot) {
  const Result<std::uint64_t> newest = source.NewestReplay(slot);
  if (!newest.ok()) return newest.error();
  const Result<std::optional<Key>> key = source.Find(slot, *newest);
  if (!key.ok()) return key.error();
  if (!*key) return 0;
  const Result<source::Snapshot> snapshot = source.Get(slot, **key);
  return snapshot.ok() ? snapshot->timestamp_ns : 0;  // it cannot be read: lost
}

Coverage CoverageOf(const Entries& entries) {
  Coverage coverage;
  std::uint32_t last = 0;
  for (const Entry& entry : entries) {
    const OpText& text = entry.text;
    coverage.is_known = coverage.is_known || text.has_nodes;
    coverage.explained += text.explained;
    coverage.left_out += text.left_out;
    if (text.unseen_before) {
      coverage.unseen.push_back(*text.unseen_before);
      coverage.unseen.back().after = last;
      coverage.unseen.back().before = text.number;
    }
    if (text.unseen_after) {
      coverage.unseen.push_back(*text.unseen_after);
      coverage.unseen.back().after = text.number;
    }
    last = text.number;
  }
  return coverage;
}

Result<OpRow> ReadRow(Source& source, const Entry& entry, std::uint64_t replay) {
  const Slot& slot = source.slots()[entry.slot];
  OpRow row{.number = entry.text.number,
            .name = slot.probe,
            .op = entry.text.op,
            .inputs = entry.text.inputs,
            .is_covered = entry.text.is_covered,
            .site = slot.site,
            .type = TypeText(slot),
            .dtype = slot.dtype,
            .shape = slot.shape,
            .details = slot.details};
  Result<std::optional<numerics::Stats>> stats = StatsAt(source, entry.slot, replay);
  if (!stats.ok()) return stats.error();
  row.stats = *stats;
  return row;
}

// What the rows were before: in a call, in the one before it that had the row, which has a slot of
// its own if other rows came before it there. `rows`: as in the log.
Result<void> AddBefore(Source& source, const Entries& rows, OpLog* log) {
  using Name = std::tuple<std::string_view, std::string_view, int, layout::Dtype>;
  const auto name_of = [](const Slot& slot) {
    return Name{slot.probe, slot.session, slot.rank, slot.dtype};
  };
  std::multimap<Name, std::size_t> named;
  std::vector<std::pair<std::size_t, std::uint64_t>> before;  // by row: slot, and replay or 0
  for (const Entry& entry : rows) {
    named.emplace(name_of(source.slots()[entry.slot]), before.size());
    before.emplace_back(entry.slot, log->has_calls || log->replay <= 1 ? 0 : log->replay - 1);
  }
  for (std::size_t i = 0; i < source.slots().size() && log->has_calls && log->replay > 1; ++i) {
    const Slot& slot = source.slots()[i];
    if (!slot.counts_calls() || slot.op.empty()) continue;
    const auto [begin, end] = named.equal_range(name_of(slot));
    if (begin == end) continue;
    const Result<std::optional<Key>> key = source.FindBefore(i, log->replay);
    if (!key.ok()) return key.error();
    if (!*key) continue;
    for (auto row = begin; row != end; ++row) {
      auto& [newest, replay] = before[row->second];
      if (log->rows[row->second].shape != slot.shape || (*key)->replay <= replay) continue;
      newest = i;
      replay = (*key)->replay;
    }
  }
  for (std::size_t place = 0; place < before.size(); ++place) {
    const auto& [slot, replay] = before[place];
    if (replay == 0) continue;
    const auto stats = StatsAt(source, slot, replay);
    if (!stats.ok()) return stats.error();
    log->rows[place].stats_before = *stats;
  }
  return {};
}

// What a job says about its rows may be wrong: nothing may rely on it. Afterwards, inputs are rows
// before those that read them, and rows that are not here are told.
void CheckRows(OpLog* log) {
  for (std::size_t i = 0; i < log->rows.size(); ++i) {
    OpRow& row = log->rows[i];
    const std::size_t claimed = row.inputs.size();
    std::erase_if(row.inputs, [&](std::uint32_t number) {
      const OpRow* input = log->Find(number);
      return input == nullptr || input->number >= row.number;
    });
    row.is_covered = row.is_covered && row.inputs.size() == claimed;
    if (i > 0 && row.number > log->rows[i - 1].number + 1) {
      log->gaps.push_back(
          fmt::format("rows #{} to #{} are not here", log->rows[i - 1].number + 1, row.number - 1));
    }
  }
}

// Whether a call had ended when the newest one of its log began. Calls of other threads may go on:
// those of which a row came after that.
bool HadEnded(Source& source, const Entries& entries, const OpLog& log) {
  if (!log.has_calls || log.rows.empty()) return false;
  const Result<std::uint64_t> newest = NewestOf(source, entries);
  if (!newest.ok() || log.replay == *newest) return false;
  std::uint64_t newest_began = UINT64_MAX, last_row = 0;
  for (const Entry& entry : entries) {
    if (const auto snapshot = SnapshotAt(source, entry.slot, *newest)) {
      newest_began = std::min(newest_began, snapshot->serial);
    }
    if (const auto snapshot = SnapshotAt(source, entry.slot, log.replay)) {
      last_row = std::max(last_row, static_cast<std::uint64_t>(snapshot->timestamp_ns));
    }
  }
  return last_row <= newest_began;
}

// What nobody saw of the process, besides what AddGaps() has. `entries`: all of the log; `rows`:
// those of the replay.
void AddNotSeen(Source& source, const Entries& entries, const Entries& rows, OpLog* log) {
  const auto is_its_job = [&](const Slot& process) { return process.uuid == log->uuid; };
  std::set<std::uint64_t> orders;
  for (const Entry& entry : rows) orders.insert(source.slots()[entry.slot].order);
  const auto is_row = [&](const Slot& slot) { return orders.contains(slot.order); };
  const auto adds_gaps = [](std::size_t) { return false; };
  const bool has_unsent = std::ranges::any_of(source.Describe().not_seen, [&](const auto& one) {
    return one.what.kind == layout::NotSeenKind::kNeverSent && is_its_job(one.of);
  });
  const bool is_whole = has_unsent && HadEnded(source, entries, *log);  // reads snapshots
  for (std::string& text : NotSeenTexts(source, is_its_job, is_row, adds_gaps, is_whole)) {
    log->gaps.push_back(std::move(text));
  }
}

// `entries`: all of the log; `rows`: of RowsOf().
Result<OpLog> ReadRows(Source& source, const Entries& entries, const Slot& first,
                       const Entries& rows, std::uint64_t replay) {
  OpLog log{.graph = NameOf({first.graph_id, first.graph}),
            .graph_id = first.graph_id,
            .session = first.session,
            .uuid = first.uuid,
            .rank = first.rank,
            .replay = replay,
            .has_calls = first.counts_calls()};
  for (const Entry& entry : rows) {
    Result<OpRow> row = ReadRow(source, entry, replay);
    if (!row.ok()) return row.error();
    log.rows.push_back(*std::move(row));
  }
  if (log.has_calls && !rows.empty()) {  // its rows have the same step and thread
    log.thread = source.slots()[rows.front().slot].thread;
    if (const auto snapshot = SnapshotAt(source, rows.front().slot, replay)) {
      log.step = snapshot->step;
    }
  }
  log.coverage = CoverageOf(rows);
  if (std::string gap = log.coverage.Gap(); !gap.empty()) log.gaps.push_back(std::move(gap));
  CheckRows(&log);
  AddNotSeen(source, entries, rows, &log);
  if (!log.rows.empty() && log.rows.front().number > 1) {
    log.gaps.push_back(fmt::format("rows #1 to #{} are not here", log.rows.front().number - 1));
  }
  return log;
}

// `entries`: all of the log.
Result<OpLog> Read(Source& source, const Entries& entries, std::uint64_t replay) {
  const Result<Entries> rows = RowsOf(source, entries, replay);
  if (!rows.ok()) return rows.error();
  Result<OpLog> log =
      ReadRows(source, entries, source.slots()[entries.front().slot], *rows, replay);
  if (!log.ok()) return log;
  if (const Result<void> added = AddBefore(source, *rows, &*log); !added.ok()) return added.error();
  return log;
}

// The row of an eager run that was registered last before `gap`; nullptr without one.
const Slot* EagerRowBefore(const Source& source, const Slot& gap) {
  const Slot* found = nullptr;
  for (const Slot& slot : source.slots()) {
    if (slot.session != gap.session || slot.rank != gap.rank || slot.graph_id != 0) continue;
    if (slot.order >= gap.order || slot.op.row() == nullptr) continue;
    if (found == nullptr || slot.order > found->order) found = &slot;
  }
  return found;
}

// Whether the rows of a call may go on behind those that are here: the log has lost some of a call
// around it. Rows leave the job a page at a time, so what is lost is the end of a call.
bool MayBeCut(Source& source, const Entries& entries, const OpLog& log) {
  if (!log.has_calls || log.rows.empty()) return false;
  std::vector<std::size_t> behind;
  for (const Entry& entry : entries) {
    if (entry.text.number > log.rows.back().number) behind.push_back(entry.slot);
  }
  return !behind.empty() && !source.MayLack(behind, log.replay).empty();
}

// Why the call may have more rows than a recording that ends too early.
std::string EndText(Source& source, const Entries& entries, const OpLog& log) {
  if (!log.has_calls || log.rows.empty() || !source.Describe().is_cut_off) return {};
  // Another recording of the folder may be the one that is cut off.
  const bool has_ended = std::ranges::all_of(entries, [&](const Entry& entry) {
    const Result<recording::Account> account = source.AccountOf(entry.slot);
    return account.ok() && account->is_end_known;
  });
  if (has_ended) return {};
  if (HadEnded(source, entries, log)) return {};
  return fmt::format("rows behind #{} may be missing: {} ends early, and call {} may have gone on",
                     log.rows.back().number, source.Describe().path, log.replay);
}

bool RanIn(Source& source, std::size_t slot, std::uint64_t replay) {
  const Result<std::optional<Key>> key = source.Find(slot, replay);
  return key.ok() && key->has_value();
}

void AddGaps(Source& source, const Entries& entries, bool with_job, OpLog* log) {
  const Slot& first = source.slots()[entries.front().slot];
  if (MayBeCut(source, entries, *log)) {
    log->gaps.push_back(
        fmt::format("rows behind #{} may be lost: the log lost some of its rows around call {}",
                    log->rows.back().number, log->replay));
  }
  if (std::string end = EndText(source, entries, *log); !end.empty()) {
    log->gaps.push_back(std::move(end));
  }
  for (std::size_t i = 0; i < source.slots().size(); ++i) {
    const Slot& slot = source.slots()[i];
    const OpGap* const gap = slot.op.gap();
    if (gap == nullptr || slot.session != first.session || slot.rank != first.rank) continue;
    bool is_meant = first.graph_id == 0 ? gap->of == "eager" && first.order < slot.order
                                        : gap->of == std::to_string(first.graph_id);
    if (gap->of == "job") is_meant = with_job;
    if (gap->of == "log" && log->has_calls) {
      is_meant = slot.counts_calls() && RanIn(source, i, log->replay);
    } else if (gap->of == "log" && first.graph_id == 0) {
      const Slot* const row = EagerRowBefore(source, slot);
      is_meant = std::ranges::any_of(
          entries, [&](const Entry& entry) { return &source.slots()[entry.slot] == row; });
    }
    if (is_meant && std::ranges::find(log->gaps, gap->text) == log->gaps.end()) {
      log->gaps.push_back(gap->text);
    }
  }
}

std::uint64_t NanSince(Source& source, const Entries& entries) {
  std::set<std::size_t> slots;
  for (const Entry& entry : entries) slots.insert(entry.slot);
  std::uint64_t first = 0;
  for (const source::Finding& told : source.Findings()) {
    if (told.kind != layout::FindingKind::kNan || !slots.contains(told.slot)) continue;
    if (first == 0 || told.replay < first) first = told.replay;
  }
  return first;
}

// The replays of which any row is kept, oldest first.
Result<std::set<std::uint64_t>> KeptReplays(Source& source, const Entries& entries) {
  std::set<std::uint64_t> kept;
  for (const Entry& entry : entries) {
    const Result<std::vector<Key>> keys = source.Keys(entry.slot);
    if (!keys.ok()) return keys.error();
    for (const Key& key : *keys) kept.insert(key.replay);
  }
  return kept;
}

// The slots that have them.
Result<std::map<std::uint64_t, std::vector<std::size_t>>> KeptRows(Source& source,
                                                                   const Entries& entries) {
  std::map<std::uint64_t, std::vector<std::size_t>> kept;
  for (const Entry& entry : entries) {
    const Result<std::vector<Key>> keys = source.Keys(entry.slot);
    if (!keys.ok()) return keys.error();
    for (const Key& key : *keys) kept[key.replay].push_back(entry.slot);
  }
  return kept;
}

// 0 if there is none, and if that cannot be read: it is a proposal.
std::uint64_t NanKept(Source& source, const Entries& entries, std::uint64_t since) {
  if (since == 0) return 0;
  for (const Entry& entry : entries) {
    const Result<std::optional<Key>> key = source.Find(entry.slot, since);
    if (key.ok() && *key) return since;
  }
  for (const Entry& entry : entries) {
    const Result<std::vector<Key>> keys = source.Keys(entry.slot);
    if (!keys.ok()) return 0;
    for (const Key& key : *keys) {
      if (key.replay >= since) return key.replay;
    }
  }
  return 0;
}

// Why the log has nothing of a replay, which ones are kept, and what to type.
Error NoReplay(const std::string& path, const OpLogChoice& choice, const OpLog& log,
               std::set<std::uint64_t> kept) {
  kept.erase(log.replay);  // it has keys, but nothing that can be read
  if (kept.empty()) {
    return Error{fmt::format(
        "{} keeps no replay of the op log of {}. Its graph has not been replayed, or they are gone",
        path, log.graph)};
  }
  const std::string none =
      log.has_calls
          ? fmt::format("{} has no call {} in its op log", path, choice.replay)
          : fmt::format("{} has no replay {} of the op log of {}", path, choice.replay, log.graph);
  const auto next = kept.lower_bound(log.replay);
  const std::uint64_t shown = next == kept.end() ? *kept.rbegin() : *next;
  return Error{fmt::format("{}; it keeps {}. Type: cgdebug-cli ops '{}@{}{}'{}", none,
                           RangesText({kept.begin(), kept.end()}), TypedOf(choice.typed, log),
                           log.has_calls ? "call:" : "", shown, choice.typed.options)};
}

}  // namespace

std::string TypedOf(const TypedLog& typed, const OpLog& log) {
  constexpr std::size_t kKeyDigits = 8;
  const bool takes_key = typed.is_any_job && !log.uuid.empty();
  return (takes_key ? log.uuid.substr(0, kKeyDigits) : typed.source) + typed.at_graph;
}

std::string OpLogPlaceText(const std::string& source, const Slot& slot, std::uint64_t replay) {
  const std::string at = replay == 0 ? "" : source::ReplayMark(slot, replay);
  if (slot.counts_calls()) return source + (at.empty() ? "@g:eager" : at);
  const std::string graph = slot.graph_id == 0   ? fmt::format("eager.{}", slot.order)
                            : slot.graph.empty() ? std::to_string(slot.graph_id)
                                                 : slot.graph;
  return fmt::format("{}@g:{}{}", source, graph, at);
}

std::uint64_t Coverage::unseen_count() const {
  std::uint64_t count = 0;
  for (const UnseenNodes& one : unseen) count += one.count;
  return count;
}

std::string Coverage::Gap() const {
  if (unseen.empty()) return {};
  if (unseen.size() == 1) return unseen.front().Text() + "; no row shows what they wrote";
  return fmt::format("{} kernels that are in no row, in {} places; the first are {}",
                     unseen_count(), unseen.size(), unseen.front().Text());
}

std::string OpLog::RunText() const {
  if (has_calls) return fmt::format("call {}", replay);
  return fmt::format("replay {} of {}", replay, graph_id == 0 ? "the eager run" : graph);
}

std::size_t OpLog::lost() const {
  return static_cast<std::size_t>(
      std::count_if(rows.begin(), rows.end(), [](const OpRow& row) { return !row.stats; }));
}

const OpRow* OpLog::Find(std::uint32_t number) const {
  const auto found =
      std::lower_bound(rows.begin(), rows.end(), number,
                       [](const OpRow& row, std::uint32_t wanted) { return row.number < wanted; });
  return found == rows.end() || found->number != number ? nullptr : &*found;
}

const UnseenNodes* OpLog::UnseenBeside(const OpRow& row) const {
  const std::uint32_t oldest =
      row.inputs.empty() ? 0 : *std::min_element(row.inputs.begin(), row.inputs.end());
  for (const UnseenNodes& one : coverage.unseen) {
    if (one.before > oldest && one.before <= row.number) return &one;
  }
  return nullptr;
}

std::vector<OpLogSlots> OpLogsOf(const Source& source) {
  return LogsOf(source, /*joins_calls=*/false, /*has_ends=*/true);
}

std::vector<std::string> OpGapsOf(const Source& source, const WantsSlot& wants_row,
                                  const WantsSlot& wants_job,
                                  const std::function<bool(std::size_t)>& wants_call) {
  using Log = std::tuple<std::string, int, std::string>;
  std::set<Log> logs;
  for (const Slot& slot : source.slots()) {
    if (slot.op.row() == nullptr || !wants_row(slot)) continue;
    const std::string of = slot.graph_id == 0 ? "eager" : std::to_string(slot.graph_id);
    logs.insert({slot.session, slot.rank, of});
  }
  std::vector<std::string> gaps;
  for (std::size_t i = 0; i < source.slots().size(); ++i) {
    const Slot& slot = source.slots()[i];
    const OpGap* const gap = slot.op.gap();
    if (gap == nullptr) continue;
    const bool is_of_call = gap->of == "log" && slot.counts_calls();
    if (is_of_call && wants_call && !wants_call(i)) continue;
    const std::string of = gap->of == "log" ? "eager" : gap->of;
    const bool is_wanted =
        of == "job" ? wants_job(slot) : logs.contains({slot.session, slot.rank, of});
    if (is_wanted && std::ranges::find(gaps, gap->text) == gaps.end()) gaps.push_back(gap->text);
  }
  return gaps;
}

std::string_view PlaceOf(const OpRow& row) {
  const std::string_view name = row.name;
  const std::size_t slash = name.rfind('/');
  return slash == std::string_view::npos ? std::string_view() : name.substr(0, slash);
}

bool HasInputsWithoutNan(const OpLog& log, const OpRow& row) {
  return row.is_covered &&
         std::all_of(row.inputs.begin(), row.inputs.end(), [&](std::uint32_t number) {
           const OpRow* input = log.Find(number);
           return input != nullptr && input->stats && input->stats->nan == 0;
         });
}

bool HasFiniteInputs(const OpLog& log, const OpRow& row) {
  return row.is_covered &&
         std::all_of(row.inputs.begin(), row.inputs.end(), [&](std::uint32_t number) {
           const OpRow* input = log.Find(number);
           return input != nullptr && input->stats && input->stats->nonfinite() == 0;
         });
}

namespace {

// Whether `graph` is "eager.N" and means this log.
bool HasRow(const OpLogHead& log, std::string_view graph) {
  constexpr std::string_view kEager = "eager.";
  if (log.graph_id != 0 || !graph.starts_with(kEager)) return false;
  std::uint64_t order = 0;
  const char* const end = graph.data() + graph.size();
  const auto parsed = std::from_chars(graph.data() + kEager.size(), end, order);
  return parsed.ec == std::errc() && parsed.ptr == end && log.first_order <= order &&
         order <= log.last_order;
}

}  // namespace

std::optional<std::size_t> ChooseOpLog(const std::vector<OpLogHead>& logs, const std::string& graph,
                                       std::vector<std::string>* others) {
  std::map<std::string, std::size_t> counts, seen;
  std::vector<std::string> names;
  for (const OpLogHead& log : logs) {
    names.push_back(NameOf(log));
    ++counts[names.back()];
  }
  std::optional<std::size_t> chosen;
  for (std::size_t i = 0; i < logs.size(); ++i) {
    const std::size_t number = ++seen[names[i]];
    if (counts[names[i]] > 1) names[i] += fmt::format("#{}", number);
    const bool is_meant = graph.empty() || names[i] == graph || HasRow(logs[i], graph) ||
                          WhichSlots{.graph = graph}.Matches(logs[i].graph_id, logs[i].graph, {});
    const bool is_older =
        graph.empty() && chosen && logs[i].last_timestamp_ns < logs[*chosen].last_timestamp_ns;
    if (is_meant && !is_older) chosen = i;
  }
  others->clear();
  for (std::size_t i = 0; i < logs.size(); ++i) {
    if (i != chosen) others->push_back(std::move(names[i]));
  }
  return chosen;
}

bool HasOpLog(const Source& source) {
  return std::ranges::any_of(
      source.slots(), [](const Slot& slot) { return !slot.op.empty() && !slot.op.is_no_row(); });
}

std::string NoOpLogText(const std::string& path, const std::string& graph,
                        const std::vector<std::string>& others) {
  if (others.empty()) {
    return fmt::format(
        "{} has no op log. In the job, write: with cgdebug.debug_mode(model):  or type: "
        "cgdebug-cli "
        "run --watch 'op:*' --eager -- COMMAND",
        path);
  }
  return fmt::format("{} has no op log of graph '{}'. It has: {}", path, graph,
                     fmt::join(others, ", "));
}

namespace {

// The slot of a row that ran last.
Result<std::size_t> NewestRowOf(Source& source, const Entries& entries) {
  std::size_t found = entries.back().slot;
  if (!HasCalls(source, entries)) return found;
  std::uint64_t newest = 0;
  for (const Entry& entry : entries) {
    const Result<std::uint64_t> replay = source.NewestReplay(entry.slot);
    if (!replay.ok()) return replay.error();
    if (*replay <= newest) continue;
    newest = *replay;
    found = entry.slot;
  }
  return found;
}

// With the times of the last snapshots only where these decide which log is meant.
Result<std::vector<OpLogHead>> HeadsOf(Source& source, const std::vector<Entries>& logs,
                                       const std::string& graph) {
  std::vector<OpLogHead> heads;
  for (const Entries& entries : logs) {
    const Slot& slot = source.slots()[entries.front().slot];
    const std::uint64_t last = source.slots()[entries.back().slot].order;
    heads.push_back({slot.graph_id, slot.graph, slot.order, last});
    if (!graph.empty() || logs.size() == 1) continue;
    const Result<std::size_t> newest = NewestRowOf(source, entries);
    if (!newest.ok()) return newest.error();
    const Result<std::int64_t> last_ns = LastNsOf(source, *newest);
    if (!last_ns.ok()) return last_ns.error();
    heads.back().last_timestamp_ns = *last_ns;
  }
  return heads;
}

// The newest log that has this call; if none has it, the newest one that has calls. The rows of
// other eager runs, as of tensors on a GPU, count replays of their own.
Result<std::optional<std::size_t>> LogOfCall(Source& source, const std::vector<Entries>& logs,
                                             std::uint64_t call) {
  std::optional<std::size_t> newest;
  for (std::size_t i = logs.size(); i-- > 0;) {
    if (!HasCalls(source, logs[i])) continue;
    if (!newest) newest = i;
    for (const Entry& entry : logs[i]) {
      const Result<std::optional<Key>> key = source.Find(entry.slot, call);
      if (!key.ok()) return key.error();
      if (*key) return std::optional(i);
    }
  }
  return newest;
}

// When the replay began, as far as a row of it is kept.
std::uint64_t SerialOf(Source& source, const std::vector<std::size_t>& rows, std::uint64_t replay) {
  for (const std::size_t slot : rows) {
    const std::optional<source::Snapshot> snapshot = SnapshotAt(source, slot, replay);
    if (snapshot) return snapshot->serial;
  }
  return 0;
}

}  // namespace

Result<std::vector<OpReplay>> ListOpReplays(Source& source, const std::string& graph) {
  const std::vector<Entries> logs = LogsOf(source);
  const Result<std::vector<OpLogHead>> found = HeadsOf(source, logs, graph);
  if (!found.ok()) return found.error();
  const std::vector<OpLogHead>& heads = *found;
  std::vector<std::string> others;
  const std::optional<std::size_t> chosen = ChooseOpLog(heads, graph, &others);
  if (!chosen) return Error{NoOpLogText(source.Describe().path, graph, others)};
  std::map<std::string, std::size_t> counts;
  std::vector<OpReplay> replays;
  for (std::size_t i = 0; i < logs.size(); ++i) {
    OpReplay replay;
    // Two processes number their captures differently.
    replay.name = heads[i].graph_id != 0 && heads[i].graph.empty() ? "capture" : NameOf(heads[i]);
    replay.nth = counts[replay.name]++;
    if (!graph.empty() && i != *chosen) continue;
    replay.whole = std::make_shared<const Entries>(logs[i]);
    Result<std::map<std::uint64_t, std::vector<std::size_t>>> kept = KeptRows(source, logs[i]);
    if (!kept.ok()) return kept.error();
    for (auto& [number, rows] : *kept) {
      replay.replay = number;
      replay.serial = SerialOf(source, rows, number);
      replay.rows = HasCalls(source, logs[i]) ? std::move(rows) : std::vector<std::size_t>();
      replays.push_back(replay);
    }
  }
  std::ranges::stable_sort(replays, {}, &OpReplay::serial);
  return replays;
}

Result<std::vector<std::size_t>> SlotsOfOpLogs(Source& source, const std::string& graph) {
  const std::vector<Entries> logs = LogsOf(source);
  const Result<std::vector<OpLogHead>> heads = HeadsOf(source, logs, graph);
  if (!heads.ok()) return heads.error();
  std::vector<std::string> others;
  const std::optional<std::size_t> chosen = ChooseOpLog(*heads, graph, &others);
  if (!chosen) return Error{NoOpLogText(source.Describe().path, graph, others)};
  std::vector<std::size_t> slots;
  for (std::size_t i = 0; i < logs.size(); ++i) {
    if (!graph.empty() && i != *chosen) continue;
    for (const Entry& entry : logs[i]) slots.push_back(entry.slot);
  }
  return slots;
}

Result<OpLog> ReadOpReplay(Source& source, const OpReplay& replay, bool with_job) {
  if (!replay.rows.empty()) {
    Entries rows;
    for (const std::size_t slot : replay.rows) {
      if (const OpText* const text = source.slots()[slot].op.row()) rows.push_back({slot, *text});
    }
    SortRows(&rows);
    Result<OpLog> log = ReadRows(source, *replay.whole, source.slots()[replay.rows.front()], rows,
                                 replay.own_replay.value_or(replay.replay));
    if (log.ok()) AddGaps(source, *replay.whole, with_job, &*log);
    return log;
  }
  Result<OpLog> log = Read(source, *replay.whole, replay.replay);
  if (log.ok()) AddGaps(source, *replay.whole, with_job, &*log);
  return log;
}

namespace {

int RankOf(const Source& source, const Entries& log) {
  return source.slots()[log.front().slot].rank;
}

// The ranks that have a log, except that of the chosen one.
std::vector<std::uint64_t> OtherRanks(const Source& source, const std::vector<Entries>& logs,
                                      std::size_t chosen) {
  std::set<std::uint64_t> ranks;
  for (const Entries& log : logs) {
    const int rank = RankOf(source, log);
    if (rank >= 0 && rank != RankOf(source, logs[chosen])) {
      ranks.insert(static_cast<std::uint64_t>(rank));
    }
  }
  return {ranks.begin(), ranks.end()};
}

// Leaves those of the rank of the chosen log. `others`: of the other logs, in their order.
void KeepThoseOfItsRank(const Source& source, const std::vector<Entries>& logs, std::size_t chosen,
                        std::vector<std::string>* others) {
  std::vector<std::string> kept;
  for (std::size_t i = 0, other = 0; i < logs.size(); ++i) {
    if (i == chosen) continue;
    std::string& name = (*others)[other++];
    if (RankOf(source, logs[i]) == RankOf(source, logs[chosen])) kept.push_back(std::move(name));
  }
  *others = std::move(kept);
}

}  // namespace

Result<OpLog> ReadOpLog(Source& source, const OpLogChoice& choice,
                        std::vector<std::string>* others) {
  const std::vector<Entries> logs = LogsOf(source);
  const std::string path = source.Describe().path;
  const Result<std::vector<OpLogHead>> heads = HeadsOf(source, logs, choice.graph);
  if (!heads.ok()) return heads.error();
  std::optional<std::size_t> place = ChooseOpLog(*heads, choice.graph, others);
  if (place) KeepThoseOfItsRank(source, logs, *place, others);
  if (choice.is_call && choice.replay > 0) {
    const auto of_call = LogOfCall(source, logs, static_cast<std::uint64_t>(choice.replay));
    if (!of_call.ok()) return of_call.error();
    if (*of_call) {
      place = *of_call;
      others->clear();  // the call alone was asked for
    }
  }
  if (!place) return Error{NoOpLogText(path, choice.graph, *others)};
  const Entries* chosen = &logs[*place];
  std::uint64_t replay = static_cast<std::uint64_t>(choice.replay);
  const Result<std::uint64_t> newest = NewestOf(source, *chosen);
  if (!newest.ok()) return newest.error();
  if (choice.replay < 0) {
    const std::uint64_t back = static_cast<std::uint64_t>(-(choice.replay + 1));
    replay = *newest > back ? *newest - back : 0;
    if (back > 0 && HasCalls(source, *chosen)) {  // calls of other threads and logs lie in between
      const Result<std::set<std::uint64_t>> kept = KeptReplays(source, *chosen);
      if (!kept.ok()) return kept.error();
      replay =
          kept->size() > back ? *std::next(kept->rbegin(), static_cast<std::ptrdiff_t>(back)) : 0;
    }
  }
  Result<OpLog> log = Read(source, *chosen, replay);
  if (!log.ok()) return log.error();
  AddGaps(source, *chosen, /*with_job=*/choice.graph.empty(), &*log);
  if (replay == 0 || log->lost() == log->rows.size()) {
    Result<std::set<std::uint64_t>> kept = KeptReplays(source, *chosen);
    if (!kept.ok()) return kept.error();
    return NoReplay(path, choice, *log, *std::move(kept));
  }
  if (log->has_calls) log->between = BetweenCallsOf(source, chosen->front().slot, replay);
  log->other_ranks = OtherRanks(source, logs, *place);
  log->nan_since = NanSince(source, *chosen);
  log->nan_kept = NanKept(source, *chosen, log->nan_since);
  return log;
}

std::vector<std::string> GapsOfAll(const source::Source& source) {
  const source::Description about = source.Describe();
  std::vector<std::string> gaps = about.unread;
  gaps.insert(gaps.end(), about.damage.begin(), about.damage.end());
  const auto all = [](const source::Slot&) { return true; };
  const auto none = [](const source::Slot&) { return false; };
  for (std::string& text : NotSeenTexts(source, all, all)) gaps.push_back(std::move(text));
  for (const std::string& gap : OpGapsOf(source, none, all)) gaps.push_back(gap);
  return gaps;
}

}  // namespace cgdebug::analysis
