#include "libprobe/capture/memory/buffer_pool.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <new>
#include <string>
#include <thread>

#include "libprobe/capture/cuda_check.h"
#include "libprobe/capture/device_guard.h"
#include "libprobe/capture/kernels/direct_kernels.h"

namespace cgdebug::capture {
namespace {

constexpr std::uint64_t kMaxIdleBytes = 256ull << 20;  // device and host together

// What a slab reserves beyond what is needed now: as much as there is already, within these limits.
constexpr std::uint64_t kMinHeadroomBytes = 4ull << 20;
constexpr std::uint64_t kMaxHeadroomBytes = 64ull << 20;

constexpr std::size_t kRunsAtOnce = 4096;
constexpr std::size_t kStatesAtOnce = 256;
constexpr std::size_t kMostEagerStreams = 64;

// Rounds up to quarters of a power of two: reuse across similar shapes wastes at most a quarter.
std::uint64_t SizeClass(std::uint64_t bytes) {
  std::uint64_t step = 256;
  while (step * 8 < bytes) step *= 2;
  return layout::AlignUp(bytes == 0 ? 1 : bytes, step);
}

std::uint64_t Held(const Buffers& buffers) {
  return buffers.bytes * (buffers.kind == Buffers::Kind::kCallback ? 2 : 1);
}

// Of device memory. The state of a leaf lies behind what its slot asked for.
std::uint64_t StagingBytes(const Buffers& buffers) {
  return buffers.bytes + (buffers.kind == Buffers::Kind::kDirect ? sizeof(DirectState) : 0);
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

DeviceAllocator BufferPool::Fallback() {
  const std::lock_guard lock(mutex_);
  return fallback_;
}

void BufferPool::FreeNow(const Buffers& buffers, const DeviceAllocator& fallback) noexcept {
  try {
    const DeviceGuard guard(buffers.device);
    if (buffers.staging != nullptr) {
      device_bytes_.fetch_sub(StagingBytes(buffers));
      if (buffers.from_fallback) {
        fallback.free(buffers.staging);
      } else {
        (void)cudaFree(buffers.staging);
      }
    }
    if (buffers.pinned != nullptr) (void)cudaFreeHost(buffers.pinned);
  } catch (const ProbeError&) {  // the device is gone, and its memory with it
  }
}

// Frees what is kept for reuse before asking the job for memory. Requires: `mutex_` is free.
void BufferPool::AllocateStaging(Buffers* buffers) {
  AllocateUncounted(StagingBytes(*buffers), buffers);
  device_bytes_.fetch_add(StagingBytes(*buffers));
}

void BufferPool::AllocateUncounted(std::uint64_t bytes, Buffers* buffers) {
  cudaError_t status = cudaMalloc(&buffers->staging, bytes);
  if (status != cudaErrorMemoryAllocation) return CheckCuda(status, "cudaMalloc");
  (void)cudaGetLastError();
  FreeIdle(0);
  const DeviceAllocator fallback = Fallback();
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
  if (kind == Buffers::Kind::kEager) return TakeEager(key.bytes, device);
  if (kind == Buffers::Kind::kEagerStats) return TakeState(device);
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
  if (kind == Buffers::Kind::kDirect) {
    buffers.runs = TakeRuns();
    try {
      AllocateStaging(&buffers);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      runs_.push_back(buffers.runs);
      throw;
    }
    buffers.state =
        reinterpret_cast<DirectState*>(static_cast<std::byte*>(buffers.staging) + buffers.bytes);
    return buffers;
  }
  AllocateStaging(&buffers);
  const cudaError_t status = cudaHostAlloc(&buffers.pinned, buffers.bytes, cudaHostAllocPortable);
  if (status != cudaSuccess) {
    (void)cudaGetLastError();
    buffers.pinned = nullptr;
    FreeNow(buffers, Fallback());
  }
  CheckCuda(status, "cudaHostAlloc");
  return buffers;
}

Buffers BufferPool::TakeEager(std::uint64_t bytes, int device) {
  Buffers buffers;
  buffers.kind = Buffers::Kind::kEager;
  buffers.bytes = bytes;
  buffers.device = device;
  std::uint64_t headroom = 0;
  {
    const std::lock_guard lock(mutex_);
    if (TakeFromSlabs(&buffers)) return buffers;
    headroom = std::clamp(slab_bytes_, kMinHeadroomBytes, kMaxHeadroomBytes);
  }
  std::uint64_t slab_bytes = bytes + headroom;
  void* data = nullptr;
  cudaError_t status = cudaHostAlloc(&data, slab_bytes, cudaHostAllocPortable);
  if (status == cudaErrorMemoryAllocation) {  // no headroom, but this probe works
    (void)cudaGetLastError();
    slab_bytes = bytes;
    status = cudaHostAlloc(&data, slab_bytes, cudaHostAllocPortable);
  }
  CheckCuda(status, "cudaHostAlloc");
  const std::lock_guard lock(mutex_);
  const std::uint32_t number = ++last_slab_;
  slabs_.insert({number, {static_cast<std::byte*>(data), slab_bytes, 0}});
  slab_bytes_ += slab_bytes;
  if (!free_.Give({number, 0}, slab_bytes) || !TakeFromSlabs(&buffers)) throw std::bad_alloc();
  return buffers;
}

Buffers BufferPool::TakeState(int device) {
  {
    const std::lock_guard lock(mutex_);
    std::vector<Buffers>& unused = states_[device];
    if (!unused.empty()) {
      const Buffers buffers = unused.back();
      unused.pop_back();
      return buffers;
    }
  }
  void* memory = nullptr;
  CGD_CUDA(cudaMalloc(&memory, kStatesAtOnce * sizeof(DirectState)));
  CountForEver(kStatesAtOnce * sizeof(DirectState));
  std::vector<Buffers> made;
  for (std::size_t i = 0; i < kStatesAtOnce; ++i) {
    Buffers& buffers = made.emplace_back();
    buffers.kind = Buffers::Kind::kEagerStats;
    buffers.device = device;
    buffers.state = static_cast<DirectState*>(memory) + i;
    buffers.runs = TakeRuns();
  }
  const Buffers first = made.back();
  made.pop_back();
  const std::lock_guard lock(mutex_);
  std::vector<Buffers>& unused = states_[device];
  unused.reserve(unused.size() + 2 * kStatesAtOnce);
  unused.insert(unused.end(), made.begin(), made.end());
  return first;
}

// Words of pinned memory, which are never freed. `runs_` has room for all of them, so that giving
// one back cannot fail.
std::uint64_t* BufferPool::TakeRuns() {
  {
    const std::lock_guard lock(mutex_);
    if (!runs_.empty()) {
      std::uint64_t* const word = runs_.back();
      runs_.pop_back();
      return word;
    }
  }
  void* memory = nullptr;
  CGD_CUDA(cudaHostAlloc(&memory, kRunsAtOnce * sizeof(std::uint64_t),
                         cudaHostAllocPortable | cudaHostAllocMapped));
  auto* const words = static_cast<std::uint64_t*>(memory);
  const std::lock_guard lock(mutex_);
  runs_.reserve(runs_made_ + kRunsAtOnce);
  runs_made_ += kRunsAtOnce;
  for (std::size_t i = 1; i < kRunsAtOnce; ++i) runs_.push_back(words + i);
  return words;
}

// Requires: mutex_.
bool BufferPool::TakeFromSlabs(Buffers* buffers) {
  const auto place = free_.Take(buffers->bytes);
  if (!place) return false;
  Slab& slab = slabs_.at(place->area);
  slab.used_bytes += buffers->bytes;
  buffers->slab = place->area;
  buffers->slab_offset = place->offset;
  buffers->pinned = slab.data + place->offset;
  return true;
}

// Requires: mutex_.
void BufferPool::GiveToSlab(const Buffers& buffers) {
  if (!free_.Give({buffers.slab, buffers.slab_offset}, buffers.bytes)) return;
  slabs_.at(buffers.slab).used_bytes -= buffers.bytes;
}

void BufferPool::Give(const Buffers& buffers) noexcept {
  const std::lock_guard lock(mutex_);
  if (buffers.kind == Buffers::Kind::kEager) return GiveToSlab(buffers);
  try {
    if (buffers.kind == Buffers::Kind::kEagerStats)
      return states_[buffers.device].push_back(buffers);
    idle_[{buffers.bytes, buffers.device, buffers.kind}].push_back(buffers);
    idle_bytes_ += Held(buffers);
  } catch (const std::bad_alloc&) {
    // Lost until the process ends: freeing it here could wait for another thread's capture.
  }
}

void BufferPool::Trim() noexcept { FreeIdle(kMaxIdleBytes); }

// Frees everything that is unused if that is more than `allowed_bytes`.
void BufferPool::FreeIdle(std::uint64_t allowed_bytes) noexcept {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  if (cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess) return;
  const DeviceAllocator fallback = Fallback();
  const auto [idle, slabs] = TakeIdle(allowed_bytes);
  for (const auto& [key, list] : idle) {
    for (const Buffers& buffers : list) FreeNow(buffers, fallback);
  }
  for (const auto& [number, slab] : slabs) (void)cudaFreeHost(slab.data);
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
}

// Takes everything idle if that is more than `allowed_bytes`, else nothing.
std::pair<BufferPool::Idle, BufferPool::Slabs> BufferPool::TakeIdle(
    std::uint64_t allowed_bytes) noexcept {
  std::pair<Idle, Slabs> taken;
  const std::lock_guard lock(mutex_);
  std::uint64_t bytes = idle_bytes_;
  for (const auto& [number, slab] : slabs_) bytes += slab.used_bytes == 0 ? slab.bytes : 0;
  if (bytes <= allowed_bytes) return taken;
  taken.first.swap(idle_);
  for (const auto& [key, list] : taken.first) {
    for (const Buffers& buffers : list) {
      if (buffers.runs != nullptr) runs_.push_back(buffers.runs);
    }
  }
  idle_bytes_ = 0;
  for (auto it = slabs_.begin(); it != slabs_.end();) {
    const auto slab = it++;
    if (slab->second.used_bytes != 0) continue;
    slab_bytes_ -= slab->second.bytes;
    free_.Forget(slab->first);
    taken.second.insert(slabs_.extract(slab));
  }
  return taken;
}

void* StreamMemory::Of(int device, void* stream, std::uint64_t bytes) {
  const auto found = known_.find({device, stream});
  if (found != known_.end()) return found->second;
  if (known_.size() >= kMostEagerStreams) {
    throw ProbeError(ErrorKind::kNoSpace, std::string(what_) + " on at most " +
                                              std::to_string(kMostEagerStreams) +
                                              " streams of a process");
  }
  void* memory = nullptr;
  CGD_CUDA(cudaMalloc(&memory, bytes));
  BufferPool::Instance().CountForEver(bytes);
  CGD_CUDA(cudaMemsetAsync(memory, 0, bytes, static_cast<cudaStream_t>(stream)));
  known_.emplace(std::pair(device, stream), memory);
  return memory;
}

}  // namespace cgdebug::capture
