#include "libprobe/capture/buffer_pool.h"

#include <cuda_runtime_api.h>

#include "libprobe/capture/cuda_check.h"
#include "libprobe/capture/direct_kernels.h"

namespace cgdebug::capture {
namespace {

constexpr std::uint64_t kMaxIdleBytes = 256ull << 20;  // device and host together

// A quarter of a power of two: reuse across similar shapes wastes at most a quarter.
std::uint64_t SizeClass(std::uint64_t bytes) {
  std::uint64_t step = 256;
  while (step * 8 < bytes) step *= 2;
  return layout::AlignUp(bytes == 0 ? 1 : bytes, step);
}

void FreeNow(const Buffers& buffers) noexcept {
  if (buffers.staging != nullptr) (void)cudaFree(buffers.staging);
  if (buffers.pinned != nullptr) (void)cudaFreeHost(buffers.pinned);
}

std::uint64_t Held(const Buffers& buffers) {
  return buffers.bytes * (buffers.kind == Buffers::Kind::kCallback ? 2 : 1);
}

}  // namespace

BufferPool& BufferPool::Instance() {
  static auto* pool = new BufferPool;
  return *pool;
}

Buffers BufferPool::Take(std::uint64_t bytes, int device, Buffers::Kind kind) {
  const Key key = {SizeClass(bytes), device, kind};
  {
    const std::lock_guard lock(mutex_);
    auto found = idle_.find(key);
    if (found != idle_.end() && !found->second.empty()) {
      const Buffers buffers = found->second.back();
      found->second.pop_back();
      idle_bytes_ -= Held(buffers);
      return buffers;
    }
  }
  Buffers buffers;
  buffers.kind = kind;
  buffers.bytes = key.bytes;
  buffers.device = device;
  try {
    if (kind == Buffers::Kind::kDirect) {
      CGD_CUDA(cudaMalloc(&buffers.staging, buffers.bytes + sizeof(DirectState)));
      buffers.state =
          reinterpret_cast<DirectState*>(static_cast<std::byte*>(buffers.staging) + buffers.bytes);
      return buffers;
    }
    if (kind == Buffers::Kind::kCallback) CGD_CUDA(cudaMalloc(&buffers.staging, buffers.bytes));
    CGD_CUDA(cudaHostAlloc(&buffers.pinned, buffers.bytes, cudaHostAllocPortable));
  } catch (...) {
    FreeNow(buffers);
    throw;
  }
  return buffers;
}

void BufferPool::Give(const Buffers& buffers) noexcept {
  if (buffers.kind == Buffers::Kind::kNone) return;
  const std::lock_guard lock(mutex_);
  idle_[{buffers.bytes, buffers.device, buffers.kind}].push_back(buffers);
  idle_bytes_ += Held(buffers);
  if (idle_bytes_ > kMaxIdleBytes) Trim();
}

void BufferPool::Trim() noexcept {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  if (cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess) return;
  for (auto& [key, list] : idle_) {
    for (const Buffers& buffers : list) FreeNow(buffers);
    list.clear();
  }
  idle_bytes_ = 0;
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
}

}  // namespace cgdebug::capture
