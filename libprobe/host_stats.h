// host_stats.h: the statistics of a tensor on the CPU, in the form in which a GPU sends them.
#pragma once

#include <cstdint>

#include "proto/layout/device_stats.h"
#include "proto/layout/dtype.h"

namespace cgdebug {

// Requires: `data` holds `count` elements of a known dtype.
layout::DeviceStats ComputeHostStats(const void* data, layout::Dtype dtype, std::uint64_t count);

}  // namespace cgdebug
