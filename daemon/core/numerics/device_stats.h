// device_stats.h: statistics in the 128 bytes in which they leave a GPU, and back.
#pragma once

#include "daemon/core/numerics/stats.h"
#include "proto/layout/device_stats.h"

namespace cgdebug::numerics {

// There is no histogram: that takes a second pass over the values. l2, rms and std are NaN, which
// is not known, if squares of the elements leave the range of a double. Thread: any. Requires:
// counts that were checked against the tensor's (ring::SlotRingReader).
Stats FromDevice(const layout::DeviceStats& device);

// The reverse, without the histogram. FromDevice() then gives the same counts, extremes, mean, sum
// and hash, and the others to the last digit but one. Thread: any.
layout::DeviceStats ToDevice(const Stats& stats);

}  // namespace cgdebug::numerics
