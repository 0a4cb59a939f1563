// daemon_place.h: where the daemon is, and which probes are selected, for Python modules that work
// without protobuf.
#pragma once

#include <pybind11/pybind11.h>

namespace cgdebug::python {

void RegisterDaemonPlace(pybind11::module_& module);

}  // namespace cgdebug::python
