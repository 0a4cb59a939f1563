#include "client/analysis/diff/pattern.h"

#include <fmt/format.h>

namespace cgdebug::analysis {
namespace {

using numerics::CompareResult;
using numerics::MismatchSpan;

std::string SpanText(const MismatchSpan& span, std::uint64_t size) {
  if (span.distinct == size) return ":";
  if (span.distinct == 1) return std::to_string(span.first);
  const std::string range = fmt::format("{}:{}", span.first, span.last + 1);
  const bool is_dense = span.distinct == span.last - span.first + 1;
  return is_dense ? range : fmt::format("{} of {}", span.distinct, range);
}

bool IsTail(const MismatchSpan& span, std::uint64_t size) {
  return span.distinct < size && span.last == size - 1 &&
         span.distinct == span.last - span.first + 1;
}

// What the values of A have in common where they mismatch.
std::string Hint(const CompareResult& result) {
  if (result.mismatched_zero == result.mismatched) {
    return "  -> A is 0 in each of them: never written?";
  }
  if (result.nan_in_actual == result.mismatched) return "  -> A is NaN in each of them";
  if (result.nan_in_expected == result.mismatched) return "  -> B is NaN in each of them";
  return "";
}

}  // namespace

std::string PatternText(const CompareResult& result, std::span<const std::uint64_t> shape) {
  if (result.ok || shape.empty()) return "";
  if (result.mismatched == result.compared) return "every element mismatches" + Hint(result);
  if (result.spans.size() != shape.size()) return "";
  std::string box, tails;
  std::uint64_t box_count = 1;
  bool is_whole = true;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    const MismatchSpan& span = result.spans[dim];
    if (dim > 0) box += ", ";
    box += SpanText(span, shape[dim]);
    box_count *= span.distinct;
    is_whole = is_whole && span.distinct == shape[dim];
    if (IsTail(span, shape[dim])) tails += fmt::format("{}{}", tails.empty() ? "" : " and ", dim);
  }
  if (is_whole) return "the mismatches are spread over every dimension" + Hint(result);
  std::string text = fmt::format("every mismatch lies in [{}]", box);
  text += box_count == result.mismatched
              ? ", all of it"
              : fmt::format(", {} of its {} elements", result.mismatched, box_count);
  if (const std::string hint = Hint(result); !hint.empty()) return text + hint;
  if (!tails.empty()) {
    text += fmt::format("  -> the end of dim {}: looks like padding or a stale last row", tails);
  }
  return text;
}

std::string UlpText(const CompareResult& result) {
  std::string text;
  bool is_equal = true;
  for (std::size_t bin = 0; bin < numerics::kUlpBins; ++bin) {
    if (result.ulp[bin] == 0) continue;
    is_equal = is_equal && bin == 0;
    const std::uint64_t end = numerics::UlpBinEnd(bin);
    const std::uint64_t begin = bin < 2 ? end : numerics::UlpBinEnd(bin - 1) + 1;
    if (!text.empty()) text += "  ";
    text += begin == end ? fmt::format("{}: {}", end, result.ulp[bin])
                         : fmt::format("{}-{}: {}", begin, end, result.ulp[bin]);
  }
  const auto add = [&](std::uint64_t count, const char* name) {
    if (count == 0) return;
    is_equal = false;
    text += fmt::format("{}NaN in {} only: {}", text.empty() ? "" : "  ", name, count);
  };
  add(result.nan_in_actual, "A");
  add(result.nan_in_expected, "B");
  return is_equal ? "" : text;
}

}  // namespace cgdebug::analysis
