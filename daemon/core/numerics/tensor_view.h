// tensor_view.h: a contiguous tensor in memory that somebody else owns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "daemon/core/base/result.h"
#include "proto/layout/dtype.h"

namespace cgdebug::numerics {

// The product of `shape`, 1 for a scalar; nothing when it does not fit 64 bits.
constexpr std::optional<std::uint64_t> ElementCount(std::span<const std::uint64_t> shape) {
  std::uint64_t count = 1;
  bool overflow = false;
  for (const std::uint64_t size : shape) {
    if (size == 0) return 0;  // whatever the other sizes are
    overflow = __builtin_mul_overflow(count, size, &count) || overflow;
  }
  if (overflow) return std::nullopt;
  return count;
}

// Bytes of a contiguous tensor; nothing for an unknown dtype or a product over 64 bits.
constexpr std::optional<std::uint64_t> PayloadBytes(layout::Dtype dtype,
                                                    std::span<const std::uint64_t> shape) {
  const std::optional<std::uint64_t> count = ElementCount(shape);
  const std::uint64_t element_bytes = layout::DtypeBytes(dtype);
  std::uint64_t bytes = 0;
  if (!count || element_bytes == 0) return std::nullopt;
  if (__builtin_mul_overflow(*count, element_bytes, &bytes)) return std::nullopt;
  return bytes;
}

// Lifetime: borrows shape and data. The data need not be aligned.
struct TensorView {
  layout::Dtype dtype = layout::Dtype::kInvalid;
  std::span<const std::uint64_t> shape;
  std::span<const std::byte> data;

  // From the data, so that nobody who trusts it reads past the end.
  std::uint64_t count() const {
    const std::size_t element_bytes = layout::DtypeBytes(dtype);
    return element_bytes == 0 ? 0 : data.size() / element_bytes;
  }
};

// A view whose shape, dtype and data agree. The functions of this folder require one.
// Fails: an unknown dtype, or data of another size than dtype and shape say.
Result<TensorView> MakeTensorView(layout::Dtype dtype, std::span<const std::uint64_t> shape,
                                  std::span<const std::byte> data);

}  // namespace cgdebug::numerics
