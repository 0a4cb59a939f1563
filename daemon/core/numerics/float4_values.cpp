#include "daemon/core/numerics/float4_values.h"

namespace cgdebug::numerics {
namespace {

// The bits of each magnitude as float8_e4m3fn.
constexpr unsigned kMagnitudes[] = {0x00, 0x30, 0x38, 0x3c, 0x40, 0x44, 0x48, 0x4c};

std::byte ToFloat8(unsigned bits) {  // the lower four
  return static_cast<std::byte>((bits & 8) << 4 | kMagnitudes[bits & 7]);
}

}  // namespace

Float4Values::Float4Values(const TensorView& packed)
    : shape_(packed.shape.begin(), packed.shape.end()), data_(2 * packed.data.size()) {
  if (shape_.empty()) shape_.push_back(1);
  shape_.back() *= 2;
  for (std::size_t i = 0; i < packed.data.size(); ++i) {
    const auto bits = std::to_integer<unsigned>(packed.data[i]);
    data_[2 * i] = ToFloat8(bits);
    data_[2 * i + 1] = ToFloat8(bits >> 4);
    subnormal_ += ((bits & 7) == 1) + ((bits >> 4 & 7) == 1);
  }
}

}  // namespace cgdebug::numerics
