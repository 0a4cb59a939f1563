#include "client/analysis/why/evidence.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstring>
#include <iterator>
#include <set>
#include <tuple>
#include <utility>

#include "client/analysis/diff/align.h"
#include "client/analysis/ops/op_details.h"
#include "client/analysis/ops/op_log.h"
#include "daemon/core/numerics/stats.h"
#include "daemon/core/numerics/stats_difference.h"
#include "proto/layout/ordered_hash.h"

namespace cgdebug::analysis::why {
namespace {

using numerics::Stats;
using source::Key;
using source::Slot;
using source::Source;

constexpr std::string_view kPaddingOp = "padding";  // its op keeps rows apart
constexpr std::string_view kInputEnd = "input.end";

// Also where the signs of its zeros change, which no op that reads it must follow.
bool IsZero(const Stats& stats) { return stats.zero == stats.count; }

Change ChangeOf(const Stats& before, const Stats& now) {
  if (IsZero(before) && IsZero(now) && before.count == now.count) return Change::kSame;
  if (!numerics::DifferencesOf(before, now).empty()) return Change::kChanged;
  const bool knows_places = before.has_ordered_hash && now.has_ordered_hash;
  return knows_places || !numerics::OrderMatters(now) ? Change::kSame : Change::kUnknown;
}

// The number of the row that `self` of an op is, which writes over all of it; 0: none that is
// known.
std::uint32_t OverwrittenBy(const Slot& slot, std::string_view op) {
  constexpr std::array kOverwriting = {std::string_view("copy_"), std::string_view("fill_"),
                                       std::string_view("zero_")};
  constexpr std::string_view kSelf = "self=#";
  if (std::ranges::find(kOverwriting, BaseOf(op)) == kOverwriting.end()) return 0;
  const std::string arguments = ParseOpDetails(slot.details).arguments;
  if (!arguments.starts_with(kSelf)) return 0;
  std::uint32_t number = 0;
  const char* const end = arguments.data() + arguments.size();
  const char* const at = std::from_chars(arguments.data() + kSelf.size(), end, number).ptr;
  return at == end || *at == ',' ? number : 0;  // else a view of it
}

// Whether the last dimension of integers is 0, 1, 2 and so on, or has the multiples of a larger
// number from 0 or from this number on: by their hash, which knows places.
bool CountsUp(const Slot& slot, const Stats& stats) {
  constexpr std::uint64_t kMostElements = 1 << 20;
  const layout::DtypeInfo* info = layout::FindDtype(slot.dtype);
  const std::uint64_t length = slot.shape.empty() ? 0 : slot.shape.back();
  if (info == nullptr || info->is_floating || length < 2 || stats.count > kMostElements ||
      stats.min < 0 || !stats.has_ordered_hash) {
    return false;
  }
  const double steps = static_cast<double>(stats.min == 0 ? length - 1 : length);
  const double step = stats.max / steps;
  const bool is_from_step = stats.min == step && step > 1;
  if (step < 1 || step != std::floor(step) || (stats.min != 0 && !is_from_step)) return false;
  const std::size_t bytes = layout::DtypeBytes(slot.dtype);
  std::vector<std::byte> counted(stats.count * bytes);
  for (std::uint64_t i = 0; i < stats.count; ++i) {
    const std::uint64_t multiple = i % length + (is_from_step ? 1 : 0);
    const std::uint64_t value = multiple * static_cast<std::uint64_t>(step);  // little-endian
    std::memcpy(&counted[i * bytes], &value, bytes);
  }
  const std::uint64_t sum = layout::OrderedSum(slot.dtype, counted.data(), stats.count, false);
  return layout::OrderedHash(sum) == stats.ordered_hash;
}

// Reads the logs of one process and graph.
class LogReader {
 public:
  LogReader(Source& source, Log* log, std::map<std::size_t, SeenSlot>* seen)
      : source_(source), log_(*log), seen_(*seen) {}

  Result<void> Read(const std::vector<OpLogSlots>& logs) {
    std::vector<std::vector<KeyList>> places;  // by log
    for (const OpLogSlots& slots : logs) {
      Result<std::vector<KeyList>> read = PlacesOf(slots, places.size());
      if (!read.ok()) return read.error();
      places.push_back(*std::move(read));
    }
    SortRuns();
    for (std::size_t i = 0; i < logs.size(); ++i) AddRows(logs[i], places[i], i);
    for (std::size_t place = 0; place < log_.rows.size(); ++place) {
      for (const std::size_t input : log_.rows[place].inputs) {
        log_.rows[input].readers.push_back(place);
      }
      ReadRow(place);
    }
    return {};
  }

 private:
  using KeyList = std::vector<Key>;  // of a slot, one of each replay
  using Places = std::map<std::size_t, std::pair<std::size_t, Key>>;  // by run: slot and key

  Result<std::vector<KeyList>> PlacesOf(const OpLogSlots& slots, std::size_t nth_log) {
    std::vector<KeyList> places;
    std::map<std::uint64_t, std::uint64_t> serials;  // by replay
    for (const OpLogSlot& one : slots) {
      Result<std::vector<Key>> keys = source_.Keys(one.slot);
      if (!keys.ok()) return keys.error();
      KeyList place;
      for (const Key& key : *keys) {
        if (!place.empty() && place.back().replay == key.replay) place.pop_back();
        place.push_back(key);
        if (serials.contains(key.replay)) continue;
        const Result<source::Snapshot> snapshot = source_.Get(one.slot, key);
        if (snapshot.ok()) serials[key.replay] = snapshot->serial;
      }
      places.push_back(std::move(place));
    }
    for (const auto& [replay, serial] : serials) log_.runs.push_back({nth_log, replay, serial});
    return places;
  }

  void SortRuns() {
    std::ranges::stable_sort(log_.runs, {}, [](const Run& run) {
      return std::tuple(run.serial, run.nth_log, run.replay);
    });
    for (std::size_t i = 0; i < log_.runs.size(); ++i) {
      run_of_[{log_.runs[i].nth_log, log_.runs[i].replay}] = i;
    }
  }

  // Rows of several logs, and of several calls, that stand for the same tensor become one. A number
  // may mean another row in another call; in a replay it is the same row, also where it is lost.
  void AddRows(const OpLogSlots& slots, const std::vector<KeyList>& keys, std::size_t nth_log) {
    std::set<std::uint32_t> numbers;
    for (const OpLogSlot& one : slots) numbers.insert(one.text.number);
    std::vector<Here> all;
    std::map<std::uint64_t, std::vector<Here>> by_replay;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      all.push_back({&slots[i], nullptr});
      for (const Key& key : keys[i]) by_replay[key.replay].push_back({&slots[i], &key});
    }
    if (numbers.size() == slots.size()) {
      const std::vector<std::size_t> rows = RowsOf(all);
      for (std::size_t i = 0; i < slots.size(); ++i) {
        for (const Key& key : keys[i]) AddKey(rows[i], {nth_log, key.replay}, slots[i], key);
      }
      return;
    }
    for (auto& [replay, here] : by_replay) {
      std::ranges::stable_sort(here, {}, [](const Here& one) { return one.row->text.number; });
      const std::vector<std::size_t> rows = RowsOf(here);
      for (std::size_t i = 0; i < here.size(); ++i) {
        AddKey(rows[i], {nth_log, replay}, *here[i].row, *here[i].key);
      }
    }
  }

  struct Here {
    const OpLogSlot* row;
    const Key* key;
  };

  // The places of the rows of one call, which are in the order of their numbers. What lies in the
  // padding of a row has the place of that row, and so has the end of an input.
  std::vector<std::size_t> RowsOf(const std::vector<Here>& call) {
    std::map<std::uint32_t, std::size_t> by_number;
    std::vector<std::size_t> rows;
    for (const Here& one : call) {
      const OpText& text = one.row->text;
      log_.has_unseen |= text.unseen_before.has_value() || text.unseen_after.has_value();
      if (IsRowMask(text.op) || layout::IsPaddingOp(text.op) || text.op == kInputEnd) {
        const auto of = text.inputs.empty() ? by_number.end() : by_number.find(text.inputs.front());
        rows.push_back(of == by_number.end() ? SIZE_MAX : of->second);
        continue;
      }
      std::vector<std::size_t> inputs;
      for (const std::uint32_t number : text.inputs) {
        const auto input = by_number.find(number);
        if (input != by_number.end()) inputs.push_back(input->second);
      }
      const bool is_covered = text.is_covered && inputs.size() == text.inputs.size();
      rows.push_back(RowOf(*one.row, std::move(inputs), is_covered));
      by_number[text.number] = rows.back();
      Row& row = log_.rows[rows.back()];
      const auto over = by_number.find(OverwrittenBy(source_.slots()[one.row->slot], text.op));
      if (over != by_number.end() && over->second < rows.back()) row.overwrites = over->second;
    }
    return rows;
  }

  std::size_t RowOf(const OpLogSlot& one, std::vector<std::size_t> inputs, bool is_covered) {
    const auto known = row_of_slot_.find(one.slot);
    if (known != row_of_slot_.end() && log_.rows[known->second].inputs == inputs) {
      log_.rows[known->second].is_covered &= is_covered;
      return known->second;
    }
    const Slot& slot = source_.slots()[one.slot];
    const auto [row, is_new] = rows_.try_emplace(
        {slot.probe, one.text.op, slot.shape, slot.dtype, inputs}, log_.rows.size());
    if (is_new) {
      std::uint64_t count = 1;
      for (const std::uint64_t size : slot.shape) count *= size;
      log_.rows.push_back({.slot = one.slot,
                           .number = one.text.number,
                           .op = one.text.op,
                           .is_covered = is_covered,
                           .count = count,
                           .inputs = std::move(inputs),
                           .at = std::vector<Seen>(log_.runs.size())});
      log_.rows.back().needs_no_gradient =
          log_.rows.back().is_input() &&
          ParseOpDetails(slot.details).arguments == "requires_grad=False";
      keys_.emplace_back();
    }
    log_.rows[row->second].is_covered &= is_covered;
    return row_of_slot_[one.slot] = row->second;
  }

  void AddKey(std::size_t row, std::pair<std::size_t, std::uint64_t> run, const OpLogSlot& slot,
              const Key& key) {
    const auto place = run_of_.find(run);
    if (place == run_of_.end()) return;
    if (IsRowMask(slot.text.op)) {
      if (const std::optional<Stats> stats = Read(slot.slot, key)) {
        log_.runs[place->second].tells_rows = true;
        log_.runs[place->second].padding = stats->zero;
      }
    } else if (row == SIZE_MAX) {
      return;  // its row is not here
    } else if (layout::IsPaddingOp(slot.text.op)) {
      if (const std::optional<Stats> stats = Read(slot.slot, key)) {
        log_.rows[row].padding.resize(log_.runs.size());
        log_.rows[row].padding[place->second] = {.is_here = true,
                                                 .mixes = slot.text.op != kPaddingOp,
                                                 .nonfinite = stats->nonfinite(),
                                                 .abs_max = stats->abs_max};
      }
    } else if (slot.text.op == kInputEnd) {
      ends_[row][place->second] = {slot.slot, key};
    } else {
      keys_[row][place->second] = {slot.slot, key};
    }
  }

  // Nothing where it cannot be read: `check` says so.
  std::optional<Stats> Read(std::size_t slot, const Key& key) {
    const Result<source::Snapshot> snapshot = source_.Get(slot, key);
    if (!snapshot.ok()) return std::nullopt;
    const Result<Stats> stats = source::StatsOf(source_, *snapshot);
    if (!stats.ok()) return std::nullopt;
    SeenSlot& seen = seen_[slot];
    seen.slot = slot;
    seen.Note(key, *stats);
    return *stats;
  }

  void ReadRow(std::size_t place) {
    Row& row = log_.rows[place];
    std::optional<Stats> before;
    for (const auto& [run, at] : keys_[place]) {
      const auto& [slot, key] = at;
      const std::optional<Stats> stats = Read(slot, key);
      if (!stats) continue;
      if (!before) row.counts_up = CountsUp(source_.slots()[slot], *stats);
      row.at[run] = {.is_here = true,
                     .change = before ? ChangeOf(*before, *stats) : Change::kUnknown,
                     .nan = stats->nan,
                     .pos_inf = stats->pos_inf,
                     .neg_inf = stats->neg_inf,
                     .zero = stats->zero,
                     .min = stats->min,
                     .max = stats->max,
                     .abs_max = stats->abs_max,
                     .xor_hash = stats->has_hash ? stats->hash : 0};
      before = *stats;
      times_[{place, run}] = {slot, {key.replay, key.iteration}};
      if (const auto ends = ends_.find(place); ends != ends_.end()) {
        ReadEnd(*stats, run, ends->second, &row);
      }
    }
  }

  void ReadEnd(const Stats& then, std::size_t run, const Places& ends, Row* row) {
    const auto end = ends.find(run);
    if (end == ends.end()) return;
    const std::optional<Stats> now = Read(end->second.first, end->second.second);
    if (!now) return;
    row->at_end.resize(log_.runs.size());
    row->at_end[run] = {.is_here = true,
                        .change = ChangeOf(then, *now),
                        .hash = now->ordered_hash,
                        .hash_then = then.ordered_hash};
  }

 public:
  using Times = std::map<std::pair<std::size_t, std::size_t>,
                         std::pair<std::size_t, SeenSlot::Time>>;  // by row and run
  const Times& times() const { return times_; }

 private:
  Source& source_;
  Log& log_;
  std::map<std::size_t, SeenSlot>& seen_;
  std::map<std::pair<std::size_t, std::uint64_t>, std::size_t> run_of_;
  using RowKey = std::tuple<std::string, std::string, std::vector<std::uint64_t>, layout::Dtype,
                            std::vector<std::size_t>>;
  std::map<RowKey, std::size_t> rows_;
  std::map<std::size_t, std::size_t> row_of_slot_;  // the last one
  std::vector<Places> keys_;                        // by row
  std::map<std::size_t, Places> ends_;              // likewise, of inputs
  Times times_;
};

}  // namespace

bool Evidence::IsFloating(const Row& row) const {
  const layout::DtypeInfo* info = layout::FindDtype(DtypeOf(row));
  return info != nullptr && info->is_floating;
}

Result<Evidence> ReadEvidence(Source& source, const Check& check) {
  Evidence evidence{.source = &source, .check = &check, .graphs = source.Graphs()};
  std::map<std::tuple<std::string, int, std::uint64_t>, std::vector<OpLogSlots>> logs;
  for (OpLogSlots& slots : OpLogsOf(source)) {
    const Slot& slot = source.slots()[slots.front().slot];
    std::vector<OpLogSlots>& of_log = logs[{slot.session, slot.rank, slot.graph_id}];
    // The rows of a call may lie in several lists.
    if (!of_log.empty() && slot.counts_calls()) {
      std::ranges::move(slots, std::back_inserter(of_log.front()));
    } else {
      of_log.push_back(std::move(slots));
    }
  }
  std::map<std::size_t, SeenSlot> seen;
  std::vector<LogReader::Times> times;
  for (const auto& [key, of_log] : logs) {
    const Slot& slot = source.slots()[of_log.front().front().slot];
    Log log{.graph = slot.graph_id == 0   ? "eager"
                     : slot.graph.empty() ? fmt::format("capture {}", slot.graph_id)
                                          : slot.graph,
            .session = slot.session,
            .rank = slot.rank,
            .graph_id = slot.graph_id,
            .counts_calls = slot.counts_calls()};
    LogReader reader(source, &log, &seen);
    if (const Result<void> read = reader.Read(of_log); !read.ok()) return read.error();
    times.push_back(reader.times());
    evidence.logs.push_back(std::move(log));
  }
  std::vector<SeenSlot> in_order;
  for (const std::size_t slot : WantedSlots(source, Scope())) {
    if (const auto one = seen.find(slot); one != seen.end()) {
      std::ranges::sort(one->second.times);
      std::ranges::sort(one->second.not_zero);
      std::ranges::sort(one->second.bad, {}, &SeenSlot::Bad::time);
      in_order.push_back(one->second);
    }
  }
  const Excuses excuses = FindExcuses(source, in_order);
  for (std::size_t i = 0; i < evidence.logs.size(); ++i) {
    for (const auto& [place, time] : times[i]) {
      const auto excuse = excuses.find(time);
      if (excuse != excuses.end()) {
        evidence.logs[i].rows[place.first].at[place.second].excuse = excuse->second;
      }
    }
  }
  return evidence;
}

Moves MovesOf(const Row& row) {
  Moves moves;
  bool is_first = true;
  for (const Seen& seen : row.at) {
    if (!seen.is_here) continue;
    if (!std::exchange(is_first, false)) {
      ++(seen.change == Change::kSame      ? moves.same
         : seen.change == Change::kChanged ? moves.changed
                                           : moves.unknown);
    }
  }
  return moves;
}

std::vector<std::size_t> RunsOf(const Row& row) {
  std::vector<std::size_t> runs;
  for (std::size_t run = 0; run < row.at.size(); ++run) {
    if (row.at[run].is_here) runs.push_back(run);
  }
  return runs;
}

bool IsConstant(const Row& row) {
  const Seen* first = nullptr;
  for (const Seen& seen : row.at) {
    if (!seen.is_here) continue;
    if (first == nullptr) first = &seen;
    if (seen.nonfinite() > 0 || seen.min != seen.max || seen.min != first->min) return false;
  }
  return first != nullptr;
}

bool IsZero(const Row& row) {
  return IsConstant(row) && std::ranges::all_of(row.at, [](const Seen& seen) {
           return !seen.is_here || (seen.min == 0 && seen.max == 0);
         });
}

std::size_t MadeBefore(const Log& log, const Row& input) {
  const std::vector<std::size_t> runs = RunsOf(input);
  if (runs.empty() || input.count < 2) return SIZE_MAX;
  const Seen& seen = input.at[runs.front()];
  if (seen.xor_hash == 0 || seen.min == seen.max) return SIZE_MAX;
  for (std::size_t place = 0; place < log.rows.size(); ++place) {
    const Row& row = log.rows[place];
    if (row.is_input() || row.count != input.count) continue;
    for (std::size_t run = 0; run < runs.front(); ++run) {
      const Seen& made = row.at[run];
      if (made.is_here && made.xor_hash == seen.xor_hash && made.min == seen.min &&
          made.max == seen.max) {
        return place;
      }
    }
  }
  return SIZE_MAX;
}

bool IsNamedInput(std::string_view name) {
  if (!name.starts_with("in/")) return false;
  name.remove_prefix(3);
  if (name.find('/') != std::string_view::npos) return false;
  // "add_0.other": the argument of an op that is in no module.
  constexpr std::array kArguments = {
      std::string_view("self"),  std::string_view("other"),   std::string_view("input"),
      std::string_view("index"), std::string_view("indices"), std::string_view("mat1"),
      std::string_view("mat2"),  std::string_view("src"),     std::string_view("tensors"),
      std::string_view("mask"),  std::string_view("target"),  std::string_view("value"),
      std::string_view("query"), std::string_view("key"),     std::string_view("condition")};
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || dot == 0) return true;
  const bool is_argument = std::ranges::find(kArguments, name.substr(dot + 1)) != kArguments.end();
  return !is_argument || std::isdigit(static_cast<unsigned char>(name[dot - 1])) == 0;
}

std::string RunText(const Log& log, std::size_t run) {
  const std::string of = log.rank < 0 ? "" : fmt::format(" of rank {}", log.rank);
  if (log.graph_id == 0) {
    return fmt::format("call {}{}", log.counts_calls ? log.runs[run].replay : run + 1, of);
  }
  return fmt::format("replay {} of {}{}", log.runs[run].replay, log.graph, of);
}

std::string RunsWord(const Log& log, std::size_t count) {
  const char* word = log.graph_id == 0 ? "call" : "replay";
  return fmt::format("{} {}{}", count, word, count == 1 ? "" : "s");
}

}  // namespace cgdebug::analysis::why
