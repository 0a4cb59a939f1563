#include "daemon/core/numerics/compare_message.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>

#include "daemon/core/numerics/format.h"
#include "proto/layout/dtype.h"

namespace cgdebug::numerics {
namespace {

bool IsExact(const CompareOptions& options) { return options.rtol == 0 && options.atol == 0; }

std::string Heading(std::string_view what, const CompareOptions& options) {
  return fmt::format("{} are not {}!\n\n", what, IsExact(options) ? "equal" : "close");
}

std::string Allowed(double tolerance, const CompareOptions& options) {
  return IsExact(options) ? "" : fmt::format(" (up to {} allowed)", FormatRepr(tolerance));
}

std::string Share(const CompareResult& result) {
  return fmt::format(
      "Mismatched elements: {} / {} ({:.1f}%)", result.mismatched, result.compared,
      100.0 * static_cast<double>(result.mismatched) / static_cast<double>(result.compared));
}

std::string ElementAndBits(const TensorView& view, std::uint64_t index) {
  const std::size_t bytes = layout::DtypeBytes(view.dtype);
  std::uint64_t bits = 0;
  std::memcpy(&bits, view.data.data() + index * bytes, bytes);
  return fmt::format("{} (0x{:0{}x})", FormatElement(view, index), bits, 2 * bytes);
}

}  // namespace

std::string MismatchMessage(const TensorView& actual, const TensorView& expected,
                            const CompareOptions& options, const CompareResult& result,
                            std::string_view greatest_abs) {
  if (options.bitwise) {
    return fmt::format(
        "Tensor-likes are not bitwise equal!\n\n{}"
        "\nThe first mismatched element is at index {}: {}, expected {}"
        "\nGreatest absolute difference: {} at index {}",
        Share(result), FormatIndexTuple(result.first_mismatch, actual.shape),
        ElementAndBits(actual, result.first_mismatch),
        ElementAndBits(expected, result.first_mismatch), greatest_abs,
        FormatIndexTuple(result.max_abs.index, actual.shape));
  }
  if (actual.shape.empty()) {
    return fmt::format(
        "{}Expected {} but got {}."
        "\nAbsolute difference: {}{}\nRelative difference: {}{}",
        Heading("Scalars", options), FormatElement(expected, 0), FormatElement(actual, 0),
        greatest_abs, Allowed(options.atol, options), FormatRepr(result.max_rel.value),
        Allowed(options.rtol, options));
  }
  return fmt::format(
      "{}{}\nGreatest absolute difference: {} at index {}{}"
      "\nGreatest relative difference: {} at index {}{}",
      Heading("Tensor-likes", options), Share(result), greatest_abs,
      FormatIndexTuple(result.max_abs.index, actual.shape), Allowed(options.atol, options),
      FormatRepr(result.max_rel.value), FormatIndexTuple(result.max_rel.index, actual.shape),
      Allowed(options.rtol, options));
}

}  // namespace cgdebug::numerics
