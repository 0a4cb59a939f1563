#include "daemon/core/numerics/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "daemon/core/numerics/compare_message.h"
#include "daemon/core/numerics/float4_values.h"
#include "daemon/core/numerics/format.h"
#include "daemon/core/numerics/kernels/compare_kernel.h"
#include "daemon/core/numerics/kernels/decode.h"
#include "daemon/core/numerics/kernels/ordered_key.h"
#include "daemon/core/numerics/mismatch_map.h"

namespace cgdebug::numerics {
namespace {

// int64 in its own type, everything else in double, which holds it exactly.
template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, std::int64_t>, std::int64_t, double>;

template <typename T>
Wide<T> Widen(T element) {
  return static_cast<Wide<T>>(ToNative(element));
}

double AbsDifference(double a, double b) { return std::fabs(a - b); }
std::uint64_t AbsDifference(std::int64_t a, std::int64_t b) {
  const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
  return a > b ? x - y : y - x;
}

double Magnitude(double value) { return std::fabs(value); }
double Magnitude(std::int64_t value) {
  return static_cast<double>(AbsDifference(value, std::int64_t{0}));
}

// No branches: this is the loop that every passing comparison runs. An infinite difference is never
// within the tolerance, not even if the expected value is infinite.
bool IsClose(double a, double b, double rtol, double atol) {
  constexpr double kMax = std::numeric_limits<double>::max();
  const double allowed = atol + rtol * std::fabs(b);
  const double bound = allowed <= kMax ? allowed : kMax;
  const double difference = a == b ? 0 : std::fabs(a - b);
  return difference <= bound;
}

bool IsClose(double a, double b, const CompareOptions& options) {
  return IsClose(a, b, options.rtol, options.atol) || (options.equal_nan && a != a && b != b);
}

// The difference is exact; what is allowed is a double, as for the other types, so that a GPU finds
// the same.
bool IsClose(std::int64_t a, std::int64_t b, const CompareOptions& options) {
  if (a == b) return true;
  const double allowed = options.atol + options.rtol * Magnitude(b);
  return allowed >= 0x1p64 || AbsDifference(a, b) <= static_cast<std::uint64_t>(allowed);
}

template <typename T>
bool Matches(T a, T b, const CompareOptions& options) {
  if (options.bitwise) return std::memcmp(&a, &b, sizeof(T)) == 0;
  return IsClose(Widen(a), Widen(b), options);
}

// Compares integers, which vectorizes in the width of the element.
template <typename T>
bool IsNan(T element) {
  if constexpr (kIsFloatingElement<T>) {
    return OrderedKey<T>::IsNan(OrderedKey<T>::FromElement(element));
  } else {
    return false;
  }
}

// Requires: neither is NaN.
template <typename T>
std::uint64_t UlpDistance(T a, T b) {
  const auto place = [](T element) -> std::int64_t {  // both zeros at 0, -x opposite to x
    const auto key = OrderedKey<T>::FromElement(element);
    return kIsFloatingElement<T> && key < 0 ? std::int64_t{key} + 1 : std::int64_t{key};
  };
  return AbsDifference(place(a), place(b));
}

// Whether every element of a block matches, in loops that vectorize. False may also mean that the
// block must be looked at closely.
template <typename T>
bool BlockMatches(const T* a, const T* b, std::size_t size, bool same_bits,
                  const CompareOptions& options) {
  if (same_bits) {  // then it matches unless there is a NaN in it
    typename OrderedKey<T>::Key nans = 0;
    for (std::size_t i = 0; i < size; ++i) nans = static_cast<decltype(nans)>(nans + IsNan(a[i]));
    return nans == 0;
  }
  if (options.bitwise || std::is_same_v<T, std::int64_t>) return false;
  const double rtol = options.rtol, atol = options.atol;
  double x[kCompareBlock], y[kCompareBlock];
  for (std::size_t i = 0; i < size; ++i) x[i] = ToDouble(a[i]);
  for (std::size_t i = 0; i < size; ++i) y[i] = ToDouble(b[i]);
  double matched = 0;  // not an integer: the compiler keeps one width through the loop
  for (std::size_t i = 0; i < size; ++i) matched += IsClose(x[i], y[i], rtol, atol) ? 1.0 : 0.0;
  return matched == static_cast<double>(size);
}

// The greatest of the values it is given, the first of equals; NaN is above all, as in torch.max.
template <typename Value>
struct Greatest {
  Value value{};
  std::uint64_t index = 0;
  bool any = false;

  bool Exceeds(Value candidate) const {
    return !any || candidate > value || (candidate != candidate && value == value);
  }
  void Add(Value candidate, std::uint64_t at) {
    if (Exceeds(candidate)) *this = {candidate, at, true};
  }
};

// torch computes the differences of float32 tensors, and the ratios of integers, in float32. Digits
// beyond that say nothing about the tensors.
double ToFloat32Precision(double difference) {
  const auto rounded = static_cast<float>(difference);
  const bool kept = std::isfinite(rounded) && (rounded != 0 || difference == 0);
  return kept ? static_cast<double>(rounded) : difference;
}

template <typename T>
class Comparison {
 public:
  Comparison(const TensorView& actual, const TensorView& expected, const CompareOptions& options)
      : actual_(actual),
        expected_(expected),
        options_(options),
        map_(actual.shape),
        kernels_(ChosenCompareKernels()) {}

  CompareResult Run() {
    result_.compared = actual_.count();
    for (std::uint64_t start = 0; start < result_.compared; start += kCompareBlock) RunBlock(start);
    if (result_.mismatched == 0) return std::move(result_);
    result_.ok = false;
    result_.spans = map_.Spans();
    result_.max_abs = {static_cast<double>(max_abs_.value), max_abs_.index, options_.atol};
    result_.max_rel = {max_rel_.value, max_rel_.index, options_.rtol};
    const auto at = result_.first_mismatch;
    result_.text =
        TextOfMismatch(actual_.dtype, actual_.shape, {BitsOf(actual_, at), BitsOf(expected_, at)},
                       options_, result_, AbsText());
    return std::move(result_);
  }

 private:
  using Abs = decltype(AbsDifference(Wide<T>{}, Wide<T>{}));

  void RunBlock(std::uint64_t start) {
    const auto size =
        static_cast<std::size_t>(std::min<std::uint64_t>(kCompareBlock, result_.compared - start));
    const std::byte* a_bytes = actual_.data.data() + start * sizeof(T);
    const std::byte* b_bytes = expected_.data.data() + start * sizeof(T);
    const bool same_bits = std::memcmp(a_bytes, b_bytes, size * sizeof(T)) == 0;
    if (same_bits) {
      result_.ulp[0] += size;
      if (options_.bitwise || options_.equal_nan || !kIsFloatingElement<T>) return;
      if (kernels_.has_nan && !kernels_.has_nan(actual_.dtype, a_bytes, size)) return;
    } else if (kernels_.compare) {
      BlockComparison block;
      block.max_rel_before = max_rel_.value;
      if (kernels_.compare(actual_.dtype, a_bytes, b_bytes, size, options_, &block)) {
        return AddBlock(start, block);
      }
    }
    T a[kCompareBlock], b[kCompareBlock];
    std::memcpy(a, a_bytes, size * sizeof(T));
    std::memcpy(b, b_bytes, size * sizeof(T));
    if (!same_bits) CountDistances(a, b, size);
    if (BlockMatches(a, b, size, same_bits, options_)) return;
    for (std::size_t i = 0; i < size; ++i) {
      if (Matches(a[i], b[i], options_)) continue;
      AddMismatch(start + i, Widen(a[i]), Widen(b[i]));
      AddDifference(start + i, Widen(a[i]), Widen(b[i]));
    }
  }

  void AddBlock(std::uint64_t start, const BlockComparison& block) {
    for (std::size_t bin = 0; bin < kUlpBins; ++bin) result_.ulp[bin] += block.ulp[bin];
    result_.nan_in_actual += block.nan_in_actual;
    result_.nan_in_expected += block.nan_in_expected;
    if (block.mismatched == 0) return;
    result_.mismatched_zero += block.mismatched_zero;
    result_.mismatched_greater += block.mismatched_greater;
    // Looks for the place of the greatest difference only if this block has a greater one.
    const bool greater =
        max_abs_.Exceeds(static_cast<Abs>(block.max_abs)) || max_rel_.Exceeds(block.max_rel);
    for (std::size_t word = 0; word < block.mismatch.size(); ++word) {
      std::uint64_t bits = block.mismatch[word];
      if (bits == 0) continue;
      const std::uint64_t first = start + 64 * word;
      if (result_.mismatched == 0) {
        result_.first_mismatch = first + static_cast<std::uint64_t>(std::countr_zero(bits));
      }
      result_.mismatched += static_cast<std::uint64_t>(std::popcount(bits));
      map_.AddWord(first, bits);
      for (; greater && bits != 0; bits &= bits - 1) {
        const std::uint64_t at = first + static_cast<std::uint64_t>(std::countr_zero(bits));
        const auto a = Widen(LoadElement<T>(actual_.data, at));
        const auto b = Widen(LoadElement<T>(expected_.data, at));
        if (MayBeGreatest(a, b)) AddDifference(at, a, b);
      }
    }
  }

  void CountDistances(const T* a, const T* b, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) {
      const bool a_is_nan = IsNan(a[i]), b_is_nan = IsNan(b[i]);
      result_.nan_in_actual += a_is_nan && !b_is_nan;
      result_.nan_in_expected += b_is_nan && !a_is_nan;
      if (a_is_nan == b_is_nan) ++result_.ulp[a_is_nan ? 0 : UlpBin(UlpDistance(a[i], b[i]))];
    }
  }

  void AddMismatch(std::uint64_t index, Wide<T> a, Wide<T> b) {
    if (result_.mismatched++ == 0) result_.first_mismatch = index;
    map_.Add(index);
    result_.mismatched_zero += a == 0;
    result_.mismatched_greater += a > b;
  }

  // Decides without a division for float32, which is safe: a quotient that does not exceed a float
  // does not exceed it after rounding either.
  bool MayBeGreatest(Wide<T> a, Wide<T> b) const {
    const double ratio = max_rel_.value;
    const bool is_float = static_cast<double>(static_cast<float>(ratio)) == ratio;
    if (!std::is_same_v<T, float> || !max_abs_.any || !is_float) return true;
    const double difference = ToFloat32Precision(static_cast<double>(AbsDifference(a, b)));
    return !(difference <= static_cast<double>(max_abs_.value) &&
             difference <= ratio * Magnitude(b));
  }

  void AddDifference(std::uint64_t index, Wide<T> a, Wide<T> b) {
    constexpr bool kFloat32 = std::is_same_v<T, float>;
    const bool is_scalar = actual_.shape.empty();
    Abs difference = AbsDifference(a, b);
    if constexpr (kFloat32) {
      if (!is_scalar) difference = ToFloat32Precision(difference);
    }
    double ratio = static_cast<double>(difference) / Magnitude(b);
    if ((kFloat32 || !kIsFloatingElement<T>)&&!is_scalar) ratio = ToFloat32Precision(ratio);
    max_abs_.Add(difference, index);
    max_rel_.Add(ratio, index);
  }

  static std::uint64_t BitsOf(const TensorView& view, std::uint64_t index) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, view.data.data() + index * sizeof(T), sizeof(T));
    return bits;
  }

  std::string AbsText() const {
    if constexpr (std::is_same_v<Abs, double>)
      return DifferenceText(actual_.dtype, max_abs_.value);
    else
      return fmt::format("{}", max_abs_.value);
  }

  const TensorView& actual_;
  const TensorView& expected_;
  const CompareOptions& options_;
  CompareResult result_;
  Greatest<Abs> max_abs_;
  Greatest<double> max_rel_;
  MismatchMap map_;
  const CompareKernels kernels_;
};

}  // namespace

CompareOptions DefaultTolerances(layout::Dtype dtype) {
  CompareOptions options{.rtol = 0, .atol = 0};
  if (dtype == layout::Dtype::kFloat16) options = {.rtol = 1e-3, .atol = 1e-5};
  if (dtype == layout::Dtype::kBfloat16) options = {.rtol = 1.6e-2, .atol = 1e-5};
  if (dtype == layout::Dtype::kFloat32) options = {.rtol = 1.3e-6, .atol = 1e-5};
  if (dtype == layout::Dtype::kFloat64) options = {.rtol = 1e-7, .atol = 1e-7};
  return options;
}

Result<CompareResult> Compare(const TensorView& actual, const TensorView& expected,
                              const CompareOptions& options) {
  const bool same_shape = std::equal(actual.shape.begin(), actual.shape.end(),
                                     expected.shape.begin(), expected.shape.end());
  if (actual.dtype != expected.dtype || !same_shape || actual.count() != expected.count()) {
    const auto name = [](const TensorView& view) {
      return fmt::format("{}{}", layout::DtypeName(view.dtype), FormatShape(view.shape));
    };
    return Error{fmt::format("cannot compare {} with the expected {}: the {} differs", name(actual),
                             name(expected), same_shape ? "dtype" : "shape")};
  }
  const auto is_tolerance = [](double value) { return value >= 0 && std::isfinite(value); };
  if (!is_tolerance(options.rtol) || !is_tolerance(options.atol)) {
    return Error{fmt::format("tolerances are finite and 0 or more: rtol is {}, atol is {}",
                             options.rtol, options.atol)};
  }
  if (layout::FindDtype(actual.dtype) == nullptr) return Error{"cannot compare an unknown dtype"};
  return VisitDtype(actual.dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    if constexpr (kHoldsTwo<T>) {
      const Float4Values a(actual), b(expected);
      const TensorView a_view = a.view(), b_view = b.view();
      CompareResult result = Comparison<Float8E4m3fn>(a_view, b_view, options).Run();
      result.spans.clear();  // they are of another shape
      return result;
    } else {
      return Comparison<T>(actual, expected, options).Run();
    }
  });
}

}  // namespace cgdebug::numerics
