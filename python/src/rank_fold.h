// rank_fold.h: the comparison of ranks for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace cgdebug::python {

void RegisterRankFold(pybind11::module_& module);

}  // namespace cgdebug::python
