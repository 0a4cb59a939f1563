// host_stats.h: the statistics that the direct lane's kernels compute, for a tensor on the CPU.
#pragma once

#include <cstdint>

#include "proto/layout/device_stats.h"
#include "proto/layout/dtype.h"

namespace cgdebug {

// Requires: `data` holds `count` elements of a known dtype.
layout::DeviceStats ComputeHostStats(const void* data, layout::Dtype dtype, std::uint64_t count);

}  // namespace cgdebug
