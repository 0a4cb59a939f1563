// dtype.h: element types of a tensor, as they stand in a ring, on the wire and on disk.
//
// The values are cgdebug's own and never change meaning: torch's ScalarType codes may be
// renumbered, a recording may not. New types are appended; a number is never used again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cgdebug::layout {

enum class Dtype : std::uint16_t {
  kInvalid = 0,
  kBool = 1,  // one byte per element, 0 or 1
  kUint8 = 2,
  kInt8 = 3,
  kInt16 = 4,
  kInt32 = 5,
  kInt64 = 6,
  kFloat16 = 7,
  kBfloat16 = 8,
  kFloat32 = 9,
  kFloat64 = 10,
  kFloat8E4m3fn = 11,  // no infinity: NaN is 0x7f or 0xff, the greatest value 448
  kFloat8E5m2 = 12,
};

struct DtypeInfo {
  Dtype dtype;
  std::string_view name;        // torch's name without "torch."
  std::string_view short_name;  // for output on one line
  std::size_t bytes;            // of one element
  bool is_floating;
  double max_finite;             // 0 for types that are not floating-point
  std::string_view safetensors;  // what that format calls it
  std::string_view npy;          // and NumPy's, of the bits where NumPy has no such type
};

inline constexpr std::array<DtypeInfo, 12> kDtypes = {{
    {Dtype::kBool, "bool", "b8", 1, false, 0, "BOOL", "|b1"},
    {Dtype::kUint8, "uint8", "u8", 1, false, 0, "U8", "|u1"},
    {Dtype::kInt8, "int8", "i8", 1, false, 0, "I8", "|i1"},
    {Dtype::kInt16, "int16", "i16", 2, false, 0, "I16", "<i2"},
    {Dtype::kInt32, "int32", "i32", 4, false, 0, "I32", "<i4"},
    {Dtype::kInt64, "int64", "i64", 8, false, 0, "I64", "<i8"},
    {Dtype::kFloat16, "float16", "f16", 2, true, 65504.0, "F16", "<f2"},
    {Dtype::kBfloat16, "bfloat16", "bf16", 2, true, 3.3895313892515355e38, "BF16", "<u2"},
    {Dtype::kFloat32, "float32", "f32", 4, true, 3.4028234663852886e38, "F32", "<f4"},
    {Dtype::kFloat64, "float64", "f64", 8, true, 1.7976931348623157e308, "F64", "<f8"},
    {Dtype::kFloat8E4m3fn, "float8_e4m3fn", "f8e4m3", 1, true, 448.0, "F8_E4M3", "|u1"},
    {Dtype::kFloat8E5m2, "float8_e5m2", "f8e5m2", 1, true, 57344.0, "F8_E5M2", "|u1"},
}};

// The row of `dtype`, or nullptr for an unknown value (shared memory is not trusted).
constexpr const DtypeInfo* FindDtype(Dtype dtype) {
  for (const DtypeInfo& info : kDtypes) {
    if (info.dtype == dtype) return &info;
  }
  return nullptr;
}

constexpr const DtypeInfo* FindDtype(std::string_view name) {
  for (const DtypeInfo& info : kDtypes) {
    if (info.name == name || info.short_name == name) return &info;
  }
  return nullptr;
}

constexpr bool IsFloat8(Dtype dtype) {
  return dtype == Dtype::kFloat8E4m3fn || dtype == Dtype::kFloat8E5m2;
}

// 0 for an unknown dtype.
constexpr std::size_t DtypeBytes(Dtype dtype) {
  const DtypeInfo* info = FindDtype(dtype);
  return info == nullptr ? 0 : info->bytes;
}

constexpr std::string_view DtypeName(Dtype dtype) {
  const DtypeInfo* info = FindDtype(dtype);
  return info == nullptr ? std::string_view("unknown") : info->name;
}

// "bool, uint8, ...": what a message says can be probed.
inline std::string DtypeNames() {
  std::string names;
  for (const DtypeInfo& info : kDtypes) {
    names += (names.empty() ? "" : ", ") + std::string(info.name);
  }
  return names;
}

}  // namespace cgdebug::layout
