// format.h: tensors as text, the same words in the job's terminal, the command line and Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "daemon/core/numerics/stats.h"
#include "daemon/core/numerics/tensor_view.h"

namespace cgdebug::numerics {

struct LineOptions {
  bool colour = false;         // ANSI: red for NaN and Inf, yellow for near overflow
  std::size_t type_width = 0;  // pads "f16[8,512]" so that lines of one list align
  std::string_view part = {};  // as FormatTensorType()
};

// The one line of a tensor:
//   f16[8,512,4096]  n=16.8M x∈[-41.2 |▁▂▅█▅▂▁▁| 39.8] μ=0.002 σ=1.31
//   f16[8,512]  n=4096 x∈[-0.17 |█▃     ▁| 3.8e+04] μ=1.9 σ=88 NEAR-OVERFLOW 58% of max
//   f16[8,512]  n=4096 3 +Inf! 0 NaN  first at [2, 17]  rest∈[-0.17, 3.8e+04] μ=1.9 σ=88
//   f32[]  = 3.25          f32[64]  n=64 all zeros          b8[8]  n=8 3 true (37.5%)
// An empty place in the histogram is an empty bin; a histogram of zeros only (there was no payload
// to make it from) is left out. `stats` need not come from ComputeStats: it may have crossed a
// wire.
std::string FormatTensorLine(layout::Dtype dtype, std::span<const std::uint64_t> shape,
                             const Stats& stats, const LineOptions& options = {});

// "f16[8,512,4096]", or of a part of a tensor (recording::Slot::part) "f16[8,512] part rows:0:8 of
// [64,512]".
std::string FormatTensorType(layout::Dtype dtype, std::span<const std::uint64_t> shape,
                             std::string_view part = {});
// The line without the type.
std::string FormatStats(layout::Dtype dtype, std::span<const std::uint64_t> shape,
                        const Stats& stats, bool colour = false);

// The values in nested brackets: "[[1, 2, ..., 9], ..., [7, 8, ..., 0]]", at most `max_items` of
// them, from the edges of each dimension, the last dimension favoured. `precision` is significant
// digits of floating types, 0 for as many as the value needs; integers are exact.
// The text has at most about 32 bytes per item, and 16 per dimension of each item.
std::string FormatValues(const TensorView& view, std::size_t max_items, int precision = 4);

// One element, exactly: "1.0", "0.1", "-3", "True", "nan". Requires: i < view.count().
std::string FormatElement(const TensorView& view, std::uint64_t i);

// With `digits` significant digits; "nan" and "0" without a sign.
std::string FormatNumber(double value, int digits);

// As Python's repr: the shortest text that reads back as the same double; "1.0", "1e-05", "inf".
std::string FormatRepr(double value);

// "9999", "45.1M"; "512 B", "84 MiB", "1.5 GiB".
std::string FormatCount(std::uint64_t count);
std::string FormatBytes(std::uint64_t bytes);

// "[8,512,4096]", "[]" for a scalar.
std::string FormatShape(std::span<const std::uint64_t> shape);
// Where a flat index lies: "[2, 17, 903]", or as torch prints it: "(2, 17, 903)", "(3,)", "()".
std::string FormatIndex(std::uint64_t flat, std::span<const std::uint64_t> shape);
std::string FormatIndexTuple(std::uint64_t flat, std::span<const std::uint64_t> shape);

}  // namespace cgdebug::numerics
