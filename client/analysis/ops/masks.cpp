#include "client/analysis/ops/masks.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "daemon/core/ops/op_traits.h"

namespace cgdebug::analysis {
namespace {

constexpr std::string_view kUnscale = "_amp_foreach_non_finite_check_and_unscale";

// A row of a log, with what its snapshots hold.
struct RowOfLog {
  const SeenSlot* seen;
  const source::Slot* slot;
  OpText text;
};

bool IsFloating(const RowOfLog& row) {
  const layout::DtypeInfo* dtype = layout::FindDtype(row.slot->dtype);
  return dtype != nullptr && dtype->is_floating;
}

// A number that an op computes of others. What compares or counts is finite whatever it reads; a
// cast hides an Inf as well as it can.
bool PassesValuesOn(const RowOfLog& row) {
  const std::string_view stem = StemOf(row.text.op);
  return IsFloating(row) || stem == "_to_copy" || stem == "copy";
}

// The excuses of the rows of one replay or call.
class RunExcuses {
 public:
  // `rows`: those that it has.
  RunExcuses(std::vector<const RowOfLog*> rows, SeenSlot::Time time) : time_(time) {
    std::ranges::stable_sort(rows, {}, [](const RowOfLog* row) { return row->text.number; });
    std::map<std::uint32_t, std::size_t> place_of;
    for (const RowOfLog* row : rows) {
      if (IsRowMask(row->text.op)) continue;
      const std::size_t place = rows_.size();
      rows_.push_back({.row = row, .bad = BadAt(*row->seen, time)});
      const bool is_padding = IsPaddingRow(row->text.op);
      for (const std::uint32_t number : row->text.inputs) {
        const auto input = place_of.find(number);
        if (input == place_of.end()) continue;
        rows_[place].inputs.push_back(input->second);
        Here& read = rows_[input->second];
        if (is_padding) {
          read.bad_padding = rows_[place].bad == nullptr ? 0 : rows_[place].bad->count;
        } else {
          read.readers.push_back(place);
        }
      }
      if (!is_padding) place_of[row->text.number] = place;
    }
  }

  void Find(Excuses* excuses) {
    FindMasks();
    for (std::size_t i = rows_.size(); i-- > 0;) rows_[i].is_absorbed = IsAbsorbed(rows_[i]);
    const bool is_skipped = IsSkipped();
    for (Here& one : rows_) {
      if (one.bad == nullptr) continue;
      one.excuse = one.excuse == Excuse::kMask                      ? Excuse::kMask
                   : IsInPadding(one)                               ? Excuse::kPadding
                   : is_skipped && IsGradient(*one.row->slot)       ? Excuse::kSkipped
                   : one.is_absorbed || IsInspectionOfAbsorbed(one) ? Excuse::kAbsorbed
                   : IsMadeOfPadding(one)                           ? Excuse::kRowsNotKnown
                                                                    : Excuse::kNone;
      if (one.excuse != Excuse::kNone) (*excuses)[{one.row->seen->slot, time_}] = one.excuse;
    }
  }

 private:
  struct Here {
    const RowOfLog* row;
    const SeenSlot::Bad* bad;               // nullptr: it is finite
    std::vector<std::size_t> inputs = {};   // places in rows_, each before this one
    std::vector<std::size_t> readers = {};  // likewise, behind it
    // Elements of its padding rows that are not finite; nothing: nobody knows which rows are real.
    std::optional<std::uint64_t> bad_padding = {};
    bool is_absorbed = false;
    Excuse excuse = Excuse::kNone;

    std::string_view op() const { return row->text.op; }
  };

  static const SeenSlot::Bad* BadAt(const SeenSlot& seen, SeenSlot::Time time) {
    const auto bad = std::ranges::lower_bound(seen.bad, time, {}, &SeenSlot::Bad::time);
    return bad != seen.bad.end() && bad->time == time ? &*bad : nullptr;
  }

  void FindMasks() {
    ops::MaskFinder masks;
    for (Here& one : rows_) {
      if (one.bad == nullptr) continue;
      const bool is_mask =
          masks.IsMask({one.row->text.number, one.op(), &one.row->text.inputs,
                        one.bad->is_only_neg_inf && !IsSpoilt(*one.row), one.bad->share});
      if (is_mask) one.excuse = Excuse::kMask;
    }
  }

  static bool IsInPadding(const Here& one) {
    return IsPaddingRow(one.op()) || (one.bad_padding && *one.bad_padding == one.bad->count);
  }

  static bool IsSpoilt(const RowOfLog& row) {
    const std::vector<SeenSlot::Bad>& bad = row.seen->bad;
    return row.text.op == "input" && (bad.size() < row.seen->times.size() ||
                                      std::ranges::any_of(bad, [&](const SeenSlot::Bad& one) {
                                        return one.is_only_neg_inf &&
                                               one.neg_inf != bad.front().neg_inf;
                                      }));
  }

  // Requires: it is known of the rows behind it.
  bool IsAbsorbed(const Here& one) const {
    if (one.bad == nullptr) return false;
    bool is_read = false;
    for (const std::size_t place : one.readers) {
      const Here& reader = rows_[place];
      const bool is_asked = ops::HasTrait(ops::OpTrait::kInspector, reader.op());
      if (is_asked || IsInspection(reader) || reader.is_absorbed) {
        is_read = is_read || reader.is_absorbed;
        continue;
      }
      const bool passes_on = PassesValuesOn(*reader.row);
      if (!one.bad->has_nan) {
        if (passes_on && reader.bad != nullptr) return false;
        is_read = is_read || passes_on;
        continue;
      }
      // A NaN that becomes an index, or that an op hides as the sign does, is used.
      const bool has_gone = reader.bad == nullptr || reader.excuse == Excuse::kMask;
      if (!has_gone || !IsFloating(*reader.row) || !ops::PassesNanOn(reader.op())) return false;
      is_read = true;
    }
    return is_read;
  }

  // Whether it is made to ask whether values are finite, and for nothing else: isfinite() of torch
  // compares the absolute value.
  bool IsInspection(const Here& one) const {
    return !one.readers.empty() && std::ranges::all_of(one.readers, [&](std::size_t place) {
      return ops::HasTrait(ops::OpTrait::kInspector, rows_[place].op());
    });
  }
  bool IsInspectionOfAbsorbed(const Here& one) const {
    return IsInspection(one) && std::ranges::all_of(one.inputs, [&](std::size_t place) {
             return rows_[place].bad == nullptr || rows_[place].excuse == Excuse::kAbsorbed;
           });
  }

  bool IsMadeOfPadding(const Here& one) const {
    bool found = false;
    if (one.bad_padding) return false;
    for (const std::size_t place : one.inputs) {
      const Here& input = rows_[place];
      if (input.bad == nullptr) continue;
      if (input.excuse == Excuse::kNone) return false;
      found = found || input.excuse == Excuse::kPadding || input.excuse == Excuse::kRowsNotKnown;
    }
    return found;
  }

  bool IsSkipped() const {
    return std::ranges::any_of(rows_, [&](const Here& one) {
      return IsOfGradScaler(*one.row->slot) && one.row->slot->probe.ends_with(".found_inf") &&
             std::ranges::binary_search(one.row->seen->not_zero, time_);
    });
  }

  const SeenSlot::Time time_;
  std::vector<Here> rows_;  // by number
};

// `rows`: of one log. A number may mean another row in another call.
void AddExcuses(const std::vector<RowOfLog>& rows, Excuses* excuses) {
  std::map<SeenSlot::Time, std::vector<const RowOfLog*>> runs;
  for (const RowOfLog& row : rows) {
    for (const SeenSlot::Bad& bad : row.seen->bad) runs[bad.time];
  }
  if (runs.empty()) return;
  for (const RowOfLog& row : rows) {
    for (const SeenSlot::Time& time : row.seen->times) {
      if (const auto run = runs.find(time); run != runs.end()) run->second.push_back(&row);
    }
  }
  for (auto& [time, here] : runs) RunExcuses(std::move(here), time).Find(excuses);
}

}  // namespace

bool IsOfGradScaler(const source::Slot& slot) {
  return slot.op.find(kUnscale) != std::string::npos;
}

bool IsPaddingRow(std::string_view op) { return op == "padding" || op == "padding.mixed"; }

bool IsRowMask(std::string_view op) { return op == "valid_rows"; }

bool IsGradient(const source::Slot& slot) {
  constexpr std::array kPhases = {"bwd/", "grad/", "in/bwd/", "in/grad/"};
  return IsOfGradScaler(slot) || std::ranges::any_of(kPhases, [&](const char* phase) {
           return slot.probe.starts_with(phase);
         });
}

void SeenSlot::Note(const source::Key& key, const numerics::Stats& stats) {
  const Time time{key.replay, key.iteration};
  times.push_back(time);
  if (stats.abs_max > 0) not_zero.push_back(time);
  if (stats.nonfinite() == 0) return;
  bad.push_back({time, stats.neg_inf, stats.nonfinite(), ops::NegInfShare(stats),
                 ops::IsOnlyNegInf(stats), stats.nan > 0});
}

Excuses FindExcuses(const source::Source& source, const std::vector<SeenSlot>& seen) {
  std::map<std::tuple<std::string, int, std::uint64_t>, std::vector<RowOfLog>> graphs;
  for (const SeenSlot& one : seen) {
    const source::Slot& slot = source.slots()[one.slot];
    std::optional<OpText> text = slot.op.empty() ? std::nullopt : ParseOpText(slot.op);
    if (!text) continue;
    graphs[{slot.session, slot.rank, slot.graph_id}].push_back({&one, &slot, *std::move(text)});
  }
  Excuses excuses;
  for (const auto& [graph, all] : graphs) {
    if (std::get<2>(graph) != 0 || all.front().slot->counts_calls()) {
      AddExcuses(all, &excuses);
      continue;
    }
    // Eager logs that count their own replays follow one another, each from number 1.
    const auto number = [](const RowOfLog& row) { return row.text.number; };
    for (auto begin = all.begin(); begin != all.end();) {
      const auto end = std::ranges::adjacent_find(begin, all.end(), std::greater_equal(), number);
      const auto after = end == all.end() ? end : end + 1;
      AddExcuses({begin, after}, &excuses);
      begin = after;
    }
  }
  return excuses;
}

std::vector<std::uint32_t> MasksOf(const OpLog& log) {
  ops::MaskFinder masks;
  std::vector<std::uint32_t> numbers;
  for (const OpRow& row : log.rows) {
    if (!row.stats || row.stats->nonfinite() == 0) continue;
    if (masks.IsMask({row.number, row.op, &row.inputs, ops::IsOnlyNegInf(*row.stats),
                      ops::NegInfShare(*row.stats)})) {
      numbers.push_back(row.number);
    }
  }
  return numbers;
}

std::map<std::size_t, std::size_t> RowsOfValues(const source::Source& source) {
  using Name = std::tuple<std::string, int, std::uint64_t, std::string>;
  std::map<Name, std::size_t> row_of;
  const std::vector<source::Slot>& slots = source.slots();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const source::Slot& slot = slots[i];
    if (slot.op.empty()) continue;
    row_of[{slot.session, slot.rank, slot.graph_id, slot.probe + ".value"}] = i;
  }
  std::map<std::size_t, std::size_t> found;
  for (std::size_t i = 0; i < slots.size() && !row_of.empty(); ++i) {
    const source::Slot& slot = slots[i];
    if (!slot.op.empty()) continue;
    const auto row = row_of.find({slot.session, slot.rank, slot.graph_id, slot.probe});
    if (row != row_of.end()) found[i] = row->second;
  }
  return found;
}

}  // namespace cgdebug::analysis
