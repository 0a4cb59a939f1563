// recording_query.h: converts values of SQL to and from Python.
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

#include "client/source/database.h"

namespace cgdebug::python {

// None, whole numbers of 64 bits, float, str and bytes.
// Fails: throws TypeError, or OverflowError for a larger number.
std::vector<source::Value> ToValues(const pybind11::sequence& parameters);

// (names of the columns, rows as tuples).
pybind11::tuple ToPython(const source::QueryResult& result);

}  // namespace cgdebug::python
