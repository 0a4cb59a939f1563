// Built instead of direct_kernels.cu if there is no CUDA compiler: the direct lane then says so.
#include "libprobe/capture/kernels/device_ring_kernels.h"
#include "libprobe/capture/kernels/direct_kernels.h"

namespace cgdebug::capture {

const void* StageKernel(int) { return nullptr; }
const void* GatherKernel(int) { return nullptr; }
const void* StatsKernel(layout::Dtype) { return nullptr; }
const void* TensorCoreStatsKernel() { return nullptr; }
const void* CompareKernel(layout::Dtype) { return nullptr; }
const void* LeafKernel(layout::Dtype) { return nullptr; }
const void* StatsLeafKernel() { return nullptr; }
const void* HashKernel() { return nullptr; }
const void* OpLogPartsKernel() { return nullptr; }
const void* DeviceStageKernel(int) { return nullptr; }
const void* DeviceGatherKernel(int) { return nullptr; }
const void* DeviceStatsKernel(layout::Dtype) { return nullptr; }
const void* DeviceTensorCoreStatsKernel() { return nullptr; }
const void* DeviceLeafKernel(layout::Dtype) { return nullptr; }
const void* DeviceStatsLeafKernel() { return nullptr; }
const void* ClockKernel() { return nullptr; }
const void* TickKernel() { return nullptr; }

}  // namespace cgdebug::capture
