// stats.h: the statistics of a tensor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "daemon/core/numerics/tensor_view.h"
#include "proto/layout/field.h"

namespace cgdebug::numerics {

inline constexpr std::size_t kHistogramBins = 8;

// How well two machines agree about a statistic of the same values.
enum class Agreement : std::uint8_t {
  kExact,     // to the last bit
  kToAbsMax,  // within rounding, relative to the largest magnitude: means and deviations
  kToItself,  // within rounding, relative to itself: sums
};

// A statistic that is one number of a tensor.
struct StatField : layout::Field {
  constexpr StatField(std::uint32_t at, const char* called, const char* shown_as,
                      Agreement agrees = Agreement::kExact)
      : Field(at, called), label(shown_as), agreement(agrees) {}
  const char* label;  // in a report about one tensor; null: it is not shown there
  Agreement agreement;
};

// The fields from the minimum to the histogram cover the finite elements only.
struct Stats {
  std::uint64_t count = 0;
  std::uint64_t nan = 0;
  std::uint64_t pos_inf = 0;
  std::uint64_t neg_inf = 0;
  std::uint64_t zero = 0;       // both signs
  std::uint64_t subnormal = 0;  // of the tensor's own type
  // NaN when no element is finite; int64 beyond 2^53 is rounded to the nearest double.
  double min = std::numeric_limits<double>::quiet_NaN();
  double max = std::numeric_limits<double>::quiet_NaN();
  double mean = std::numeric_limits<double>::quiet_NaN();
  double std = std::numeric_limits<double>::quiet_NaN();  // population
  double abs_max = std::numeric_limits<double>::quiet_NaN();
  double l1 = 0;
  double l2 = 0;
  double rms = std::numeric_limits<double>::quiet_NaN();  // root mean square
  // As torch.hash_tensor on a CPU: XOR of the elements, each as a double or an int64; 0 without
  // elements. float8, for which torch has no hash, is hashed the same way. Not computed without
  // has_hash.
  bool has_hash = false;
  std::uint64_t hash = 0;
  // 32 bits that know positions (proto/layout/ordered_hash.h, which says what collides). Not
  // computed without has_ordered_hash: if `hash` was not, or by a cgdebug that had none.
  bool has_ordered_hash = false;
  std::uint64_t ordered_hash = 0;
  // How many elements have the largest magnitude of the tensor's own type (CountsSaturated()).
  bool has_saturated = false;
  std::uint64_t saturated = 0;
  bool has_nonfinite = false;
  std::uint64_t first_nonfinite = 0;  // flat index; with has_nonfinite
  double first_nonfinite_value = 0;
  // Equal bins over [min, max], each with its lower edge, the last with both. All in the first when
  // min == max.
  std::array<std::uint64_t, kHistogramBins> histogram{};

  // The statistics that are one number, in the order of tables: counts (std::uint64_t), then
  // measures (double). `visit` takes a StatField and a pointer to the member.
  template <typename Visitor>
  static constexpr void ForEachNumber(Visitor&& visit) {
    using enum Agreement;
    visit(StatField(1, "count", nullptr), &Stats::count);
    visit(StatField(2, "nan", "NaN"), &Stats::nan);
    visit(StatField(3, "pos_inf", "+Inf"), &Stats::pos_inf);
    visit(StatField(4, "neg_inf", "-Inf"), &Stats::neg_inf);
    visit(StatField(5, "zero", "zero"), &Stats::zero);
    visit(StatField(6, "subnormal", nullptr), &Stats::subnormal);
    visit(StatField(7, "min", "min"), &Stats::min);
    visit(StatField(8, "max", "max"), &Stats::max);
    visit(StatField(9, "mean", "mean", kToAbsMax), &Stats::mean);
    visit(StatField(10, "std", "std", kToAbsMax), &Stats::std);
    visit(StatField(11, "abs_max", "abs max"), &Stats::abs_max);
    visit(StatField(12, "l1", "L1", kToItself), &Stats::l1);
    visit(StatField(13, "l2", "L2", kToItself), &Stats::l2);
    visit(StatField(14, "rms", "RMS", kToItself), &Stats::rms);
  }

  // Every field. Numbers and names are those of `Stats` in proto/tensor.proto.
  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    using layout::Field;
    ForEachNumber([&](const StatField& field, auto member) { visit(field, self.*member); });
    visit(Field{16, "first_nonfinite"}, self.has_nonfinite, self.first_nonfinite);
    visit(Field{17, "first_nonfinite_value"}, self.first_nonfinite_value);
    visit(Field{18, "histogram"}, self.histogram);
    visit(Field{19, "xor_hash", layout::Encoding::kFixed}, self.has_hash, self.hash);
    visit(Field{20, "ordered_hash"}, self.has_ordered_hash, self.ordered_hash);
    visit(Field{21, "saturated"}, self.has_saturated, self.saturated);
  }

  std::uint64_t nonfinite() const { return nan + pos_inf + neg_inf; }
  std::uint64_t finite() const { return count - nonfinite(); }
};

// Everything except mean, std, l1, l2 and rms is exact. These run in double, block by block, around
// the mean so far, and are good to about 1e-13 of abs_max (mean, std) or of themselves (l1, l2,
// rms), whatever the mean and the range. For float16, bfloat16 and float8 they run in float for up
// to 16 additions and then in double, and are good to 2e-6. Thread: any. Requires: a view from
// MakeTensorView.
Stats ComputeStats(const TensorView& view);
// The same without the histogram, which takes a second pass over the elements.
Stats ComputeSums(const TensorView& view);

}  // namespace cgdebug::numerics
