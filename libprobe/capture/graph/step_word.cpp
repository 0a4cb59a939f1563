#include "libprobe/capture/graph/step_word.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>

#include "libprobe/capture/cuda_check.h"
#include "libprobe/capture/driver_function.h"
#include "libprobe/capture/kernels/direct_kernels.h"
#include "libprobe/ring/shared_copy.h"

namespace cgdebug::capture {
namespace {

using WriteValue64 = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned int);

std::atomic<std::int64_t*> word{nullptr};

}  // namespace

// Pinned, so that the stream can write it. Never freed: the driver's thread reads it until the end.
std::int64_t* StepWord() {
  static std::int64_t* const created = [] {
    const RelaxedCapture relaxed;
    void* memory = nullptr;
    CGD_CUDA(
        cudaHostAlloc(&memory, sizeof(std::int64_t), cudaHostAllocPortable | cudaHostAllocMapped));
    auto* made = static_cast<std::int64_t*>(memory);
    *made = kNoStep;
    word.store(made, std::memory_order_release);
    return made;
  }();
  return created;
}

void SetStepInStreamOrder(std::int64_t step, void* stream_handle) noexcept try {
  auto* stream = static_cast<cudaStream_t>(stream_handle);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CGD_CUDA(cudaStreamIsCapturing(stream, &status));
  if (status != cudaStreamCaptureStatusNone) return;
  static const auto write =
      reinterpret_cast<WriteValue64>(DriverFunction("cuStreamWriteValue64", 12000));
  std::int64_t* target = StepWord();
  const CUresult result = write(stream, reinterpret_cast<CUdeviceptr>(target),
                                static_cast<cuuint64_t>(step), CU_STREAM_WRITE_VALUE_DEFAULT);
  if (result == CUDA_SUCCESS) return;
  // WSL2 and some virtual GPUs cannot. A host function takes longer, and comes at the same place.
  const cudaError_t launched = cudaLaunchHostFunc(
      stream,
      [](void* number) {
        ring::StoreRelease(*word.load(std::memory_order_acquire),
                           static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(number)));
      },
      reinterpret_cast<void*>(static_cast<std::intptr_t>(step)));
  CheckCuda(launched, "cudaLaunchHostFunc");
} catch (const ProbeError&) {
  // From here on the number that the job's CPU has set holds.
  if (std::int64_t* const known = word.load(std::memory_order_acquire)) {
    ring::StoreRelease(*known, kNoStep);
  }
}

std::int64_t StepOnGpu(std::int64_t otherwise) noexcept {
  const std::int64_t* word_now = word.load(std::memory_order_acquire);
  const std::int64_t step = word_now == nullptr ? kNoStep : ring::LoadAcquire(*word_now);
  return step == kNoStep ? otherwise : step;
}

}  // namespace cgdebug::capture
