#include "libprobe/capture/buffer_pool.h"

#include <cuda_runtime_api.h>

#include "libprobe/capture/cuda_check.h"

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
  return buffers.bytes * (buffers.staging != nullptr ? 2 : 1);
}

}  // namespace

BufferPool& BufferPool::Instance() {
  static auto* pool = new BufferPool;
  return *pool;
}

Buffers BufferPool::Take(std::uint64_t bytes, int device, bool with_staging) {
  const Key key = {SizeClass(bytes), device, with_staging};
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
  buffers.bytes = key.bytes;
  buffers.device = device;
  try {
    if (with_staging) CGD_CUDA(cudaMalloc(&buffers.staging, buffers.bytes));
    CGD_CUDA(cudaHostAlloc(&buffers.pinned, buffers.bytes, cudaHostAllocPortable));
  } catch (...) {
    FreeNow(buffers);
    throw;
  }
  return buffers;
}

void BufferPool::Give(const Buffers& buffers) noexcept {
  if (buffers.pinned == nullptr) return;
  const std::lock_guard lock(mutex_);
  idle_[{buffers.bytes, buffers.device, buffers.staging != nullptr}].push_back(buffers);
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

std::uint64_t BufferPool::idle_bytes() const {
  const std::lock_guard lock(mutex_);
  return idle_bytes_;
}

}  // namespace cgdebug::capture
