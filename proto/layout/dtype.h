// dtype.h: element types of a tensor, as they stand in a ring, on the wire and on disk.
//
// One table of rows; the lists of dtypes in C++, in the kernels, in the torch op and in Python are
// made from it. The numbers are cgdebug's own and never change meaning: torch's ScalarType codes
// may be renumbered, a recording may not. New rows are appended; a number is never used again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cgdebug::layout {

// Calls X once per dtype with
//   the enumerator without its k, the number, torch's ScalarType, torch's name, the name for output
//   on one line, the type of the bits, whether it is floating-point, its largest finite and its
//   smallest normal number (0 unless it is floating-point), its name in safetensors and in NPY.
//
// The type of the bits is the type of an integer's values too. A bool is one byte, 0 or 1.
// float8_e4m3fn has no infinity: 0x7f and 0xff are its NaN. The types ending in fnuz have neither
// infinity nor -0: 0x80 is their NaN. float8_e8m0fnu is a power of two, 2^(bits - 127), without
// sign, zero and infinity: 0xff is its NaN. float4_e2m1fn_x2 has neither NaN nor infinity, and two
// values in an element: the first in the lower half of the byte. Shapes count its bytes, as torch's
// do; statistics and comparisons count the values. NPY gets the bits where NumPy has no such type.
// clang-format off
#define CGDEBUG_DTYPES(X)                                                                              \
  X(Bool, 1, Bool, "bool", "b8", std::uint8_t, false, 0, 0, "BOOL", "|b1")                             \
  X(Uint8, 2, Byte, "uint8", "u8", std::uint8_t, false, 0, 0, "U8", "|u1")                             \
  X(Int8, 3, Char, "int8", "i8", std::int8_t, false, 0, 0, "I8", "|i1")                                \
  X(Int16, 4, Short, "int16", "i16", std::int16_t, false, 0, 0, "I16", "<i2")                          \
  X(Int32, 5, Int, "int32", "i32", std::int32_t, false, 0, 0, "I32", "<i4")                            \
  X(Int64, 6, Long, "int64", "i64", std::int64_t, false, 0, 0, "I64", "<i8")                           \
  X(Float16, 7, Half, "float16", "f16", std::uint16_t, true, 65504.0, 0x1p-14, "F16", "<f2")           \
  X(Bfloat16, 8, BFloat16, "bfloat16", "bf16", std::uint16_t, true, 0x1.fep127, 0x1p-126, "BF16", "<u2") \
  X(Float32, 9, Float, "float32", "f32", std::uint32_t, true, 0x1.fffffep127, 0x1p-126, "F32", "<f4")  \
  X(Float64, 10, Double, "float64", "f64", std::uint64_t, true, 0x1.fffffffffffffp1023, 0x1p-1022,     \
    "F64", "<f8")                                                                                      \
  X(Float8E4m3fn, 11, Float8_e4m3fn, "float8_e4m3fn", "f8e4m3", std::uint8_t, true, 448.0, 0x1p-6,     \
    "F8_E4M3", "|u1")                                                                                  \
  X(Float8E5m2, 12, Float8_e5m2, "float8_e5m2", "f8e5m2", std::uint8_t, true, 57344.0, 0x1p-14,        \
    "F8_E5M2", "|u1")                                                                                  \
  X(Uint16, 13, UInt16, "uint16", "u16", std::uint16_t, false, 0, 0, "U16", "<u2")                     \
  X(Float8E4m3fnuz, 14, Float8_e4m3fnuz, "float8_e4m3fnuz", "f8e4m3fnuz", std::uint8_t, true, 240.0,   \
    0x1p-7, "F8_E4M3FNUZ", "|u1")                                                                      \
  X(Float8E5m2fnuz, 15, Float8_e5m2fnuz, "float8_e5m2fnuz", "f8e5m2fnuz", std::uint8_t, true, 57344.0, \
    0x1p-15, "F8_E5M2FNUZ", "|u1")                                                                     \
  X(Float8E8m0fnu, 16, Float8_e8m0fnu, "float8_e8m0fnu", "f8e8m0", std::uint8_t, true, 0x1p127,        \
    0x1p-127, "F8_E8M0", "|u1")                                                                        \
  X(Float4E2m1fnX2, 17, Float4_e2m1fn_x2, "float4_e2m1fn_x2", "f4e2m1x2", std::uint8_t, true, 6.0,     \
    1.0, "F4", "|u1")
// clang-format on

enum class Dtype : std::uint16_t {
  kInvalid = 0,
#define CGDEBUG_ENUMERATOR(name, number, ...) k##name = number,
  CGDEBUG_DTYPES(CGDEBUG_ENUMERATOR)
#undef CGDEBUG_ENUMERATOR
};

struct DtypeInfo {
  Dtype dtype;
  bool is_floating;
  std::string_view name;
  std::string_view short_name;
  std::size_t bytes;  // of one element
  double max_finite;
  double min_normal;
  std::string_view safetensors;
  std::string_view npy;

  // NumPy has no such type: an NPY file holds the bits of its elements, as unsigned integers.
  constexpr bool is_bits_in_npy() const { return is_floating && npy[1] != 'f'; }
};

inline constexpr DtypeInfo kDtypes[] = {
#define CGDEBUG_ROW(dtype, number, torch, name, short_name, bits, floating, max, least, st, npy) \
  {Dtype::k##dtype, floating, name, short_name, sizeof(bits), max, least, st, npy},
    CGDEBUG_DTYPES(CGDEBUG_ROW)
#undef CGDEBUG_ROW
};

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

// 0 for an unknown dtype.
constexpr std::size_t DtypeBytes(Dtype dtype) {
  const DtypeInfo* info = FindDtype(dtype);
  return info == nullptr ? 0 : info->bytes;
}

constexpr std::uint64_t ValuesPerElement(Dtype dtype) {
  return dtype == Dtype::kFloat4E2m1fnX2 ? 2 : 1;
}

// Types into which larger numbers are quantised: statistics count the elements of their largest
// magnitude. Of int8 that is 127, and -128, too.
constexpr bool CountsSaturated(Dtype dtype) {
  return dtype == Dtype::kInt8 || dtype == Dtype::kFloat8E4m3fn || dtype == Dtype::kFloat8E5m2 ||
         dtype == Dtype::kFloat8E4m3fnuz || dtype == Dtype::kFloat8E5m2fnuz ||
         dtype == Dtype::kFloat4E2m1fnX2;
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
