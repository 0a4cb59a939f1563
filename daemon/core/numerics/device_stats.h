// device_stats.h: statistics that a GPU computed, in the form of those computed here.
#pragma once

#include "daemon/core/numerics/stats.h"
#include "proto/layout/device_stats.h"

namespace cgdebug::numerics {

// There is no histogram: that takes a second pass over the values.
// Thread: any. Requires: counts that were checked against the tensor's (ring::SlotRingReader).
Stats FromDevice(const layout::DeviceStats& device);

}  // namespace cgdebug::numerics
