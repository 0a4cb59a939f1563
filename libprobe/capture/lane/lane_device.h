// lane_device.h: what the direct lane needs of a device, and how large its grids are there.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "libprobe/capture/cuda_check.h"
#include "libprobe/capture/kernels/direct_kernels.h"

namespace cgdebug::capture {

inline int Attribute(cudaDeviceAttr attribute, int device) {
  int value = 0;
  CGD_CUDA(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

// How a kernel of kStatsThreads computes the statistics of a tensor.
struct StatsGrid {
  int blocks = 0;
  bool on_tensor_cores = false;

  // How many parts it leaves.
  std::uint32_t parts() const {
    return static_cast<std::uint32_t>(on_tensor_cores ? blocks : blocks * kStatsThreads / 32);
  }
  // Whether the leaf that adds up these parts starts before the kernel that makes them ends, and
  // waits for it itself. The compute path then does not wait until the leaf has been started. But
  // such leaves run one after another, each for as long as it takes to add up its parts, so that
  // many parts would hold up the graph's end.
  bool starts_leaf_early() const { return on_tensor_cores; }
};

// Never freed: kernels use it until the process ends.
struct LaneDevice {
  int index = 0;
  cudaStream_t stream = nullptr;  // our own, for set-up; never captured
  DirectGate* gate = nullptr;
  std::int64_t clock_offset_ns = 0;
  std::int64_t serial_offset_ns = 0;
  int multiprocessors = 0;
  bool overlaps = false;               // a grid may start before the one it follows ends
  bool adds_bfloat16 = false;          // on the tensor cores
  DirectState* never_skips = nullptr;  // zeros

  // Requires: `index` is the current device, in relaxed capture mode. Fails: throws ProbeError.
  static LaneDevice SetUp(int index);

  StatsGrid GridOfStats(layout::Dtype dtype, std::uint64_t bytes) const;
  int HashBlocks(std::uint64_t bytes) const;
  // Writes what kernels of the graph under capture read in device memory.
  void Write(void* to, const void* from, std::size_t bytes) const;
};

}  // namespace cgdebug::capture
