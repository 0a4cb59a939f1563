#include "client/analysis/masks.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>

namespace cgdebug::analysis {
namespace {

// Without the overload, and without the "_" at the end of an op that writes in place.
constexpr std::array kWriters = {std::string_view("constant_pad_nd"),
                                 std::string_view("fill"),
                                 std::string_view("full"),
                                 std::string_view("full_like"),
                                 std::string_view("index_fill"),
                                 std::string_view("index_put"),
                                 std::string_view("lift_fresh_copy"),
                                 std::string_view("masked_fill"),
                                 std::string_view("new_full"),
                                 std::string_view("scalar_tensor"),
                                 std::string_view("tril"),
                                 std::string_view("triu"),
                                 std::string_view("where")};

bool WritesGivenValues(std::string_view op) {
  if (op == "input") return true;
  std::string_view base = BaseOf(op);
  if (base.ends_with('_')) base.remove_suffix(1);
  return std::ranges::find(kWriters, base) != kWriters.end();
}

}  // namespace

std::vector<bool> FindMasks(const std::vector<NonfiniteRow>& rows) {
  std::vector<bool> are_masks;
  std::map<std::uint32_t, double> shares;  // of the masks so far, by number
  for (const NonfiniteRow& row : rows) {
    const auto explains = [&](std::uint32_t input) {
      const auto mask = shares.find(input);
      return mask != shares.end() && row.share <= mask->second;
    };
    const bool is_mask = row.is_only_neg_inf &&
                         (WritesGivenValues(row.op) || std::ranges::any_of(*row.inputs, explains));
    if (is_mask) shares[row.number] = row.share;
    are_masks.push_back(is_mask);
  }
  return are_masks;
}

void SeenSlot::Note(const numerics::Stats& stats) {
  if (stats.nonfinite() == 0) {
    was_finite = true;
    return;
  }
  if (!IsOnlyNegInf(stats)) return;
  const bool is_first = neg_inf == 0;
  is_only_neg_inf = is_first || (is_only_neg_inf && neg_inf == stats.neg_inf);
  if (!is_first) return;
  neg_inf = stats.neg_inf;
  share = NegInfShare(stats);
}

std::set<std::size_t> FindMaskSlots(const source::Source& source,
                                    const std::vector<SeenSlot>& seen) {
  struct Row {
    const SeenSlot* seen;
    OpText text;
  };
  std::map<std::tuple<std::string, int, std::uint64_t>, std::vector<Row>> graphs;
  for (const SeenSlot& one : seen) {
    const source::Slot& slot = source.slots()[one.slot];
    std::optional<OpText> text = slot.op.empty() ? std::nullopt : ParseOpText(slot.op);
    if (!text) continue;
    graphs[{slot.session, slot.rank, slot.graph_id}].push_back({&one, *std::move(text)});
  }
  std::set<std::size_t> masks;
  for (auto& [graph, all] : graphs) {
    const bool is_captured = std::get<2>(graph) != 0;
    const auto number = [](const Row& row) { return row.text.number; };
    if (is_captured) std::ranges::stable_sort(all, {}, number);
    // Eager logs follow one another, each from number 1.
    for (auto begin = all.begin(); begin != all.end();) {
      const auto end =
          is_captured ? all.end()
                      : std::ranges::adjacent_find(begin, all.end(), std::greater_equal(), number);
      const auto after = end == all.end() ? end : end + 1;
      std::vector<NonfiniteRow> rows;
      std::vector<std::size_t> slots;
      for (auto row = begin; row != after; ++row) {
        if (row->seen->neg_inf == 0) continue;
        const bool is_spoilt = row->text.op == "input" && row->seen->was_finite;
        slots.push_back(row->seen->slot);
        rows.push_back({row->text.number, row->text.op, &row->text.inputs,
                        row->seen->is_only_neg_inf && !is_spoilt, row->seen->share});
      }
      const std::vector<bool> are_masks = FindMasks(rows);
      for (std::size_t i = 0; i < slots.size(); ++i) {
        if (are_masks[i]) masks.insert(slots[i]);
      }
      begin = after;
    }
  }
  return masks;
}

std::vector<std::uint32_t> MasksOf(const OpLog& log) {
  std::vector<NonfiniteRow> rows;
  for (const OpRow& row : log.rows) {
    if (!row.stats || row.stats->nonfinite() == 0) continue;
    rows.push_back(
        {row.number, row.op, &row.inputs, IsOnlyNegInf(*row.stats), NegInfShare(*row.stats)});
  }
  const std::vector<bool> are_masks = FindMasks(rows);
  std::vector<std::uint32_t> numbers;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (are_masks[i]) numbers.push_back(rows[i].number);
  }
  return numbers;
}

}  // namespace cgdebug::analysis
