#include "daemon/core/numerics/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

#include "daemon/core/numerics/kernels/decode.h"

namespace cgdebug::numerics {
namespace {

constexpr std::string_view kRed = "\033[1;31m";
constexpr std::string_view kYellow = "\033[33m";
constexpr std::string_view kPlain = "\033[0m";
constexpr double kNearOverflow = 0.5;     // of the type's greatest finite value
constexpr double kManySubnormals = 0.1;   // of the elements
constexpr double kManySaturated = 0.05;   // likewise
constexpr double kExactInteger = 0x1p53;  // up to here a double is the integer itself

std::string Paint(std::string_view colour, const std::string& text, bool on) {
  return on ? fmt::format("{}{}{}", colour, text, kPlain) : text;
}

// Three digits, or as many as it takes to tell the two ends apart.
std::array<std::string, 2> FormatEnds(double min, double max, bool integral) {
  if (integral && std::fabs(min) < 1e6 && std::fabs(max) < 1e6) {
    return {fmt::format("{:.0f}", min), fmt::format("{:.0f}", max)};
  }
  constexpr int kMostDigits = 17;  // tell any two doubles apart, except two NaN
  int digits = 3;
  while (digits < kMostDigits && min != max &&
         FormatNumber(min, digits) == FormatNumber(max, digits)) {
    ++digits;
  }
  return {FormatNumber(min, digits), FormatNumber(max, digits)};
}

std::string Sparkline(const Stats& stats) {
  static constexpr std::string_view kBars[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const std::uint64_t tallest = *std::max_element(stats.histogram.begin(), stats.histogram.end());
  if (tallest == 0) return "";
  std::string line = "|";
  for (const std::uint64_t bin : stats.histogram) {
    const double height = 8.0 * static_cast<double>(bin) / static_cast<double>(tallest);
    line += kBars[bin == 0 ? 0 : std::clamp(std::lround(height), 1L, 8L)];
  }
  return line + "|";
}

std::string FormatOneValue(layout::Dtype dtype, double value, bool floating) {
  if (dtype == layout::Dtype::kBool) return value != 0 ? "True" : "False";
  if (!floating && std::fabs(value) < kExactInteger) return fmt::format("{:.0f}", value);
  return FormatNumber(value, 6);
}

std::string FormatNonfinite(const Stats& stats, std::span<const std::uint64_t> shape, bool colour) {
  std::string found, absent;
  const auto add = [&](std::uint64_t count, std::string_view name, bool name_when_absent) {
    if (count > 0) {
      found += fmt::format("{}{} {}!", found.empty() ? "" : " ", FormatCount(count), name);
    } else if (name_when_absent) {
      absent += fmt::format(" 0 {}", name);
    }
  };
  add(stats.nan, "NaN", true);
  add(stats.pos_inf, "+Inf", false);
  add(stats.neg_inf, "-Inf", false);
  if (stats.pos_inf + stats.neg_inf == 0) add(0, "Inf", true);
  if (stats.nan == stats.count) found = "all NaN!";
  std::string text = Paint(kRed, found, colour) + absent;
  if (stats.has_nonfinite && stats.count > 1 && stats.nan != stats.count) {
    text += "  first at " + FormatIndex(stats.first_nonfinite, shape);
  }
  return text;
}

std::string FormatWarnings(const layout::DtypeInfo& info, const Stats& stats, bool colour) {
  std::string text;
  if (stats.finite() == 0) return text;
  const double saturated = static_cast<double>(stats.saturated) / static_cast<double>(stats.count);
  if (stats.has_saturated && saturated >= kManySaturated) {
    text += " " + Paint(kYellow, fmt::format("SATURATED {:.0f}%", 100 * saturated), colour);
  }
  if (!info.is_floating) return text;
  // Every tensor has such values where there are but eight magnitudes.
  if (layout::ValuesPerElement(info.dtype) == 2) return text;
  const double part = stats.abs_max / info.max_finite;
  if (part >= kNearOverflow) {
    text +=
        " " +
        Paint(kYellow, fmt::format("NEAR-OVERFLOW {:.0f}% of max", std::floor(100 * part)), colour);
  }
  const double tiny = static_cast<double>(stats.subnormal) / static_cast<double>(stats.count);
  if (tiny >= kManySubnormals) {
    text += " " + Paint(kYellow, fmt::format("SUBNORMAL {:.0f}%", 100 * tiny), colour);
  }
  return text;
}

std::string FormatFinite(const layout::DtypeInfo& info, const Stats& stats) {
  if (info.dtype == layout::Dtype::kBool) {
    const std::uint64_t set = stats.count - stats.zero;
    return fmt::format("{} true ({:.3g}%)", FormatCount(set),
                       100.0 * static_cast<double>(set) / static_cast<double>(stats.count));
  }
  if (stats.zero == stats.count) return "all zeros";
  // int64 ends may be rounded to one double and still differ: the deviation tells.
  if (stats.min == stats.max && !(stats.std > 0)) {
    return "all = " + FormatOneValue(info.dtype, stats.min, info.is_floating);
  }
  const auto ends = FormatEnds(stats.min, stats.max, !info.is_floating);
  const std::string bars = Sparkline(stats);
  const std::string middle = bars.empty() ? ", " : " " + bars + " ";
  return fmt::format("x∈[{}{}{}] μ={} σ={}", ends[0], middle, ends[1], FormatNumber(stats.mean, 3),
                     FormatNumber(stats.std, 3));
}

std::string FormatRest(const layout::DtypeInfo& info, const Stats& stats) {
  if (stats.finite() == 0) return "";
  if (stats.min == stats.max) {
    return "  rest = " + FormatOneValue(info.dtype, stats.min, info.is_floating);
  }
  const auto ends = FormatEnds(stats.min, stats.max, !info.is_floating);
  return fmt::format("  rest∈[{}, {}] μ={} σ={}", ends[0], ends[1], FormatNumber(stats.mean, 3),
                     FormatNumber(stats.std, 3));
}

}  // namespace

std::string FormatTensorType(layout::Dtype dtype, std::span<const std::uint64_t> shape,
                             std::string_view part) {
  const layout::DtypeInfo* info = layout::FindDtype(dtype);
  return fmt::format("{}{}{}{}", info == nullptr ? "?" : info->short_name, FormatShape(shape),
                     part.empty() ? "" : " part ", part);
}

std::string FormatStats(layout::Dtype dtype, std::span<const std::uint64_t> shape,
                        const Stats& stats, bool colour) {
  const layout::DtypeInfo* info = layout::FindDtype(dtype);
  if (info == nullptr) return "unknown dtype";
  if (stats.count == 0) return "empty";
  if (stats.count == 1) {
    const double value = stats.nonfinite() == 0 ? stats.min : stats.first_nonfinite_value;
    const std::string text = "= " + FormatOneValue(dtype, value, info->is_floating);
    return Paint(kRed, text, colour && stats.nonfinite() > 0) +
           FormatWarnings(*info, stats, colour);
  }
  std::string text = "n=" + FormatCount(stats.count) + " ";
  if (stats.nonfinite() == 0) {
    text += FormatFinite(*info, stats);
  } else {
    text += FormatNonfinite(stats, shape, colour) + FormatRest(*info, stats);
  }
  return text + FormatWarnings(*info, stats, colour);
}

std::string FormatTensorLine(layout::Dtype dtype, std::span<const std::uint64_t> shape,
                             const Stats& stats, const LineOptions& options) {
  return fmt::format("{:<{}}  {}", FormatTensorType(dtype, shape, options.part), options.type_width,
                     FormatStats(dtype, shape, stats, options.colour));
}

std::string FormatNumber(double value, int digits) {
  if (std::isnan(value)) return "nan";  // whatever its sign
  return fmt::format("{:.{}g}", value == 0 ? 0.0 : value, digits);
}

std::string FormatRepr(double value) {
  if (std::isnan(value)) return "nan";  // whatever its sign
  std::string text = fmt::format("{}", value);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

namespace {

// `number` in the unit in which it is less than `step` after rounding, and that unit.
std::pair<double, char> Scaled(std::uint64_t number, double step) {
  constexpr std::string_view kUnits = "kMGTPE";
  double value = static_cast<double>(number) / step;
  std::size_t unit = 0;
  for (; value >= step - 0.5 && unit + 1 < kUnits.size(); ++unit) value /= step;
  return {value, kUnits[unit]};
}

}  // namespace

std::string FormatCount(std::uint64_t count) {
  if (count < 10000) return fmt::format("{}", count);
  const auto [value, unit] = Scaled(count, 1000);
  return fmt::format("{:.3g}{}", value, unit);
}

std::string FormatBytes(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  const auto [value, unit] = Scaled(bytes, 1024);
  const char upper = unit == 'k' ? 'K' : unit;
  return value >= 999.5 ? fmt::format("{:.0f} {}iB", value, upper)
                        : fmt::format("{:.3g} {}iB", value, upper);
}

std::string FormatShape(std::span<const std::uint64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ","));
}

namespace {

std::vector<std::uint64_t> Unravel(std::uint64_t flat, std::span<const std::uint64_t> shape) {
  std::vector<std::uint64_t> index(shape.size());
  for (std::size_t dim = shape.size(); dim-- > 0;) {
    if (shape[dim] == 0) continue;
    index[dim] = flat % shape[dim];
    flat /= shape[dim];
  }
  return index;
}

}  // namespace

std::string FormatIndex(std::uint64_t flat, std::span<const std::uint64_t> shape) {
  return fmt::format("[{}]", fmt::join(Unravel(flat, shape), ", "));
}

std::string FormatIndexTuple(std::uint64_t flat, std::span<const std::uint64_t> shape) {
  const std::vector<std::uint64_t> index = Unravel(flat, shape);
  return fmt::format("({}{})", fmt::join(index, ", "), index.size() == 1 ? "," : "");
}

}  // namespace cgdebug::numerics
