#include "client/cli/views/tensor/npy.h"

namespace cgdebug::cli {
namespace {

constexpr std::size_t kAlignBytes = 64;

std::string Descr(layout::Dtype dtype) {
  const layout::DtypeInfo* info = layout::FindDtype(dtype);
  return info == nullptr ? "|V1" : std::string(info->npy);
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
