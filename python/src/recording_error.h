// recording_error.h: errors of recordings as Python exceptions.
#pragma once

#include <pybind11/pybind11.h>

#include "daemon/core/base/result.h"

namespace cgdebug::python {

// Requires: the interpreter's lock. Throws cgdebug.RecordingError.
[[noreturn]] inline void Raise(const Error& error) {
  const pybind11::object type = pybind11::module_::import("cgdebug.errors").attr("RecordingError");
  PyErr_SetString(type.ptr(), error.message.c_str());
  throw pybind11::error_already_set();
}

template <typename T>
T Checked(Result<T> result) {
  if (!result.ok()) Raise(result.error());
  return *std::move(result);
}
inline void Checked(const Result<void>& result) {
  if (!result.ok()) Raise(result.error());
}

}  // namespace cgdebug::python
