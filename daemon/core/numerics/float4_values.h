// float4_values.h: the values of a tensor of float4_e2m1fn_x2, whose elements hold two each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "daemon/core/numerics/tensor_view.h"

namespace cgdebug::numerics {

class Float4Values {
 public:
  // Requires: a view of dtype float4_e2m1fn_x2, from MakeTensorView.
  explicit Float4Values(const TensorView& packed);

  // As float8_e4m3fn, which has each of these values. Its last dimension is twice as long.
  TensorView view() const { return {layout::Dtype::kFloat8E4m3fn, shape_, data_}; }
  // Of float4_e2m1fn: 0.5 and -0.5.
  std::uint64_t subnormal() const { return subnormal_; }

 private:
  std::vector<std::uint64_t> shape_;
  std::vector<std::byte> data_;
  std::uint64_t subnormal_ = 0;
};

}  // namespace cgdebug::numerics
