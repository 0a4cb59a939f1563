#include <cuda_runtime_api.h>
#include <sys/resource.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "libprobe/capture/cuda_check.h"
#include "libprobe/capture/device_guard.h"
#include "libprobe/capture/kernels/direct_kernels.h"
#include "libprobe/capture/lane/direct_lane.h"
#include "libprobe/capture/lane/lane_device.h"

namespace cgdebug::capture {
namespace {

using layout::LaneReason;

std::optional<LaneRefusal> FindRefusal(int device) {
  if (ClockKernel() == nullptr) {
    return LaneRefusal{
        LaneReason::kNotBuilt,
        "this cgdebug was built without a CUDA compiler. Put nvcc on PATH (pip install "
        "nvidia-cuda-nvcc, or the CUDA Toolkit) and install it again"};
  }
  if (Attribute(cudaDevAttrCanMapHostMemory, device) == 0 ||
      Attribute(cudaDevAttrHostRegisterSupported, device) == 0 ||
      Attribute(cudaDevAttrCanUseHostPointerForRegisteredMem, device) == 0) {
    return LaneRefusal{LaneReason::kNoMapping,
                       "device " + std::to_string(device) + " cannot map memory of the host"};
  }
  cudaFuncAttributes attributes = {};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, ClockKernel());
  if (status == cudaSuccess) return std::nullopt;
  (void)cudaGetLastError();
  return LaneRefusal{LaneReason::kNotBuilt, std::string("this cgdebug has no kernels for device ") +
                                                std::to_string(device) + " (" +
                                                cudaGetErrorName(status) + ")"};
}

// Any other failure is the job's, for instance an earlier kernel's, and is passed on.
bool SaysThatMemoryCannotBeLocked(cudaError_t status) {
  return status == cudaErrorMemoryAllocation || status == cudaErrorOperatingSystem ||
         status == cudaErrorNotSupported || status == cudaErrorNotPermitted ||
         status == cudaErrorInvalidValue;
}

std::string LockedMemoryAdvice() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    return "Raise the limit of locked memory, which is " + std::to_string(limit.rlim_cur >> 10) +
           " KiB: ulimit -l unlimited";
  }
  return "Locked memory is not limited here, so the driver or the container forbids it. Type: "
         "cgdebug-cli doctor";
}

// Why shared memory cannot be mapped, once that is known.
std::optional<LaneRefusal>& MappingRefusal() {
  static std::optional<LaneRefusal> refusal;
  return refusal;
}

}  // namespace

std::optional<LaneRefusal> DirectLane::Refused(int device) {
  static auto* known = new std::map<int, std::optional<LaneRefusal>>;
  if (MappingRefusal()) return MappingRefusal();
  const auto found = known->find(device);
  if (found != known->end()) return found->second;
  const DeviceGuard guard(device);
  const RelaxedCapture relaxed;
  return known->emplace(device, FindRefusal(device)).first->second;
}

std::optional<LaneRefusal> DirectLane::Map(const ring::SegmentWriter& segment,
                                           const ring::Block& block, int device) {
  static auto* mapped = new std::map<std::byte*, std::uint64_t>;
  std::optional<LaneRefusal>& refusal = MappingRefusal();
  if (refusal) return refusal;
  const DeviceGuard guard(device);
  const RelaxedCapture relaxed;
  for (const std::uint32_t extent : {std::uint32_t{0}, block.extent}) {
    const auto [data, bytes] = segment.mapping(extent);
    if (mapped->count(data) != 0) continue;
    const cudaError_t status =
        cudaHostRegister(data, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (SaysThatMemoryCannotBeLocked(status)) {
      (void)cudaGetLastError();
      refusal = LaneRefusal{LaneReason::kNotRegistered,
                            "cudaHostRegister of " + std::to_string(bytes) +
                                " bytes of shared memory failed: " + cudaGetErrorName(status) +
                                ". " + LockedMemoryAdvice()};
      return refusal;
    }
    CheckCuda(status, "cudaHostRegister");
    mapped->emplace(data, bytes);
  }
  return std::nullopt;
}

}  // namespace cgdebug::capture
