#include "client/analysis/masks.h"

#include <algorithm>
#include <array>

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
