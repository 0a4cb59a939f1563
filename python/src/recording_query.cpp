#include "python/src/recording_query.h"

#include <cstdint>
#include <string>
#include <variant>

namespace py = pybind11;

namespace cgdebug::python {
namespace {

using source::Blob;
using source::Value;

Value ToValue(py::handle object) {
  if (object.is_none()) return {};
  if (py::isinstance<py::str>(object)) return object.cast<std::string>();
  if (py::isinstance<py::bytes>(object)) return Blob{object.cast<std::string>()};
  if (py::isinstance<py::float_>(object)) return object.cast<double>();
  if (PyIndex_Check(object.ptr()) != 0) {  // NumPy's integers too
    const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(object.ptr()));
    const std::int64_t value = number ? PyLong_AsLongLong(number.ptr()) : -1;
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    return value;
  }
  throw py::type_error("a parameter of a query is a number, str, bytes or None, not " +
                       std::string(py::repr(object)));
}

py::object ToObject(const Value& value) {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return py::int_(*integer);
  if (const auto* number = std::get_if<double>(&value)) return py::float_(*number);
  if (const auto* blob = std::get_if<Blob>(&value)) return py::bytes(blob->bytes);
  const auto* text = std::get_if<std::string>(&value);
  if (text == nullptr) return py::none();
  // SQL can make text that is not UTF-8.
  PyObject* made =
      PyUnicode_DecodeUTF8(text->data(), static_cast<Py_ssize_t>(text->size()), "replace");
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

}  // namespace

std::vector<Value> ToValues(const py::sequence& parameters) {
  std::vector<Value> values;
  for (const py::handle parameter : parameters) values.push_back(ToValue(parameter));
  return values;
}

py::tuple ToPython(const source::QueryResult& result) {
  py::tuple names(result.columns.size());
  for (std::size_t i = 0; i < result.columns.size(); ++i) {
    names[i] = ToObject(Value(result.columns[i]));
  }
  py::list rows(result.rows.size());
  for (std::size_t row = 0; row < result.rows.size(); ++row) {
    py::tuple cells(result.rows[row].size());
    for (std::size_t i = 0; i < cells.size(); ++i) {
      PyTuple_SET_ITEM(cells.ptr(), static_cast<Py_ssize_t>(i),
                       ToObject(result.rows[row][i].value).release().ptr());
    }
    PyList_SET_ITEM(rows.ptr(), static_cast<Py_ssize_t>(row), cells.release().ptr());
  }
  return py::make_tuple(names, rows);
}

}  // namespace cgdebug::python
