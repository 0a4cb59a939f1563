#include "daemon/core/numerics/mismatch_map.h"

#include <algorithm>
#include <bit>

namespace cgdebug::numerics {
namespace {

constexpr std::uint64_t kWordBits = 64;

std::uint64_t Words(std::uint64_t places) { return (places + kWordBits - 1) / kWordBits; }

void Set(std::vector<std::uint64_t>* bitmap, std::uint64_t place) {
  (*bitmap)[place / kWordBits] |= std::uint64_t{1} << (place % kWordBits);
}

// Sets the bits of `mask` at `place`. Bits beyond the end of the bitmap must be 0.
void SetWord(std::vector<std::uint64_t>* bitmap, std::uint64_t place, std::uint64_t mask) {
  const std::uint64_t shift = place % kWordBits;
  (*bitmap)[place / kWordBits] |= mask << shift;
  if (shift != 0 && mask >> (kWordBits - shift) != 0) {
    (*bitmap)[place / kWordBits + 1] |= mask >> (kWordBits - shift);
  }
}

// For one dimension the bitmap is the answer; for several, every set bit costs a division.
std::uint64_t MostPlaces(std::span<const std::uint64_t> sizes) {
  const auto real = std::count_if(sizes.begin(), sizes.end(), [](auto size) { return size > 1; });
  return real <= 1 ? MismatchMap::kMostOfOne : MismatchMap::kMostOfSeveral;
}

std::uint64_t Product(std::span<const std::uint64_t> sizes) {
  std::uint64_t product = 1;
  for (const std::uint64_t size : sizes) product *= std::max<std::uint64_t>(size, 1);
  return product;
}

}  // namespace

MismatchMap::MismatchMap(std::span<const std::uint64_t> shape)
    : shape_(shape), leading_dims_(shape.size()) {
  // A mask of 64 elements then touches two rows at most.
  while (leading_dims_ > 0 && row_ < kWordBits) {
    row_ *= std::max<std::uint64_t>(shape_[--leading_dims_], 1);
  }
  const auto leading = shape_.first(leading_dims_), trailing = shape_.subspan(leading_dims_);
  fits_ = row_ <= MostPlaces(trailing) && Product(leading) <= MostPlaces(leading);
}

void MismatchMap::AddWord(std::uint64_t first, std::uint64_t mask) {
  if (mask == 0) return;
  any_ = true;
  if (!fits_) return;
  if (trailing_.empty()) {
    leading_.resize(Words(Product(shape_.first(leading_dims_))));
    trailing_.resize(Words(row_));
  }
  std::uint64_t row = first / row_;
  const std::uint64_t at = first % row_;
  const std::uint64_t left = row_ - at;  // of this row
  const std::uint64_t here = left < kWordBits ? mask & ((std::uint64_t{1} << left) - 1) : mask;
  if (here != 0) {
    Set(&leading_, row);
    SetWord(&trailing_, at, here);
  }
  if (here != mask) {
    Set(&leading_, row + 1);
    SetWord(&trailing_, 0, mask >> left);
  }
}

void MismatchMap::AppendSpans(const Bitmap& bitmap, std::span<const std::uint64_t> sizes,
                              std::vector<MismatchSpan>* spans) const {
  std::vector<Bitmap> seen;
  for (const std::uint64_t size : sizes) seen.emplace_back(Words(size));
  const auto real = std::find_if(sizes.begin(), sizes.end(), [](auto size) { return size > 1; });
  const bool is_one = MostPlaces(sizes) == kMostOfOne;
  if (is_one) {
    for (Bitmap& indices : seen) indices.front() = 1;
    if (real != sizes.end()) seen[static_cast<std::size_t>(real - sizes.begin())] = bitmap;
  }
  for (std::size_t word = 0; word < bitmap.size() && !is_one; ++word) {
    for (std::uint64_t bits = bitmap[word]; bits != 0; bits &= bits - 1) {
      std::uint64_t place = word * kWordBits + static_cast<std::uint64_t>(std::countr_zero(bits));
      for (std::size_t dim = sizes.size(); dim-- > 0;) {
        Set(&seen[dim], place % sizes[dim]);
        place /= sizes[dim];
      }
    }
  }
  for (const Bitmap& indices : seen) {
    MismatchSpan span;
    for (std::size_t word = 0; word < indices.size(); ++word) {
      if (indices[word] == 0) continue;
      const std::uint64_t base = word * kWordBits;
      if (span.distinct == 0) {
        span.first = base + static_cast<std::uint64_t>(std::countr_zero(indices[word]));
      }
      span.last = base + static_cast<std::uint64_t>(std::bit_width(indices[word])) - 1;
      span.distinct += static_cast<std::uint64_t>(std::popcount(indices[word]));
    }
    spans->push_back(span);
  }
}

std::vector<MismatchSpan> MismatchMap::Spans() const {
  std::vector<MismatchSpan> spans;
  if (!any_ || !fits_) return spans;
  AppendSpans(leading_, shape_.first(leading_dims_), &spans);
  AppendSpans(trailing_, shape_.subspan(leading_dims_), &spans);
  return spans;
}

}  // namespace cgdebug::numerics
