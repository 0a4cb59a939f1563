#include "client/report/columns.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string_view>

namespace cgdebug::report {
namespace {

static_assert(std::endian::native == std::endian::little, "the page reads little-endian numbers");

std::size_t ColumnsFor(std::size_t columns, std::size_t factor) {
  return (columns + factor - 1) / factor;
}

bool IsHeldByFloat(double value, bool is_exact) {
  if (!std::isfinite(value)) return true;
  if (std::fabs(value) > std::numeric_limits<float>::max()) return false;
  const auto narrow = static_cast<double>(static_cast<float>(value));
  return narrow == value || (!is_exact && std::fabs(value) >= std::numeric_limits<float>::min());
}

template <typename T>
std::string Base64Of(const std::vector<T>& values) {
  return Base64(std::as_bytes(std::span(values)));
}

}  // namespace

std::string Base64(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t here = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t word = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      word = word << 8 | (j < here ? std::to_integer<std::uint32_t>(bytes[i + j]) : 0);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      text += j <= here ? kDigits[word >> (18 - 6 * j) & 63] : '=';
    }
  }
  return text;
}

Json SeriesJson(const std::vector<double>& values, bool is_exact) {
  const auto is_nan = [](double value) { return std::isnan(value); };
  if (std::ranges::all_of(values, is_nan)) return nullptr;
  if (!std::ranges::all_of(values, [&](double v) { return IsHeldByFloat(v, is_exact); })) {
    return {{"f8", Base64Of(values)}};
  }
  std::vector<float> narrow;
  narrow.reserve(values.size());
  for (const double value : values) narrow.push_back(static_cast<float>(value));
  return {{"f4", Base64Of(narrow)}};
}

Axis::Axis(std::uint64_t first, std::uint64_t last, std::uint64_t most_columns)
    : first_(first), last_(last) {
  if (first > last) return;
  // Not last - first + 1, which may be 2^64.
  per_column_ = (last - first) / most_columns + 1;
  columns_ = static_cast<std::size_t>((last - first) / per_column_ + 1);
}

std::size_t Axis::ColumnOf(std::uint64_t replay) const {
  const std::uint64_t inside = std::clamp(replay, first_, last_);
  return static_cast<std::size_t>((inside - first_) / per_column_);
}

Axis Axis::Merged(std::size_t factor) const {
  Axis merged = *this;
  merged.per_column_ *= factor;
  merged.columns_ = ColumnsFor(columns_, factor);
  return merged;
}

void Strip::Add(std::size_t column, const numerics::Stats& stats) {
  Column& to = columns_[column];
  to.is_there = true;
  to.min = std::fmin(to.min, stats.min);
  to.max = std::fmax(to.max, stats.max);
  to.std = std::fmax(to.std, stats.std);
  if (std::isfinite(stats.mean)) {
    to.mean_sum += stats.mean;
    ++to.means;
  }
  to.nan += stats.nan;
  to.inf += stats.pos_inf + stats.neg_inf;
}

void Strip::AddGap(std::size_t first, std::size_t last) {
  for (std::size_t i = first; i <= last && i < columns_.size(); ++i) columns_[i].has_gap = true;
}

Strip Strip::Merged(std::size_t factor) const {
  Strip merged(ColumnsFor(columns_.size(), factor));
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    const Column& from = columns_[i];
    Column& to = merged.columns_[i / factor];
    to.is_there |= from.is_there;
    to.has_gap |= from.has_gap;
    to.is_unread |= from.is_unread;
    to.min = std::fmin(to.min, from.min);
    to.max = std::fmax(to.max, from.max);
    to.std = std::fmax(to.std, from.std);
    to.mean_sum += from.mean_sum;
    to.means += from.means;
    to.nan += from.nan;
    to.inf += from.inf;
  }
  return merged;
}

Json Strip::ToJson() const {
  std::vector<std::uint8_t> state;
  std::vector<double> min, max, mean, std, nan, inf;
  for (const Column& column : columns_) {
    state.push_back(static_cast<std::uint8_t>((column.is_there ? 1 : 0) | (column.has_gap ? 2 : 0) |
                                              (column.is_unread ? 4 : 0)));
    min.push_back(column.min);
    max.push_back(column.max);
    mean.push_back(column.means > 0 ? column.mean_sum / static_cast<double>(column.means) : NAN);
    std.push_back(column.std);
    // Most columns have none, and a series without a number takes no room.
    nan.push_back(column.nan > 0 ? static_cast<double>(column.nan) : NAN);
    inf.push_back(column.inf > 0 ? static_cast<double>(column.inf) : NAN);
  }
  return {{"state", {{"u1", Base64Of(state)}}}, {"min", SeriesJson(min, false)},
          {"max", SeriesJson(max, false)},      {"mean", SeriesJson(mean, false)},
          {"std", SeriesJson(std, false)},      {"nan", SeriesJson(nan, true)},
          {"inf", SeriesJson(inf, true)}};
}

void DifferenceStrip::Add(std::size_t column, std::uint8_t state, std::optional<double> max_abs) {
  columns_[column].state |= state;
  if (max_abs) columns_[column].max_abs = std::fmax(columns_[column].max_abs, *max_abs);
}

DifferenceStrip DifferenceStrip::Merged(std::size_t factor) const {
  DifferenceStrip merged(ColumnsFor(columns_.size(), factor));
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    const double max_abs = columns_[i].max_abs;
    merged.Add(i / factor, columns_[i].state,
               std::isnan(max_abs) ? std::nullopt : std::optional(max_abs));
  }
  return merged;
}

Json DifferenceStrip::ToJson() const {
  std::vector<std::uint8_t> state;
  std::vector<double> max_abs;
  for (const Column& column : columns_) {
    state.push_back(column.state);
    max_abs.push_back(column.max_abs);
  }
  return {{"state", {{"u1", Base64Of(state)}}}, {"max_abs", SeriesJson(max_abs, false)}};
}

}  // namespace cgdebug::report
