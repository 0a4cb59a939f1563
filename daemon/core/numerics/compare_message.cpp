#include "daemon/core/numerics/compare_message.h"

#include <fmt/format.h>

#include <bit>

#include "daemon/core/numerics/format.h"
#include "proto/layout/dtype.h"

namespace cgdebug::numerics {
namespace {

bool IsExact(const CompareOptions& options) { return options.rtol == 0 && options.atol == 0; }

std::string Heading(std::string_view what, const CompareOptions& options) {
  return fmt::format("{} are not {}!", what, IsExact(options) ? "equal" : "close");
}

std::string Allowed(double tolerance, const CompareOptions& options) {
  return IsExact(options) ? "" : fmt::format(" (up to {} allowed)", FormatRepr(tolerance));
}

std::string Share(const CompareResult& result) {
  return fmt::format(
      "Mismatched elements: {} / {} ({:.1f}%)", result.mismatched, result.compared,
      100.0 * static_cast<double>(result.mismatched) / static_cast<double>(result.compared));
}

std::string ElementText(layout::Dtype dtype, std::uint64_t bits) {
  const TensorView view = {
      dtype, {}, std::as_bytes(std::span(&bits, 1)).first(layout::DtypeBytes(dtype))};
  return FormatElement(view, 0);
}

std::string ElementAndBits(layout::Dtype dtype, std::uint64_t bits) {
  return fmt::format("{} (0x{:0{}x})", ElementText(dtype, bits), bits,
                     2 * layout::DtypeBytes(dtype));
}

}  // namespace

MismatchText TextOfMismatch(layout::Dtype dtype, std::span<const std::uint64_t> shape,
                            const ElementPair& first, const CompareOptions& options,
                            const CompareResult& result, std::string_view greatest_abs) {
  if (options.bitwise) {
    return {"Tensor-likes are not bitwise equal!",
            fmt::format("{}\nThe first mismatched element is at index {}: {}, expected {}"
                        "\nGreatest absolute difference: {} at index {}",
                        Share(result), FormatIndexTuple(result.first_mismatch, shape),
                        ElementAndBits(dtype, first.actual), ElementAndBits(dtype, first.expected),
                        greatest_abs, FormatIndexTuple(result.max_abs.index, shape))};
  }
  if (shape.empty()) {
    return {Heading("Scalars", options),
            fmt::format("Expected {} but got {}."
                        "\nAbsolute difference: {}{}\nRelative difference: {}{}",
                        ElementText(dtype, first.expected), ElementText(dtype, first.actual),
                        greatest_abs, Allowed(options.atol, options),
                        FormatRepr(result.max_rel.value), Allowed(options.rtol, options))};
  }
  return {
      Heading("Tensor-likes", options),
      fmt::format("{}\nGreatest absolute difference: {} at index {}{}"
                  "\nGreatest relative difference: {} at index {}{}",
                  Share(result), greatest_abs, FormatIndexTuple(result.max_abs.index, shape),
                  Allowed(options.atol, options), FormatRepr(result.max_rel.value),
                  FormatIndexTuple(result.max_rel.index, shape), Allowed(options.rtol, options))};
}

std::string DifferenceText(layout::Dtype dtype, double difference) {
  const layout::DtypeInfo* info = layout::FindDtype(dtype);
  if (info != nullptr && info->is_floating) return FormatRepr(difference);
  return fmt::format("{}", static_cast<std::uint64_t>(difference));
}

Result<MismatchText> FailureText(layout::Dtype dtype, const std::vector<std::uint64_t>& shape,
                                 const CompareOptions& options,
                                 const layout::SlotFailure& failure) {
  if (layout::FindDtype(dtype) == nullptr) return Error{"a failure of an unknown dtype"};
  CompareResult result;
  result.ok = false;
  result.compared = 1;
  for (const std::uint64_t size : shape) result.compared *= size;
  result.mismatched = failure.mismatched;
  result.first_mismatch = failure.first;
  const auto max_abs = std::bit_cast<double>(failure.max_abs);
  result.max_abs = {max_abs, failure.max_abs_index, options.atol};
  result.max_rel = {std::bit_cast<double>(failure.max_rel), failure.max_rel_index, options.rtol};
  const std::string greatest = dtype == layout::Dtype::kInt64 ? fmt::format("{}", failure.max_abs)
                                                              : DifferenceText(dtype, max_abs);
  return TextOfMismatch(dtype, shape, {failure.actual, failure.expected}, options, result,
                        greatest);
}

}  // namespace cgdebug::numerics
