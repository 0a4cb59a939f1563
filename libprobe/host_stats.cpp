#include "libprobe/host_stats.h"

#include <cstddef>

#include "daemon/core/numerics/device_stats.h"

namespace cgdebug {

layout::DeviceStats ComputeHostStats(const void* data, layout::Dtype dtype, std::uint64_t count) {
  const auto* bytes = static_cast<const std::byte*>(data);
  return numerics::ToDevice(numerics::ComputeSums(
      {.dtype = dtype,
       .shape = {&count, 1},
       .data = {bytes, static_cast<std::size_t>(count * layout::DtypeBytes(dtype))}}));
}

}  // namespace cgdebug
