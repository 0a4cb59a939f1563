#include "libprobe/apart/node_pointers.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "libprobe/capture/cuda_check.h"
#include "libprobe/capture/driver_function.h"
#include "libprobe/capture/graph/kernel_node.h"
#include "libprobe/capture/graph/node_kind.h"

namespace cgdebug::apart {
namespace {

using capture::DriverFunction;
using Words = std::vector<std::uint64_t>;

constexpr std::uint64_t kLeastAddress = 1 << 16;
constexpr std::uint64_t kMostAddress = std::uint64_t{1} << 57;

void AddWords(Words& words, const void* begin, std::size_t size) {
  for (std::size_t at = 0; at + sizeof(std::uint64_t) <= size; at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, static_cast<const std::byte*>(begin) + at, sizeof word);
    if (word >= kLeastAddress && word < kMostAddress) words.push_back(word);
  }
}

void AddPointer(Words& words, const void* pointer) { AddWords(words, &pointer, sizeof pointer); }

// False: CUDA does not tell.
bool AddArguments(Words& words, const CUDA_KERNEL_NODE_PARAMS& params) {
  using ParamOfFunction = CUresult (*)(CUfunction, std::size_t, std::size_t*, std::size_t*);
  using ParamOfKernel = CUresult (*)(CUkernel, std::size_t, std::size_t*, std::size_t*);
  static const auto of_function =
      reinterpret_cast<ParamOfFunction>(DriverFunction("cuFuncGetParamInfo", 12040));
  static const auto of_kernel =
      reinterpret_cast<ParamOfKernel>(DriverFunction("cuKernelGetParamInfo", 12040));
  if (params.blockDimX == 0) return false;
  if (params.kernelParams == nullptr) return params.extra == nullptr;
  for (std::size_t i = 0;; ++i) {
    std::size_t offset = 0;
    std::size_t size = 0;
    const CUresult status = params.func != nullptr ? of_function(params.func, i, &offset, &size)
                                                   : of_kernel(params.kern, i, &offset, &size);
    if (status == CUDA_ERROR_INVALID_VALUE) return true;  // there are no more
    if (status != CUDA_SUCCESS) return false;
    if (params.kernelParams[i] != nullptr) AddWords(words, params.kernelParams[i], size);
  }
}

std::vector<MemoryPointer> AllocatedOf(const Words& words) {
  using GetAttributes = CUresult (*)(unsigned, CUpointer_attribute*, void**, CUdeviceptr);
  static const auto attributes_of =
      reinterpret_cast<GetAttributes>(DriverFunction("cuPointerGetAttributes", 12000));
  std::vector<MemoryPointer> found;
  for (const std::uint64_t word : words) {
    unsigned kind = 0;
    CUdeviceptr begin = 0;
    std::size_t size = 0;
    std::array<CUpointer_attribute, 3> wanted = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                                 CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                                 CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    std::array<void*, 3> values = {&kind, &begin, &size};
    // Of what is no pointer it says nothing, and does not fail.
    const CUresult status = attributes_of(wanted.size(), wanted.data(), values.data(), word);
    if (status != CUDA_SUCCESS || kind == 0) continue;
    found.push_back({word, begin, begin + size, kind == CU_MEMORYTYPE_HOST});
  }
  return found;
}

}  // namespace

std::optional<std::vector<MemoryPointer>> PointersOf(void* handle) {
  using GetMemcpy = CUresult (*)(CUgraphNode, CUDA_MEMCPY3D*);
  static const auto get_memcpy =
      reinterpret_cast<GetMemcpy>(DriverFunction("cuGraphMemcpyNodeGetParams", 12000));
  auto* const node = static_cast<cudaGraphNode_t>(handle);
  Words words;
  const cudaGraphNodeType type = capture::TypeOf(node);
  if (!capture::MayTouchMemory(type)) return std::vector<MemoryPointer>();
  switch (type) {
    case cudaGraphNodeTypeKernel: {
      const std::optional<CUDA_KERNEL_NODE_PARAMS> kernel = capture::KernelOf(node);
      if (!kernel || !AddArguments(words, *kernel)) return std::nullopt;
      break;
    }
    case cudaGraphNodeTypeMemset: {
      cudaMemsetParams params = {};
      CGD_CUDA(cudaGraphMemsetNodeGetParams(node, &params));
      AddPointer(words, params.dst);
      break;
    }
    case cudaGraphNodeTypeMemcpy: {
      CUDA_MEMCPY3D params = {};
      if (get_memcpy(node, &params) != CUDA_SUCCESS) return std::nullopt;
      for (const std::uint64_t one : {params.srcDevice, params.dstDevice}) {
        AddWords(words, &one, sizeof one);
      }
      AddPointer(words, params.srcHost);
      AddPointer(words, params.dstHost);
      break;
    }
    default:
      return std::nullopt;
  }
  std::sort(words.begin(), words.end());
  words.erase(std::unique(words.begin(), words.end()), words.end());
  return AllocatedOf(words);
}

}  // namespace cgdebug::apart
