#include "libprobe/capture/buffer_pool.h"

#include <cuda_runtime_api.h>

#include <new>
#include <thread>

#include "libprobe/capture/cuda_check.h"
#include "libprobe/capture/device_guard.h"
#include "libprobe/capture/direct_kernels.h"

namespace cgdebug::capture {
namespace {

constexpr std::uint64_t kMaxIdleBytes = 256ull << 20;  // device and host together

// Rounds up to quarters of a power of two: reuse across similar shapes wastes at most a quarter.
std::uint64_t SizeClass(std::uint64_t bytes) {
  std::uint64_t step = 256;
  while (step * 8 < bytes) step *= 2;
  return layout::AlignUp(bytes == 0 ? 1 : bytes, step);
}

std::uint64_t Held(const Buffers& buffers) {
  return buffers.bytes * (buffers.kind == Buffers::Kind::kCallback ? 2 : 1);
}

}  // namespace

BufferPool& BufferPool::Instance() {
  static auto* pool = new BufferPool;
  return *pool;
}

void BufferPool::SetFallback(const DeviceAllocator& allocator) {
  const std::lock_guard lock(mutex_);
  fallback_ = allocator;
}

void BufferPool::FreeNow(const Buffers& buffers) const noexcept {
  try {
    const DeviceGuard guard(buffers.device);
    if (buffers.staging != nullptr) {
      if (buffers.from_fallback) {
        fallback_.free(buffers.staging);
      } else {
        (void)cudaFree(buffers.staging);
      }
    }
    if (buffers.pinned != nullptr) (void)cudaFreeHost(buffers.pinned);
  } catch (const ProbeError&) {  // the device is gone, and its memory with it
  }
}

// Frees what is kept for reuse before asking the job for memory. Requires: `mutex_` is free.
void BufferPool::AllocateStaging(std::uint64_t bytes, Buffers* buffers) {
  cudaError_t status = cudaMalloc(&buffers->staging, bytes);
  if (status != cudaErrorMemoryAllocation) return CheckCuda(status, "cudaMalloc");
  (void)cudaGetLastError();
  DeviceAllocator fallback;
  {
    const std::lock_guard lock(mutex_);
    Trim();
    fallback = fallback_;
  }
  status = cudaMalloc(&buffers->staging, bytes);
  if (status == cudaErrorMemoryAllocation && fallback.allocate != nullptr) {
    (void)cudaGetLastError();
    // In its own thread: while this thread captures, an allocator may serve it from the graph's
    // memory, which is used again at each replay.
    std::thread([&] {
      try {
        const DeviceGuard guard(buffers->device);
        const RelaxedCapture relaxed;
        buffers->staging = fallback.allocate(bytes, buffers->device);
      } catch (const ProbeError&) {
        buffers->staging = nullptr;
      }
    }).join();
    buffers->from_fallback = buffers->staging != nullptr;
    if (buffers->from_fallback) return;
  }
  CheckCuda(status, "cudaMalloc");
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
      AllocateStaging(buffers.bytes + sizeof(DirectState), &buffers);
      buffers.state =
          reinterpret_cast<DirectState*>(static_cast<std::byte*>(buffers.staging) + buffers.bytes);
      return buffers;
    }
    if (kind == Buffers::Kind::kCallback) AllocateStaging(buffers.bytes, &buffers);
    CGD_CUDA(cudaHostAlloc(&buffers.pinned, buffers.bytes, cudaHostAllocPortable));
  } catch (...) {
    FreeNow(buffers);
    throw;
  }
  return buffers;
}

void BufferPool::Give(const Buffers& buffers) noexcept {
  const std::lock_guard lock(mutex_);
  idle_bytes_ += Held(buffers);
  try {
    idle_[{buffers.bytes, buffers.device, buffers.kind}].push_back(buffers);
  } catch (const std::bad_alloc&) {
    // Lost until the process ends: freeing it here could wait for another thread's capture.
    idle_bytes_ -= Held(buffers);
  }
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
