// Tensors for the tests of daemon/core/numerics, from values or from raw bits.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <utility>
#include <vector>

#include "daemon/core/numerics/compare.h"
#include "daemon/core/numerics/kernels/cpu.h"
#include "daemon/core/numerics/tensor_view.h"

namespace cgdebug::numerics {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();

// Uses this CPU's loops until the end of its scope.
class WithCpu {
 public:
  explicit WithCpu(Cpu cpu) : before_(ChosenCpu()) { OverrideCpu(cpu); }
  ~WithCpu() { OverrideCpu(before_); }

 private:
  Cpu before_;
};

// Owns the bytes that its view borrows.
class TestTensor {
 public:
  template <typename T>
  TestTensor(layout::Dtype dtype, std::vector<std::uint64_t> shape, const std::vector<T>& elements)
      : dtype_(dtype), shape_(std::move(shape)), data_(elements.size() * sizeof(T)) {
    if (!data_.empty()) std::memcpy(data_.data(), elements.data(), data_.size());
  }

  TensorView view() const { return MakeTensorView(dtype_, shape_, data_).value(); }

 private:
  layout::Dtype dtype_;
  std::vector<std::uint64_t> shape_;
  std::vector<std::byte> data_;
};

template <typename T>
TestTensor Vector(layout::Dtype dtype, const std::vector<T>& elements) {
  return TestTensor(dtype, {elements.size()}, elements);
}
inline TestTensor F32(const std::vector<float>& values) {
  return Vector(layout::Dtype::kFloat32, values);
}
inline TestTensor F64(const std::vector<double>& values) {
  return Vector(layout::Dtype::kFloat64, values);
}
inline TestTensor I64(const std::vector<std::int64_t>& values) {
  return Vector(layout::Dtype::kInt64, values);
}
inline TestTensor F16Bits(const std::vector<std::uint16_t>& bits) {
  return Vector(layout::Dtype::kFloat16, bits);
}
inline TestTensor Bf16Bits(const std::vector<std::uint16_t>& bits) {
  return Vector(layout::Dtype::kBfloat16, bits);
}

// Expects the kernels of every CPU to give the same result as the plain loops.
inline void ExpectSameOnEveryCpu(const TestTensor& actual, const TestTensor& expected,
                                 const CompareOptions& options) {
  CompareResult plain;
  for (const Cpu cpu : AvailableCpus()) {  // the plain one first
    SCOPED_TRACE(testing::Message() << "cpu " << static_cast<int>(cpu));
    const WithCpu chosen(cpu);
    const CompareResult result = Compare(actual.view(), expected.view(), options).value();
    if (cpu == Cpu::kPlain) plain = result;
    EXPECT_EQ(result.mismatched, plain.mismatched);
    EXPECT_EQ(result.first_mismatch, plain.first_mismatch);
    EXPECT_EQ(result.text.Whole(), plain.text.Whole());
    EXPECT_EQ(result.ulp, plain.ulp);
    EXPECT_EQ(result.nan_in_actual, plain.nan_in_actual);
    EXPECT_EQ(result.nan_in_expected, plain.nan_in_expected);
    EXPECT_EQ(result.mismatched_zero, plain.mismatched_zero);
    EXPECT_EQ(result.mismatched_greater, plain.mismatched_greater);
    EXPECT_EQ(result.max_abs.index, plain.max_abs.index);
    EXPECT_EQ(result.max_rel.index, plain.max_rel.index);
    ASSERT_EQ(result.spans.size(), plain.spans.size());
    for (std::size_t dim = 0; dim < plain.spans.size(); ++dim) {
      EXPECT_EQ(result.spans[dim].distinct, plain.spans[dim].distinct);
    }
  }
}

}  // namespace cgdebug::numerics
