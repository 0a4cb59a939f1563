// words_module.h: what people type, as the job, the daemon and cgdebug-cli read it.
#pragma once

#include <pybind11/pybind11.h>

namespace cgdebug::python {

// Adds the functions of daemon/core/words to a module.
void RegisterWords(pybind11::module_& module);

}  // namespace cgdebug::python
