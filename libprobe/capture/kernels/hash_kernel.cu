// The content hash of a tensor, with many blocks, on the branch of the leaves. The leaf behind it
// decides by it whether to send the tensor.
#include "libprobe/capture/kernels/content_hash.h"
#include "libprobe/capture/kernels/direct_kernels.h"
#include "libprobe/capture/kernels/direct_leaf.cuh"

namespace cgdebug::capture {
namespace {

__device__ void AddVector(const uint4& v, std::uint64_t index, ContentHash* hash) {
  hash->Add(std::uint64_t{v.y} << 32 | v.x, 2 * index);
  hash->Add(std::uint64_t{v.w} << 32 | v.z, 2 * index + 1);
}

__global__ void __launch_bounds__(kHashThreads) Hash(HashArgs args) {
  // Decided by the replay before this one.
  if (args.state->next.skip == 0) {
    const auto* source = reinterpret_cast<const uint4*>(args.from);
    const std::uint64_t whole = args.bytes / 16;
    const std::uint64_t start = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
    ContentHash mine;
#pragma unroll 4
    for (std::uint64_t i = start; i < whole; i += stride) AddVector(source[i], i, &mine);
    const int rest = static_cast<int>(args.bytes % 16);
    if (rest != 0 && start == 0) AddVector(KeepFirst(source[whole], rest), whole, &mine);
    const std::uint64_t low = SumInBlock(mine.low);
    __syncthreads();  // SumInBlock's sum is used again
    const std::uint64_t high = SumInBlock(mine.high);
    if (threadIdx.x == 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(&args.state->unchanged.content.low),
                static_cast<unsigned long long>(low));
      atomicAdd(reinterpret_cast<unsigned long long*>(&args.state->unchanged.content.high),
                static_cast<unsigned long long>(high));
    }
  }
  EndBlock();
}

}  // namespace

const void* HashKernel() { return reinterpret_cast<const void*>(&Hash); }

}  // namespace cgdebug::capture
