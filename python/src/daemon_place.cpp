#include "python/src/daemon_place.h"

#include <pybind11/stl.h>

#include <chrono>
#include <string>
#include <string_view>

#include "daemon/core/base/glob.h"
#include "daemon/core/endpoint/autostart.h"
#include "daemon/core/endpoint/endpoint.h"
#include "daemon/core/endpoint/runtime_dir.h"
#include "python/src/gil.h"

namespace py = pybind11;

namespace cgdebug::python {
namespace {

[[noreturn]] void RaiseConnectionError(const Error& error) {
  PyErr_SetString(PyExc_ConnectionError, error.message.c_str());
  throw py::error_already_set();
}

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
}

RuntimeEnvironment ClientEnvironment(const std::string& mark_folder) {
  RuntimeEnvironment environment = RuntimeEnvironment::OfThisProcess();
  environment.mark_dir = mark_folder;
  return environment;
}

std::string FindSocket(const std::string& chosen, const std::string& mark_folder) {
  const Result<std::string> path = SocketPath(ClientEnvironment(mark_folder), chosen);
  if (!path.ok()) RaiseConnectionError(path.error());
  return *path;
}

// A connected descriptor; -1 if nobody listens.
int Connect(const std::string& path, double timeout_s) {
  Result<UniqueFd> fd = [&] {
    const WithoutGil release;
    return wire::TryConnect(path, Milliseconds(timeout_s));
  }();
  if (!fd.ok()) RaiseConnectionError(fd.error());
  return fd->release();
}

void EnsureDaemon(const std::string& chosen, double timeout_s, const std::string& mark_folder) {
  const Result<UniqueFd> connected = [&]() -> Result<UniqueFd> {
    const WithoutGil release;
    const RuntimeEnvironment environment = ClientEnvironment(mark_folder);
    const Result<std::string> path = PrepareSocketPath(environment, chosen);
    if (!path.ok()) return path.error();
    wire::AutostartOptions options;
    options.timeout = Milliseconds(timeout_s);
    if (!IsChosen(environment, chosen)) {
      options.find_socket = [&] { return SocketPath(environment).value_or(*path); };
    }
    bool started = false;
    return wire::ConnectOrStart(*path, options, &started);
  }();
  if (!connected.ok()) RaiseConnectionError(connected.error());
}

void RefuseOtherContainer(const std::string& path, int pid) {
  RaiseConnectionError(wire::OtherContainer(path, pid));
}

// Whether `patterns`, which have commas between them, select `name`.
// Fails: ValueError. The caller says where the patterns came from.
bool IsSelected(const std::string& name, std::string_view patterns) {
  const Result<Selector> selector = Selector::ParseList(patterns);
  if (!selector.ok()) throw py::value_error(selector.error().message);
  return selector->Matches(name);
}

}  // namespace

void RegisterDaemonPlace(py::module_& module) {
  module.def("socket_path", &FindSocket, py::arg("chosen"), py::arg("mark_folder"));
  module.def("connect", &Connect, py::arg("path"), py::arg("timeout_s"));
  module.def("ensure_daemon", &EnsureDaemon, py::arg("chosen"), py::arg("timeout_s"),
             py::arg("mark_folder"));
  module.def("refuse_other_container", &RefuseOtherContainer, py::arg("path"), py::arg("pid"));
  module.def("is_selected", &IsSelected, py::arg("name"), py::arg("patterns"));
}

}  // namespace cgdebug::python
