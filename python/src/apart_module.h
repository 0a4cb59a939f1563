// apart_module.h: graphs that are taken apart, for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace cgdebug::python {

void RegisterApart(pybind11::module_& module);

}  // namespace cgdebug::python
