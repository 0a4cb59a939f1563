// remote_files.h: URLs read by functions of Python (cgdebug/_remote.py).
#pragma once

#include <pybind11/pybind11.h>

namespace cgdebug::python {

// Adds read_urls_with(entries, size, read), to be called once, and recordings_in(source).
void RegisterRemoteFiles(pybind11::module_& module);

}  // namespace cgdebug::python
