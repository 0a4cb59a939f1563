#include "client/analysis/ops/masks.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>

namespace cgdebug::analysis {
namespace {

constexpr std::string_view kUnscale = "_amp_foreach_non_finite_check_and_unscale";

// A row of a log, with what its snapshots hold.
struct RowOfLog {
  const SeenSlot* seen;
  const source::Slot* slot;
  OpText text;
};

bool Has(const std::vector<SeenSlot::Time>& times, SeenSlot::Time time) {
  return std::ranges::binary_search(times, time);
}

// A number that an op computes of others. What compares or counts is finite whatever it reads; a
// cast hides an Inf as well as it can.
bool PassesValuesOn(const RowOfLog& row) {
  const layout::DtypeInfo* dtype = layout::FindDtype(row.slot->dtype);
  const std::string_view stem = StemOf(row.text.op);
  return (dtype != nullptr && dtype->is_floating) || stem == "_to_copy" || stem == "copy";
}

// The excuses of one log: rows in the order of their numbers.
class LogExcuses {
 public:
  LogExcuses(std::vector<RowOfLog> rows, Excuses* excuses)
      : rows_(std::move(rows)), excuses_(excuses) {
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      for (const SeenSlot::Bad& bad : rows_[i].seen->bad) bad_[bad.time].emplace_back(i, &bad);
      if (!PassesValuesOn(rows_[i])) continue;
      for (const std::uint32_t input : rows_[i].text.inputs) readers_[input].push_back(i);
    }
  }

  void Find() {
    for (const auto& [time, bad] : bad_) FindAt(time, bad);
  }

 private:
  using BadRows = std::vector<std::pair<std::size_t, const SeenSlot::Bad*>>;  // by place in rows_

  void FindAt(SeenSlot::Time time, const BadRows& bad) {
    ops::MaskFinder masks;
    std::vector<bool> are_masks;
    for (const auto& [place, one] : bad) {
      const RowOfLog& row = rows_[place];
      are_masks.push_back(masks.IsMask({row.text.number, row.text.op, &row.text.inputs,
                                        one->is_only_neg_inf && !IsSpoilt(row), one->share}));
    }
    const bool is_skipped = IsSkipped(time);
    std::map<std::uint32_t, std::uint64_t> in_padding;  // by number: elements that are not finite
    for (const auto& [place, one] : bad) {
      const OpText& text = rows_[place].text;
      if (IsPaddingRow(text.op) && !text.inputs.empty())
        in_padding[text.inputs.front()] = one->count;
    }
    std::map<std::size_t, bool> is_absorbed;  // of the bad rows, by place
    for (std::size_t i = bad.size(); i-- > 0;) {
      const auto& [place, one] = bad[i];
      is_absorbed[place] = !one->has_nan && IsAbsorbed(place, time, is_absorbed);
      const Excuse excuse = are_masks[i]                                       ? Excuse::kMask
                            : IsInPadding(rows_[place].text, *one, in_padding) ? Excuse::kPadding
                            : is_skipped && IsGradient(*rows_[place].slot)     ? Excuse::kSkipped
                            : is_absorbed[place]                               ? Excuse::kAbsorbed
                                                                               : Excuse::kNone;
      if (excuse != Excuse::kNone) (*excuses_)[{rows_[place].seen->slot, time}] = excuse;
    }
  }

  static bool IsInPadding(const OpText& row, const SeenSlot::Bad& bad,
                          const std::map<std::uint32_t, std::uint64_t>& in_padding) {
    const auto known = in_padding.find(row.number);
    return IsPaddingRow(row.op) || (known != in_padding.end() && known->second == bad.count);
  }

  static bool IsSpoilt(const RowOfLog& row) {
    const std::vector<SeenSlot::Bad>& bad = row.seen->bad;
    return row.text.op == "input" && (bad.size() < row.seen->times.size() ||
                                      std::ranges::any_of(bad, [&](const SeenSlot::Bad& one) {
                                        return one.is_only_neg_inf &&
                                               one.neg_inf != bad.front().neg_inf;
                                      }));
  }

  // `later`: what is known of the rows behind it.
  bool IsAbsorbed(std::size_t place, SeenSlot::Time time,
                  const std::map<std::size_t, bool>& later) const {
    const auto readers = readers_.find(rows_[place].text.number);
    if (readers == readers_.end()) return false;
    bool is_read = false;
    for (const std::size_t reader : readers->second) {
      const auto bad = later.find(reader);
      if (bad != later.end() && !bad->second) return false;
      is_read = is_read || Has(rows_[reader].seen->times, time);
    }
    return is_read;
  }

  bool IsSkipped(SeenSlot::Time time) const {
    return std::ranges::any_of(rows_, [&](const RowOfLog& row) {
      return IsOfGradScaler(*row.slot) && row.slot->probe.ends_with(".found_inf") &&
             Has(row.seen->not_zero, time);
    });
  }

  const std::vector<RowOfLog> rows_;
  Excuses* const excuses_;
  std::map<SeenSlot::Time, BadRows> bad_;
  std::map<std::uint32_t, std::vector<std::size_t>> readers_;  // by number: places in rows_
};

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
  for (auto& [graph, all] : graphs) {
    const bool is_captured = std::get<2>(graph) != 0;
    const auto number = [](const RowOfLog& row) { return row.text.number; };
    if (is_captured) std::ranges::stable_sort(all, {}, number);
    // Eager logs follow one another, each from number 1.
    for (auto begin = all.begin(); begin != all.end();) {
      const auto end =
          is_captured ? all.end()
                      : std::ranges::adjacent_find(begin, all.end(), std::greater_equal(), number);
      const auto after = end == all.end() ? end : end + 1;
      LogExcuses({begin, after}, &excuses).Find();
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

}  // namespace cgdebug::analysis
