#include "daemon/core/replicas/spread.h"

#include <algorithm>
#include <cmath>

#include "daemon/core/numerics/kernels/decode.h"

namespace cgdebug::replicas {

double LastPlace(layout::Dtype dtype) {
  using layout::Dtype;
  switch (dtype) {
    case Dtype::kFloat64:
      return 0x1p-52;
    case Dtype::kFloat32:
      return 0x1p-23;
    case Dtype::kFloat16:
      return 0x1p-10;
    case Dtype::kBfloat16:
      return 0x1p-7;
    case Dtype::kFloat8E8m0fnu:
    case Dtype::kFloat4E2m1fnX2:
      return 0.5;
    case Dtype::kFloat8E4m3fn:
    case Dtype::kFloat8E4m3fnuz:
      return 0x1p-3;
    case Dtype::kFloat8E5m2:
    case Dtype::kFloat8E5m2fnuz:
      return 0x1p-2;
    default:
      return 0;
  }
}

double BoundOf(layout::Dtype dtype, double tolerance) {
  return std::max(tolerance, 2 * LastPlace(dtype));
}

bool Spread::Add(layout::Dtype dtype, std::span<const std::byte> values) {
  const std::size_t element_bytes = layout::DtypeBytes(dtype);
  if (element_bytes == 0 || (ranks_ > 0 && dtype != dtype_)) return is_known_ = false;
  const std::size_t count = values.size() / element_bytes * layout::ValuesPerElement(dtype);
  if (ranks_ == 0) {
    least_.resize(count);
    most_.resize(count);
  } else if (count != least_.size()) {
    return is_known_ = false;
  }
  const bool is_first = ranks_ == 0;
  dtype_ = dtype;
  ++ranks_;
  numerics::VisitDtype(dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    for (std::size_t i = 0; i < count; ++i) {
      double value = 0;
      if constexpr (numerics::kHoldsTwo<T>) {
        value = numerics::ValuesOf(numerics::LoadElement<T>(values, i / 2))[i % 2];
      } else {
        value = static_cast<double>(numerics::ToNative(numerics::LoadElement<T>(values, i)));
      }
      const bool is_nan = std::isnan(value);
      if (is_first) {
        least_[i] = most_[i] = value;
      } else if (is_nan != std::isnan(least_[i])) {
        has_other_nan_ = true;
      } else if (!is_nan) {
        least_[i] = std::min(least_[i], value);
        most_[i] = std::max(most_[i], value);
      }
    }
  });
  return is_known_;
}

std::optional<bool> Spread::Within(double tolerance) const {
  if (!is_known_ || ranks_ < 2) return std::nullopt;
  if (has_other_nan_) return false;
  double widest = 0, largest = 0;
  for (std::size_t i = 0; i < least_.size(); ++i) {
    if (std::isnan(least_[i])) continue;
    if (std::isinf(least_[i]) || std::isinf(most_[i])) {
      if (least_[i] != most_[i]) return false;
      continue;
    }
    widest = std::max(widest, most_[i] - least_[i]);
    largest = std::max({largest, std::fabs(least_[i]), std::fabs(most_[i])});
  }
  return widest <= BoundOf(dtype_, tolerance) * largest;
}

}  // namespace cgdebug::replicas
