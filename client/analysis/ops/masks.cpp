#include "client/analysis/ops/masks.h"

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <string>
#include <tuple>

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

// Whether all that comes of a NaN or Inf ends without it.
enum class Known : std::uint8_t { kNo, kYes, kNobodyKnows };

// A tensor with NaN or Inf, by its bits: its dtype, its hash, how many of its elements they are.
using Bits = std::tuple<layout::Dtype, std::uint64_t, std::uint64_t>;

// The inputs of a call that are not finite: what becomes of them there.
struct InputsOfCall {
  std::map<Bits, Known> absorbed;
  std::set<std::pair<layout::Dtype, std::uint64_t>> bad;  // all of them: how many elements of each
  std::set<layout::Dtype> lost;  // dtypes of inputs that it may have had, and that are not here
};

// The excuses of the rows of one replay or call.
class RunExcuses {
 public:
  // `rows`: those that it has.
  // `absent`: those that it may have had, and that are not here.
  // `next`: of the next call; nothing where rows are of no call.
  RunExcuses(std::vector<const RowOfLog*> rows, const std::vector<const RowOfLog*>& absent,
             SeenSlot::Time time, std::optional<InputsOfCall> next)
      : time_(time), next_(std::move(next)) {
    std::ranges::stable_sort(rows, {}, [](const RowOfLog* row) { return row->text.number; });
    std::map<std::uint32_t, std::size_t> place_of;
    for (const RowOfLog* row : rows) {
      if (IsRowMask(row->text.op)) continue;
      const std::size_t place = rows_.size();
      rows_.push_back({.row = row, .bad = BadAt(*row->seen, time)});
      const bool is_padding = layout::IsPaddingOp(row->text.op);
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
    for (const RowOfLog* row : absent) {
      if (IsFoundInf(*row)) lacks_found_inf_ = true;
      if (!place_of.contains(row->text.number)) absent_.insert(row->text.number);
      for (const std::uint32_t number : row->text.inputs) {
        const auto input = place_of.find(number);
        if (input != place_of.end()) rows_[input->second].lacks_readers = true;
      }
    }
  }

  void Find(Excuses* excuses) {
    FindMasks();
    for (std::size_t i = rows_.size(); i-- > 0;) rows_[i].absorbed = IsAbsorbed(rows_[i]);
    const bool is_skipped = IsSkipped();
    for (Here& one : rows_) {
      if (one.bad == nullptr) continue;
      one.excuse = one.excuse == Excuse::kMask                ? Excuse::kMask
                   : IsInPadding(one)                         ? Excuse::kPadding
                   : is_skipped && IsGradient(*one.row->slot) ? Excuse::kSkipped
                   : one.absorbed == Known::kYes              ? Excuse::kAbsorbed
                   : IsInspectionOf(one, Excuse::kAbsorbed)   ? Excuse::kAbsorbed
                   : IsMadeOfPadding(one)                     ? Excuse::kRowsNotKnown
                   : MayHaveOne(one)                          ? Excuse::kMayHaveOne
                                                              : Excuse::kNone;
      if (one.excuse != Excuse::kNone) (*excuses)[{one.row->seen->slot, time_}] = one.excuse;
    }
  }

  // Requires: Find() has run.
  InputsOfCall Inputs() const {
    InputsOfCall inputs;
    for (const Here& one : rows_) {
      if (one.op() != "input" || one.bad == nullptr) continue;
      inputs.bad.emplace(one.row->slot->dtype, one.bad->count);
      const std::optional<Bits> bits = BitsOf(one);
      if (!bits) continue;
      const auto [known, is_new] = inputs.absorbed.try_emplace(*bits, one.absorbed);
      if (!is_new && known->second != one.absorbed) {
        const bool is_used = known->second == Known::kNo || one.absorbed == Known::kNo;
        known->second = is_used ? Known::kNo : Known::kNobodyKnows;
      }
    }
    return inputs;
  }

 private:
  struct Here {
    const RowOfLog* row;
    const SeenSlot::Bad* bad;               // nullptr: it is finite
    std::vector<std::size_t> inputs = {};   // places in rows_, each before this one
    std::vector<std::size_t> readers = {};  // likewise, behind it
    // Elements of its padding rows that are not finite; nothing: nobody knows which rows are real.
    std::optional<std::uint64_t> bad_padding = {};
    bool lacks_readers = false;  // a row that may have read it is not here
    Known absorbed = Known::kNo;
    Excuse excuse = Excuse::kNone;

    std::string_view op() const { return row->text.op; }
  };

  static const SeenSlot::Bad* BadAt(const SeenSlot& seen, SeenSlot::Time time) {
    const auto bad = std::ranges::lower_bound(seen.bad, time, {}, &SeenSlot::Bad::time);
    return bad != seen.bad.end() && bad->time == time ? &*bad : nullptr;
  }

  // Nothing: what has no finite element is no more like one tensor than like another.
  static std::optional<Bits> BitsOf(const Here& one) {
    if (one.bad == nullptr || !one.bad->ordered_hash) return std::nullopt;
    std::uint64_t elements = 1;
    for (const std::uint64_t size : one.row->slot->shape) elements *= size;
    if (one.bad->count >= elements) return std::nullopt;
    return Bits(one.row->slot->dtype, *one.bad->ordered_hash, one.bad->count);
  }

  // Whether the program made it outside of all modules, so that a call may read it later.
  bool IsMadeBetweenCalls(const Here& one) const {
    const std::string& name = one.row->slot->probe;
    return next_ && name.starts_with("fwd/") && name.rfind('/') == name.find('/');
  }

  // What becomes of it in the next call; nothing if that does not read it.
  std::optional<Known> AbsorbedNext(const Here& one) const {
    const std::optional<Bits> bits = IsMadeBetweenCalls(one) ? BitsOf(one) : std::nullopt;
    if (!bits) return std::nullopt;
    if (const auto read = next_->absorbed.find(*bits); read != next_->absorbed.end()) {
      return read->second;
    }
    if (next_->lost.contains(one.row->slot->dtype)) return Known::kNobodyKnows;
    return std::nullopt;
  }

  // A number that is NaN in each call.
  static bool IsConstantNan(const Here& one) {
    const std::vector<std::uint64_t>& shape = one.row->slot->shape;
    return one.op() == "input" && one.bad->has_nan &&
           std::ranges::all_of(shape, [](std::uint64_t size) { return size == 1; }) &&
           one.row->seen->bad.size() == one.row->seen->times.size();
  }

  // Whether it has a NaN that the program writes into what it makes between calls, and that nothing
  // reads.
  bool IsSetAside(const Here& one) const {
    return IsMadeBetweenCalls(one) && one.bad->has_nan && one.readers.empty() &&
           !next_->bad.contains({one.row->slot->dtype, one.bad->count}) &&
           one.row->text.is_covered && ops::HasTrait(ops::OpTrait::kGiven, one.op()) &&
           std::ranges::all_of(one.inputs, [&](std::size_t place) {
             return rows_[place].bad == nullptr || IsConstantNan(rows_[place]);
           });
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
    return layout::IsPaddingOp(one.op()) || (one.bad_padding && *one.bad_padding == one.bad->count);
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
  Known IsAbsorbed(const Here& one) const {
    if (one.bad == nullptr) return Known::kNo;
    bool is_read = false, is_unknown = one.lacks_readers;
    for (const std::size_t place : one.readers) {
      const Here& reader = rows_[place];
      const bool is_asked = ops::HasTrait(ops::OpTrait::kInspector, reader.op());
      if (is_asked || IsInspection(reader) || reader.absorbed == Known::kYes) {
        is_read = is_read || reader.absorbed == Known::kYes;
        continue;
      }
      if (reader.absorbed == Known::kNobodyKnows) {
        is_unknown = true;
        continue;
      }
      const bool passes_on = PassesValuesOn(*reader.row);
      if (!one.bad->has_nan) {
        if (passes_on && reader.bad != nullptr) return Known::kNo;
        is_read = is_read || passes_on || IsGiven(one);
        continue;
      }
      // A NaN that becomes an index, or that an op hides as the sign does, is used.
      const bool has_gone = reader.bad == nullptr || reader.excuse == Excuse::kMask;
      if (!has_gone || !IsFloating(*reader.row) || !ops::PassesNanOn(reader.op())) {
        return Known::kNo;
      }
      is_read = true;
    }
    if (const std::optional<Known> next = AbsorbedNext(one)) {
      if (*next == Known::kNo) return Known::kNo;
      (*next == Known::kYes ? is_read : is_unknown) = true;
    }
    is_read = is_read || IsSetAside(one);
    return is_unknown ? Known::kNobodyKnows : is_read ? Known::kYes : Known::kNo;
  }

  // Whether the program gives it its values: an Inf is a bound then, if nothing but a comparison
  // reads it.
  bool IsGiven(const Here& one) const {
    return one.op() == "input" || (ops::HasTrait(ops::OpTrait::kGiven, one.op()) &&
                                   std::ranges::all_of(one.inputs, [&](std::size_t place) {
                                     return rows_[place].bad == nullptr;
                                   }));
  }

  bool MayHaveOne(const Here& one) const {
    if (one.absorbed == Known::kNobodyKnows || IsInspectionOf(one, Excuse::kMayHaveOne)) {
      return true;
    }
    if (lacks_found_inf_ && IsGradient(*one.row->slot)) return true;
    return one.bad->is_only_neg_inf &&
           std::ranges::any_of(one.row->text.inputs,
                               [&](std::uint32_t number) { return absent_.contains(number); });
  }

  // Whether it is made to ask whether values are finite, and for nothing else: isfinite() of torch
  // compares the absolute value.
  bool IsInspection(const Here& one) const {
    return !one.readers.empty() && std::ranges::all_of(one.readers, [&](std::size_t place) {
      return ops::HasTrait(ops::OpTrait::kInspector, rows_[place].op());
    });
  }
  bool IsInspectionOf(const Here& one, Excuse excuse) const {
    return IsInspection(one) && std::ranges::all_of(one.inputs, [&](std::size_t place) {
             return rows_[place].bad == nullptr || rows_[place].excuse == Excuse::kAbsorbed ||
                    rows_[place].excuse == excuse;
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
      return IsFoundInf(*one.row) && std::ranges::binary_search(one.row->seen->not_zero, time_);
    });
  }

  static bool IsFoundInf(const RowOfLog& row) {
    return IsOfGradScaler(*row.slot) && row.slot->probe.ends_with(".found_inf");
  }

  const SeenSlot::Time time_;
  const std::optional<InputsOfCall> next_;
  std::vector<Here> rows_;          // by number
  std::set<std::uint32_t> absent_;  // numbers of rows that are not here
  bool lacks_found_inf_ = false;
};

// What a source lacks of rows.
class Lacks {
 public:
  explicit Lacks(source::Source& source) {
    for (const source::Gap& gap : source.Gaps()) gaps_[gap.slot].push_back(gap);
    running_ = source.Describe().running;
  }

  // Whether any of `row` may be missing. `newest`: the last run of its log.
  bool MayLack(const RowOfLog& row, SeenSlot::Time newest) const {
    return gaps_.contains(row.seen->slot) || MayCome(row, newest, newest);
  }
  // Whether it may have run then. Requires: nothing of it is here of that time.
  bool MayHaveRun(const RowOfLog& row, SeenSlot::Time time, SeenSlot::Time newest) const {
    if (MayCome(row, time, newest)) return true;
    const auto gaps = gaps_.find(row.seen->slot);
    return gaps != gaps_.end() && std::ranges::any_of(gaps->second, [&](const source::Gap& gap) {
             return gap.after_replay < time.first &&
                    (gap.before_replay == 0 || gap.before_replay > time.first);
           });
  }

 private:
  // Of a run whose rows may still be on their way, or were when the source ended.
  bool MayCome(const RowOfLog& row, SeenSlot::Time time, SeenSlot::Time newest) const {
    return running_.contains(row.slot->uuid) && time == newest &&
           (row.seen->times.empty() || row.seen->times.back() < time);
  }

  std::map<std::size_t, std::vector<source::Gap>> gaps_;  // by slot
  std::set<std::string> running_;                         // source::Description::running
};

// `rows`: of one log. A number may mean another row in another call.
void AddExcuses(const std::vector<RowOfLog>& rows, const Lacks& lacks, Excuses* excuses) {
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
  SeenSlot::Time newest = {};
  for (const RowOfLog& row : rows) {
    if (!row.seen->times.empty()) newest = std::max(newest, row.seen->times.back());
  }
  std::vector<const RowOfLog*> with_lacks;
  for (const RowOfLog& row : rows) {
    if (lacks.MayLack(row, newest)) with_lacks.push_back(&row);
  }
  const auto absent_in = [&](SeenSlot::Time time) {
    std::vector<const RowOfLog*> absent;
    for (const RowOfLog* row : with_lacks) {
      const bool is_here = std::ranges::binary_search(row->seen->times, time);
      if (!is_here && lacks.MayHaveRun(*row, time, newest)) absent.push_back(row);
    }
    return absent;
  };
  const bool has_calls = rows.front().slot->counts_calls();
  std::map<SeenSlot::Time, InputsOfCall> inputs;
  for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
    const SeenSlot::Time time = run->first, after{time.first + 1, time.second};
    std::optional<InputsOfCall> next;
    if (has_calls) {
      next = inputs[after];
      for (const RowOfLog* row : absent_in(after)) {
        if (row->text.op == "input") next->lost.insert(row->slot->dtype);
      }
    }
    RunExcuses found(std::move(run->second), absent_in(time), time, std::move(next));
    found.Find(excuses);
    if (has_calls) inputs[time] = found.Inputs();
  }
}

}  // namespace

bool IsOfGradScaler(const source::Slot& slot) {
  return slot.op.text().find(kUnscale) != std::string::npos;
}

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
  bad.push_back(
      {.time = time,
       .neg_inf = stats.neg_inf,
       .count = stats.nonfinite(),
       .share = ops::NegInfShare(stats),
       .is_only_neg_inf = ops::IsOnlyNegInf(stats),
       .has_nan = stats.nan > 0,
       .ordered_hash = stats.has_ordered_hash ? std::optional(stats.ordered_hash) : std::nullopt});
}

namespace {

// ROW.value keeps what a row of an op log holds, so it has the excuse of that row.
void AddExcusesOfValues(const source::Source& source, Excuses* excuses) {
  for (const auto& [value, rows] : RowsOfValues(source)) {
    for (const std::size_t row : rows) {
      for (auto one = excuses->lower_bound({row, {}});
           one != excuses->end() && one->first.first == row; ++one) {
        excuses->insert({{value, one->first.second}, one->second});
      }
    }
  }
}

}  // namespace

Excuses FindExcuses(source::Source& source, const std::vector<SeenSlot>& seen) {
  std::map<std::tuple<std::string, int, std::uint64_t>, std::vector<RowOfLog>> graphs;
  for (const SeenSlot& one : seen) {
    const source::Slot& slot = source.slots()[one.slot];
    const OpText* const text = slot.op.row();
    if (text == nullptr) continue;
    graphs[{slot.session, slot.rank, slot.graph_id}].push_back({&one, &slot, *text});
  }
  Excuses excuses;
  const bool has_bad =
      std::ranges::any_of(seen, [](const SeenSlot& one) { return !one.bad.empty(); });
  if (!has_bad) return excuses;
  const Lacks lacks(source);
  for (const auto& [graph, all] : graphs) {
    if (std::get<2>(graph) != 0 || all.front().slot->counts_calls()) {
      AddExcuses(all, lacks, &excuses);
      continue;
    }
    // Eager logs that count their own replays follow one another, each from number 1.
    const auto number = [](const RowOfLog& row) { return row.text.number; };
    for (auto begin = all.begin(); begin != all.end();) {
      const auto end = std::ranges::adjacent_find(begin, all.end(), std::greater_equal(), number);
      const auto after = end == all.end() ? end : end + 1;
      AddExcuses({begin, after}, lacks, &excuses);
      begin = after;
    }
  }
  AddExcusesOfValues(source, &excuses);
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

std::map<std::size_t, std::vector<std::size_t>> RowsOfValues(const source::Source& source) {
  using Name = std::tuple<std::string, int, std::uint64_t, std::string>;
  std::map<Name, std::vector<std::size_t>> rows_of;
  const std::vector<source::Slot>& slots = source.slots();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const source::Slot& slot = slots[i];
    if (slot.op.empty()) continue;
    rows_of[{slot.session, slot.rank, slot.graph_id, slot.probe + ".value"}].push_back(i);
  }
  std::map<std::size_t, std::vector<std::size_t>> found;
  for (std::size_t i = 0; i < slots.size() && !rows_of.empty(); ++i) {
    const source::Slot& slot = slots[i];
    if (!slot.op.empty()) continue;
    const auto rows = rows_of.find({slot.session, slot.rank, slot.graph_id, slot.probe});
    if (rows != rows_of.end()) found[i] = rows->second;
  }
  return found;
}

}  // namespace cgdebug::analysis
