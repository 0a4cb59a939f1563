// recording_stats.h: statistics as Python has them.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>

#include "daemon/core/numerics/stats.h"

namespace cgdebug::python {

// The columns of Stats by the names that Python uses.
struct Column {
  const char* name;
  double (*get)(const numerics::Stats&);
};
template <auto member>
double Get(const numerics::Stats& stats) {
  return static_cast<double>(stats.*member);
}
inline constexpr Column kColumns[] = {
    {"count", Get<&numerics::Stats::count>},     {"nan", Get<&numerics::Stats::nan>},
    {"pos_inf", Get<&numerics::Stats::pos_inf>}, {"neg_inf", Get<&numerics::Stats::neg_inf>},
    {"zero", Get<&numerics::Stats::zero>},       {"subnormal", Get<&numerics::Stats::subnormal>},
    {"min", Get<&numerics::Stats::min>},         {"max", Get<&numerics::Stats::max>},
    {"mean", Get<&numerics::Stats::mean>},       {"std", Get<&numerics::Stats::std>},
    {"abs_max", Get<&numerics::Stats::abs_max>}, {"l1", Get<&numerics::Stats::l1>},
    {"l2", Get<&numerics::Stats::l2>},
};

inline constexpr std::size_t kCountColumns = 6;  // the first ones, which are whole numbers

inline pybind11::dict StatsDict(const numerics::Stats& stats) {
  pybind11::dict dict;
  dict["count"] = stats.count;
  dict["nan"] = stats.nan;
  dict["pos_inf"] = stats.pos_inf;
  dict["neg_inf"] = stats.neg_inf;
  dict["zero"] = stats.zero;
  dict["min"] = stats.min;
  dict["max"] = stats.max;
  dict["mean"] = stats.mean;
  dict["std"] = stats.std;
  dict["abs_max"] = stats.abs_max;
  dict["l1"] = stats.l1;
  dict["l2"] = stats.l2;
  dict["xor_hash"] = stats.has_hash ? pybind11::object(pybind11::int_(stats.hash))
                                    : pybind11::object(pybind11::none());
  return dict;
}

}  // namespace cgdebug::python
