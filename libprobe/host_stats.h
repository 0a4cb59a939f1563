// host_stats.h: what the kernels of the direct lane compute, of a tensor on the CPU.
#pragma once

#include <cstdint>

#include "proto/layout/device_stats.h"
#include "proto/layout/dtype.h"

namespace cgdebug {

// Requires: `data` holds `count` elements of a dtype that there is.
layout::DeviceStats ComputeHostStats(const void* data, layout::Dtype dtype, std::uint64_t count);

}  // namespace cgdebug
