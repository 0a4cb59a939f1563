// recording_stats.h: statistics as Python has them.
#pragma once

#include <pybind11/pybind11.h>

#include <type_traits>

#include "daemon/core/numerics/stats.h"

namespace cgdebug::python {

inline pybind11::dict StatsDict(const numerics::Stats& stats) {
  pybind11::dict dict;
  numerics::Stats::ForEachNumber(
      [&](const layout::Field& field, auto member) { dict[field.name] = stats.*member; });
  dict["xor_hash"] = stats.has_hash ? pybind11::object(pybind11::int_(stats.hash))
                                    : pybind11::object(pybind11::none());
  dict["ordered_hash"] = stats.has_ordered_hash
                             ? pybind11::object(pybind11::int_(stats.ordered_hash))
                             : pybind11::object(pybind11::none());
  dict["saturated"] = stats.has_saturated ? pybind11::object(pybind11::int_(stats.saturated))
                                          : pybind11::object(pybind11::none());
  return dict;
}

// The reverse. Fails: throws if a number is missing.
inline numerics::Stats StatsOf(const pybind11::dict& dict) {
  numerics::Stats stats;
  numerics::Stats::ForEachNumber([&](const layout::Field& field, auto member) {
    using Number = std::remove_reference_t<decltype(stats.*member)>;
    stats.*member = dict[field.name].cast<Number>();
  });
  const pybind11::object hash = dict["xor_hash"];
  stats.has_hash = !hash.is_none();
  if (stats.has_hash) stats.hash = hash.cast<std::uint64_t>();
  const pybind11::object ordered_hash = dict["ordered_hash"];
  stats.has_ordered_hash = !ordered_hash.is_none();
  if (stats.has_ordered_hash) stats.ordered_hash = ordered_hash.cast<std::uint64_t>();
  const pybind11::object saturated =
      dict.contains("saturated") ? pybind11::object(dict["saturated"]) : pybind11::none();
  stats.has_saturated = !saturated.is_none();
  if (stats.has_saturated) stats.saturated = saturated.cast<std::uint64_t>();
  return stats;
}

}  // namespace cgdebug::python
