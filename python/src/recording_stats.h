// recording_stats.h: statistics as Python has them.
#pragma once

#include <pybind11/pybind11.h>

#include "daemon/core/numerics/stats.h"

namespace cgdebug::python {

inline pybind11::dict StatsDict(const numerics::Stats& stats) {
  pybind11::dict dict;
  numerics::Stats::ForEachNumber(
      [&](const layout::Field& field, auto member) { dict[field.name] = stats.*member; });
  dict["xor_hash"] = stats.has_hash ? pybind11::object(pybind11::int_(stats.hash))
                                    : pybind11::object(pybind11::none());
  return dict;
}

}  // namespace cgdebug::python
