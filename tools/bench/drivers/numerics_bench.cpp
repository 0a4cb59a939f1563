// The arithmetic of daemon/core/numerics behind C functions, for tools/bench/numerics.py and
// tests/python/probes/test_numerics_golden.py: on the same memory, in the same process as torch's.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "daemon/core/numerics/compare.h"
#include "daemon/core/numerics/kernels/cpu.h"
#include "daemon/core/numerics/kernels/stats_kernel.h"
#include "daemon/core/numerics/stats.h"
#include "daemon/core/numerics/tensor_view.h"

namespace {

using cgdebug::numerics::CompareOptions;
using cgdebug::numerics::CompareResult;
using cgdebug::numerics::Stats;
using cgdebug::numerics::TensorView;

// `shape` lives as long as the view.
TensorView View(const char* dtype, const void* data, const std::uint64_t* count) {
  const auto* info = cgdebug::layout::FindDtype(std::string_view(dtype));
  if (info == nullptr) return {};
  return {info->dtype,
          {count, 1},
          {static_cast<const std::byte*>(data), static_cast<std::size_t>(*count) * info->bytes}};
}

}  // namespace

extern "C" {

struct CgdStats {
  double min, max, mean, std, abs_max, l1, l2;
  std::uint64_t nan, pos_inf, neg_inf, zero, subnormal, first_nonfinite, hash;
  std::uint64_t histogram[cgdebug::numerics::kHistogramBins];
};

void CgdComputeStats(const char* dtype, const void* data, std::uint64_t count, CgdStats* out) {
  const Stats stats = ComputeStats(View(dtype, data, &count));
  *out = {stats.min,
          stats.max,
          stats.mean,
          stats.std,
          stats.abs_max,
          stats.l1,
          stats.l2,
          stats.nan,
          stats.pos_inf,
          stats.neg_inf,
          stats.zero,
          stats.subnormal,
          stats.has_nonfinite ? stats.first_nonfinite : ~std::uint64_t{0},
          stats.hash,
          {}};
  std::memcpy(out->histogram, stats.histogram.data(), sizeof(out->histogram));
}

// Computes everything except the histogram, which takes a second pass. Returns how many elements
// the kernel took.
std::uint64_t CgdSumsOnly(const char* dtype, const void* data, std::uint64_t count) {
  const TensorView view = View(dtype, data, &count);
  cgdebug::numerics::KernelSums sums;
  return cgdebug::numerics::ChosenSumKernel()(view.dtype, view.data.data(), view.count(), &sums);
}

struct CgdComparison {
  std::uint64_t mismatched, first, max_abs_index, max_rel_index;
  double max_abs, max_rel;
};

// 0, or -1 when the tensors cannot be compared.
int CgdCompare(const char* dtype, const void* actual, const void* expected, std::uint64_t count,
               double rtol, double atol, int equal_nan, CgdComparison* out) {
  CompareOptions options;
  options.rtol = rtol;
  options.atol = atol;
  options.equal_nan = equal_nan != 0;
  const auto result = Compare(View(dtype, actual, &count), View(dtype, expected, &count), options);
  if (!result.ok()) return -1;
  *out = {result->mismatched,    result->first_mismatch, result->max_abs.index,
          result->max_rel.index, result->max_abs.value,  result->max_rel.value};
  return 0;
}

// A plain sum of floats in as many lanes as keep the memory busy: what reading the bytes costs.
float CgdPlainSum(const float* data, std::uint64_t count) {
  std::array<float, 64> lanes{};
  for (std::uint64_t i = 0; i + lanes.size() <= count; i += lanes.size()) {
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) lanes[lane] += data[i + lane];
  }
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

int CgdCpu() { return static_cast<int>(cgdebug::numerics::ChosenCpu()); }

}  // extern "C"
