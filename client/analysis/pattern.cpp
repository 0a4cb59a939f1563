#include "client/analysis/pattern.h"

#include <fmt/format.h>

#include "daemon/numerics/tensor_view.h"

namespace cgdebug::analysis {

MismatchPattern::MismatchPattern(std::span<const std::uint64_t> shape)
    : shape_(shape.begin(), shape.end()) {
  for (const std::uint64_t size : shape) touched_.emplace_back(size, false);
}

void MismatchPattern::Add(std::uint64_t flat_index) {
  ++count_;
  for (std::size_t dimension = shape_.size(); dimension-- > 0;) {
    touched_[dimension][flat_index % shape_[dimension]] = true;
    flat_index /= shape_[dimension];
  }
}

MismatchPattern::Extent MismatchPattern::ExtentOf(std::size_t dimension) const {
  Extent extent{.size = shape_[dimension]};
  std::uint64_t previous = 0;
  for (std::uint64_t i = 0; i < extent.size; ++i) {
    if (!touched_[dimension][i]) continue;
    if (extent.touched == 0) extent.first = i;
    if (extent.touched == 1) extent.stride = i - previous;
    if (extent.touched > 1 && i - previous != extent.stride) extent.stride = 0;
    previous = extent.last = i;
    ++extent.touched;
  }
  return extent;
}

std::string MismatchPattern::Extent::Text() const {
  if (is_whole()) return ":";
  if (touched == 1) return std::to_string(first);
  if (stride == 1) return fmt::format("{}:{}", first, last + 1);
  if (stride > 1 && touched > 2) return fmt::format("{}:{}:{}", first, last + 1, stride);
  return fmt::format("{} of {}", touched, size);
}

std::string MismatchPattern::Text() const {
  if (shape_.empty() || count_ == 0) return "";
  if (count_ == numerics::ElementCount(shape_)) return "every element mismatches";
  std::string box, tails, strided;
  std::uint64_t box_count = 1;
  bool is_restricted = false;
  const auto append = [](std::string* list, std::size_t dimension) {
    *list += (list->empty() ? "" : " and ") + std::to_string(dimension);
  };
  for (std::size_t dimension = 0; dimension < shape_.size(); ++dimension) {
    const Extent extent = ExtentOf(dimension);
    box += (dimension == 0 ? "" : ", ") + extent.Text();
    box_count *= extent.touched;
    is_restricted = is_restricted || !extent.is_whole();
    if (extent.is_tail()) append(&tails, dimension);
    if (!extent.is_whole() && extent.stride > 1 && extent.touched > 2) append(&strided, dimension);
  }
  if (!is_restricted) return "the mismatches are spread over every dimension";
  std::string text = fmt::format("every mismatch lies in [{}]", box);
  text += box_count == count_ ? ", all of it"
                              : fmt::format(", {} of its {} elements", count_, box_count);
  if (!tails.empty()) {
    text += fmt::format("  -> the end of dim {}: looks like padding or a stale last row", tails);
  } else if (!strided.empty()) {
    text += fmt::format("  -> evenly spaced in dim {}: looks like a wrong stride", strided);
  }
  return text;
}

}  // namespace cgdebug::analysis
