#include "libprobe/apart/kernel_launch.h"

#include <cuda.h>

#include <array>
#include <cstring>
#include <optional>

#include "libprobe/capture/cuda_check.h"
#include "libprobe/capture/driver_function.h"
#include "libprobe/capture/graph/kernel_node.h"

namespace cgdebug::apart {
namespace {

using capture::DriverFunction;

// CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION, which headers before CUDA 12.8 do not have. The
// value has the layout of clusterDim.
constexpr auto kPreferredCluster = static_cast<CUlaunchAttributeID>(11);
// CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE, which headers before CUDA 12.4 do not have. The
// value begins with an int that says whether it is one.
constexpr auto kUpdatedByKernels = static_cast<CUlaunchAttributeID>(13);

struct Launch {
  CUfunction function = nullptr;
  CUDA_KERNEL_NODE_PARAMS params = {};
  std::array<CUlaunchAttribute, 3> attributes = {};
  unsigned attribute_count = 0;
};

// Zeros if the node or the driver has none.
CUlaunchAttributeValue AttributeOf(cudaGraphNode_t node, CUlaunchAttributeID id) {
  using Get = CUresult (*)(CUgraphNode, CUlaunchAttributeID, CUlaunchAttributeValue*);
  static const auto get =
      reinterpret_cast<Get>(DriverFunction("cuGraphKernelNodeGetAttribute", 12000));
  CUlaunchAttributeValue value = {};
  if (get(node, id, &value) != CUDA_SUCCESS) return {};
  return value;
}

// The attributes that change what a kernel that runs alone does: how many of its blocks run at a
// time, and in which groups. The others say how it shares the device.
std::optional<Launch> LaunchOf(cudaGraphNode_t node) {
  const std::optional<CUDA_KERNEL_NODE_PARAMS> kernel = capture::KernelOf(node);
  if (!kernel || kernel->blockDimX == 0) return std::nullopt;
  if (AttributeOf(node, kPreferredCluster).clusterDim.x != 0) return std::nullopt;
  Launch launch;
  launch.params = *kernel;
  launch.function = launch.params.func != nullptr
                        ? launch.params.func
                        : reinterpret_cast<CUfunction>(launch.params.kern);  // launched alike
  if (launch.function == nullptr) return std::nullopt;
  const auto add = [&](CUlaunchAttributeID id, const CUlaunchAttributeValue& value) {
    launch.attributes.at(launch.attribute_count++) = {.id = id, .pad = {}, .value = value};
  };
  const CUlaunchAttributeValue cooperative = AttributeOf(node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
  if (cooperative.cooperative != 0) add(CU_LAUNCH_ATTRIBUTE_COOPERATIVE, cooperative);
  const CUlaunchAttributeValue cluster = AttributeOf(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
  if (cluster.clusterDim.x != 0) {
    add(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, cluster);
    add(CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
        AttributeOf(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE));
  }
  return launch;
}

}  // namespace

bool LaunchKernel(cudaGraphNode_t node, cudaStream_t stream) {
  using LaunchEx = CUresult (*)(const CUlaunchConfig*, CUfunction, void**, void**);
  static const auto launch_ex =
      reinterpret_cast<LaunchEx>(DriverFunction("cuLaunchKernelEx", 12000));
  std::optional<Launch> launch = LaunchOf(node);
  if (!launch) return false;
  const CUDA_KERNEL_NODE_PARAMS& params = launch->params;
  CUlaunchConfig config = {};
  config.gridDimX = params.gridDimX;
  config.gridDimY = params.gridDimY;
  config.gridDimZ = params.gridDimZ;
  config.blockDimX = params.blockDimX;
  config.blockDimY = params.blockDimY;
  config.blockDimZ = params.blockDimZ;
  config.sharedMemBytes = params.sharedMemBytes;
  config.hStream = stream;
  config.attrs = launch->attributes.data();
  config.numAttrs = launch->attribute_count;
  // The runtime, which gives each error the number that the driver gives it, cannot launch kernels
  // of modules that others loaded.
  const CUresult status = launch_ex(&config, launch->function, params.kernelParams, params.extra);
  capture::CheckCuda(static_cast<cudaError_t>(status), "cuLaunchKernelEx");
  return true;
}

bool CanLaunchKernel(cudaGraphNode_t node) { return LaunchOf(node).has_value(); }

bool IsUpdatedByKernels(cudaGraphNode_t node) {
  int is_one = 0;
  const CUlaunchAttributeValue value = AttributeOf(node, kUpdatedByKernels);
  std::memcpy(&is_one, &value, sizeof is_one);
  return is_one != 0;
}

}  // namespace cgdebug::apart
