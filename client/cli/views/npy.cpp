#include "client/cli/views/npy.h"

namespace cgdebug::cli {
namespace {

constexpr std::size_t kAlignBytes = 64;

const char* Descr(layout::Dtype dtype) {
  using layout::Dtype;
  switch (dtype) {
    case Dtype::kBool:
      return "|b1";
    case Dtype::kUint8:
      return "|u1";
    case Dtype::kInt8:
      return "|i1";
    case Dtype::kInt16:
      return "<i2";
    case Dtype::kInt32:
      return "<i4";
    case Dtype::kInt64:
      return "<i8";
    case Dtype::kFloat16:
      return "<f2";
    case Dtype::kBfloat16:
      return "<u2";
    case Dtype::kFloat32:
      return "<f4";
    case Dtype::kFloat64:
      return "<f8";
    case Dtype::kFloat8E4m3fn:
    case Dtype::kFloat8E5m2:
      return "|u1";
    case Dtype::kInvalid:
      break;
  }
  return "|V1";
}

}  // namespace

std::string NpyHeader(layout::Dtype dtype, std::span<const std::uint64_t> shape) {
  std::string sizes;
  for (const std::uint64_t size : shape) sizes += std::to_string(size) + ", ";
  if (shape.size() > 1) sizes.resize(sizes.size() - 2);
  if (shape.size() == 1) sizes.resize(sizes.size() - 1);
  std::string dictionary = std::string("{'descr': '") + Descr(dtype) +
                           "', 'fortran_order': False, 'shape': (" + sizes + "), }";
  constexpr std::size_t kPreambleBytes = 10;
  const std::size_t used_bytes = kPreambleBytes + dictionary.size() + 1;
  dictionary.append((kAlignBytes - used_bytes % kAlignBytes) % kAlignBytes, ' ');
  dictionary += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(dictionary.size() & 0xff);
  header += static_cast<char>(dictionary.size() >> 8);
  return header + dictionary;
}

}  // namespace cgdebug::cli
