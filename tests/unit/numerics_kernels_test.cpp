// Where the loops for a CPU's vectors have edges of their own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "daemon/numerics/cpu.h"
#include "daemon/numerics/stats.h"
#include "tests/unit/numerics_test_util.h"

namespace cgdebug::numerics {
namespace {

using layout::Dtype;

// On every CPU: `count` elements, `first` and `second` in turn, but one `odd` in the last whole
// vector.
template <typename T>
void ExpectExactSums(Dtype dtype, T first, T second, T odd) {
  constexpr std::size_t kCount = 1'100'003;
  std::vector<T> values(kCount, first);
  for (std::size_t i = 1; i < kCount; i += 2) values[i] = second;
  values[kCount - 5] = odd;
  long double sum = 0, absolute = 0, squared = 0, around = 0;
  for (const T value : values) {
    sum += value;
    absolute += std::fabs(static_cast<long double>(value));
    squared += static_cast<long double>(value) * value;
  }
  const long double mean = sum / kCount;
  for (const T value : values) around += (value - mean) * (value - mean);
  const TestTensor tensor = Vector(dtype, values);
  for (const Cpu cpu : AvailableCpus()) {
    const WithCpu chosen(cpu);
    const Stats stats = ComputeStats(tensor.view());
    SCOPED_TRACE(testing::Message() << "cpu " << static_cast<int>(cpu));
    EXPECT_EQ(stats.min, std::min({first, second, odd}));
    EXPECT_EQ(stats.max, std::max({first, second, odd}));
    EXPECT_EQ(stats.zero, static_cast<std::uint64_t>(std::count(values.begin(), values.end(), 0)));
    EXPECT_NEAR(stats.mean, static_cast<double>(mean), 1e-13 * stats.abs_max);
    EXPECT_NEAR(stats.std, static_cast<double>(std::sqrt(around / kCount)), 1e-13 * stats.abs_max);
    EXPECT_NEAR(stats.l1, static_cast<double>(absolute), 1e-13 * stats.l1);
    EXPECT_NEAR(stats.l2, static_cast<double>(std::sqrt(squared)), 1e-13 * stats.l2);
  }
}

TEST(StatsKernel, LongRunsOfTheEndsOfIntegersAreExact) {
  ExpectExactSums<std::int8_t>(Dtype::kInt8, -128, -128, 127);
  ExpectExactSums<std::int8_t>(Dtype::kInt8, -128, 127, 0);
  ExpectExactSums<std::uint8_t>(Dtype::kUint8, 255, 255, 0);
  ExpectExactSums<std::uint8_t>(Dtype::kUint8, 0, 255, 254);
  ExpectExactSums<std::int16_t>(Dtype::kInt16, -32768, -32768, 32767);
  ExpectExactSums<std::int16_t>(Dtype::kInt16, 32767, 32767, -32768);
  ExpectExactSums<std::int16_t>(Dtype::kInt16, -32768, 32767, 0);
  constexpr std::int32_t kMin = std::numeric_limits<std::int32_t>::min();
  constexpr std::int32_t kNarrow = (1 << 26) - 1;  // beyond it kernels go over to doubles
  ExpectExactSums<std::int32_t>(Dtype::kInt32, kNarrow, kNarrow, -kNarrow);
  ExpectExactSums<std::int32_t>(Dtype::kInt32, -kNarrow, kNarrow, kNarrow + 1);
  ExpectExactSums<std::int32_t>(Dtype::kInt32, -kNarrow, -kNarrow, kMin);
  ExpectExactSums<std::int32_t>(Dtype::kInt32, kMin, ~kMin, 0);
}

TEST(StatsKernel, EveryByteButZeroIsTrueOnEveryCpu) {
  std::vector<std::uint8_t> bytes(70'001);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i % 256);
  for (const Cpu cpu : AvailableCpus()) {
    const WithCpu chosen(cpu);
    const Stats stats = ComputeStats(Vector(Dtype::kBool, bytes).view());
    EXPECT_EQ(stats.zero, 274u);
    EXPECT_EQ(stats.hash, 1u);
    EXPECT_EQ(stats.l1, 69'727);
    EXPECT_EQ(stats.max, 1);
    const Stats all =
        ComputeStats(Vector(Dtype::kBool, std::vector<std::uint8_t>(512, 128)).view());
    EXPECT_EQ(all.min, 1);
    EXPECT_EQ(all.std, 0);
    EXPECT_EQ(all.hash, 0u);
    const Stats none = ComputeStats(Vector(Dtype::kBool, std::vector<std::uint8_t>(512, 0)).view());
    EXPECT_EQ(none.max, 0);
    EXPECT_EQ(none.zero, 512u);
  }
}

}  // namespace
}  // namespace cgdebug::numerics
