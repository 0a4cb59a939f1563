#include "client/report/picture.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "client/report/columns.h"
#include "daemon/core/numerics/format.h"
#include "daemon/core/numerics/kernels/decode.h"

namespace cgdebug::report {
namespace {

using numerics::TensorView;

// How an image is made of a slice.
struct Grid {
  std::uint64_t height = 1, width = 1;        // elements
  std::uint64_t of_height = 1, of_width = 1;  // elements of a pixel
  std::size_t rows = 0, columns = 0;          // pixels
};

Grid GridOf(std::span<const std::uint64_t> shape) {
  Grid grid;
  grid.width = shape.back();
  if (shape.size() > 1) grid.height = shape[shape.size() - 2];
  grid.of_height = (grid.height - 1) / kMostRows + 1;
  grid.of_width = (grid.width - 1) / kMostColumns + 1;
  grid.rows = static_cast<std::size_t>((grid.height - 1) / grid.of_height + 1);
  grid.columns = static_cast<std::size_t>((grid.width - 1) / grid.of_width + 1);
  return grid;
}

// NaN over Inf over numbers.
std::pair<bool, double> Severity(double value) {
  return {std::isnan(value), std::isnan(value) ? 0 : std::fabs(value)};
}

std::vector<double> Pool(const TensorView& view, const Grid& grid, std::uint64_t slice) {
  std::vector<double> pixels(grid.rows * grid.columns, 0);
  const std::uint64_t begin = slice * grid.height * grid.width;
  numerics::VisitDtype(view.dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    for (std::uint64_t row = 0; row < grid.height; ++row) {
      double* const line = pixels.data() + row / grid.of_height * grid.columns;
      for (std::uint64_t column = 0; column < grid.width; ++column) {
        const double value = numerics::ToDouble(
            numerics::LoadElement<T>(view.data, begin + row * grid.width + column));
        double& pixel = line[column / grid.of_width];
        if (Severity(value) > Severity(pixel)) pixel = value;
      }
    }
  });
  return pixels;
}

std::byte CodeOf(double value, double scale, double reach) {
  if (std::isnan(value)) return std::byte{0};
  if (std::isinf(value)) return std::byte{value > 0 ? std::uint8_t{1} : std::uint8_t{2}};
  const double share = reach > 0 ? std::asinh(value / scale) / reach : 0;
  return static_cast<std::byte>(129 + std::lround(126 * std::clamp(share, -1.0, 1.0)));
}

// "[3, 0, :, :]".
std::string SliceName(std::span<const std::uint64_t> leading, std::uint64_t slice,
                      std::size_t dimensions) {
  std::string name = numerics::FormatIndex(slice, leading);
  name.pop_back();
  if (!leading.empty()) name += ", ";
  return name + (dimensions - leading.size() == 1 ? ":]" : ":, :]");
}

}  // namespace

Json PictureJson(const TensorView& view, std::size_t most_slices,
                 std::optional<std::uint64_t> marked) {
  if (view.shape.empty() || view.count() == 0) return nullptr;
  const Grid grid = GridOf(view.shape);
  const std::uint64_t slice_count = view.count() / (grid.height * grid.width);
  std::vector<std::uint64_t> slices;
  if (marked) slices.push_back(*marked / (grid.height * grid.width));
  for (std::uint64_t slice = 0; slice < slice_count && slices.size() < most_slices; ++slice) {
    if (slices.empty() || slices.front() != slice) slices.push_back(slice);
  }
  std::ranges::sort(slices);

  std::vector<std::vector<double>> pooled;
  double largest = 0, sum = 0;
  std::size_t count = 0;
  for (const std::uint64_t slice : slices) {
    pooled.push_back(Pool(view, grid, slice));
    for (const double value : pooled.back()) {
      if (!std::isfinite(value)) continue;
      largest = std::max(largest, std::fabs(value));
      sum += std::fabs(value);
      ++count;
    }
  }
  // Halves the mean magnitude, so that small values keep their colours beside a spike.
  double scale = sum > 0 ? sum / static_cast<double>(count) / 2 : 1;
  if (!std::isfinite(scale) || !std::isfinite(largest / scale)) scale = largest;
  const double reach = std::asinh(largest / scale);
  const auto leading =
      view.shape.first(view.shape.size() - std::min<std::size_t>(2, view.shape.size()));
  Json images = Json::array();
  for (std::size_t i = 0; i < slices.size(); ++i) {
    std::vector<std::byte> codes;
    for (const double value : pooled[i]) codes.push_back(CodeOf(value, scale, reach));
    images.push_back(
        {{"name", SliceName(leading, slices[i], view.shape.size())}, {"u1", Base64(codes)}});
  }
  return {{"rows", grid.rows},           {"columns", grid.columns},
          {"height", grid.height},       {"width", grid.width},
          {"of_height", grid.of_height}, {"of_width", grid.of_width},
          {"slices", slice_count},       {"scale", scale},
          {"largest", largest},          {"images", std::move(images)}};
}

}  // namespace cgdebug::report
