#include "daemon/core/ops/masks.h"

#include <algorithm>

#include "daemon/core/ops/op_traits.h"

namespace cgdebug::ops {
namespace {

bool WritesGivenValues(std::string_view op) {
  return op == "input" || HasTrait(OpTrait::kGiven, op);
}

}  // namespace

bool MaskFinder::IsMask(const NonfiniteRow& row) {
  const bool is_mover = HasTrait(OpTrait::kMover, row.op);
  const auto explains = [&](std::uint32_t input) {
    const auto mask = shares_.find(input);
    return mask != shares_.end() && (row.share <= mask->second || is_mover);
  };
  const auto spoils = [&](std::uint32_t input) {
    return is_mover && std::ranges::binary_search(others_, input);
  };
  const bool is_mask = row.is_only_neg_inf &&
                       (WritesGivenValues(row.op) || (std::ranges::any_of(*row.inputs, explains) &&
                                                      std::ranges::none_of(*row.inputs, spoils)));
  if (is_mask) {
    shares_[row.number] = row.share;
  } else {
    others_.insert(std::ranges::upper_bound(others_, row.number), row.number);
  }
  return is_mask;
}

}  // namespace cgdebug::ops
