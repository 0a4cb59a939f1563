#include "python/src/remote_files.h"

#include <pybind11/stl.h>

#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "client/source/source.h"
#include "daemon/core/recording/files/remote_files.h"
#include "python/src/gil.h"
#include "python/src/recording_error.h"

namespace py = pybind11;

namespace cgdebug::python {
namespace {

using recording::RemoteEntry;

class PythonFiles : public recording::RemoteFiles {
 public:
  PythonFiles(py::object entries, py::object size, py::object read)
      : entries_(std::move(entries)), size_(std::move(size)), read_(std::move(read)) {}

  Result<std::optional<std::vector<RemoteEntry>>> List(const std::string& url) override {
    return Call([&]() -> std::optional<std::vector<RemoteEntry>> {
      const py::object found = entries_(url);
      if (found.is_none()) return std::nullopt;
      std::vector<RemoteEntry> entries;
      for (auto& [name, bytes, is_folder] :
           found.cast<std::vector<std::tuple<std::string, std::uint64_t, bool>>>()) {
        entries.push_back({std::move(name), bytes, is_folder});
      }
      return entries;
    });
  }
  Result<std::uint64_t> Size(const std::string& url) override {
    return Call([&] { return size_(url).cast<std::uint64_t>(); });
  }
  Result<void> Fetch(const std::string& url, std::uint64_t offset,
                     std::span<std::byte> buffer) override {
    const Result<bool> done = Call([&] {
      const auto bytes = read_(url, offset, buffer.size()).cast<py::bytes>();
      const std::string_view got = bytes;
      if (got.size() != buffer.size()) throw py::value_error("it gave another number of bytes");
      std::memcpy(buffer.data(), got.data(), got.size());
      return true;
    });
    if (!done.ok()) return done.error();
    return {};
  }

 private:
  // Called by threads that have released the interpreter's lock.
  template <typename Function>
  static auto Call(const Function& function) -> Result<decltype(function())> {
    if (IsInterpreterEnding()) return Error{"Python is ending"};
    const py::gil_scoped_acquire lock;
    try {
      return function();
    } catch (py::error_already_set& error) {
      // Ctrl-C ends what the caller does, when it is back in Python.
      if (error.matches(PyExc_KeyboardInterrupt)) {
        PyErr_SetInterrupt();
        return Error{"interrupted"};
      }
      return Error{py::str(error.value()).cast<std::string>()};
    } catch (const std::exception& error) {
      return Error{error.what()};
    }
  }

  py::object entries_, size_, read_;
};

}  // namespace

void RegisterRemoteFiles(py::module_& module) {
  module.def(
      "read_urls_with",
      [](py::object entries, py::object size, py::object read) {
        recording::SetRemoteFiles(
            std::make_unique<PythonFiles>(std::move(entries), std::move(size), std::move(read)));
      },
      py::arg("entries"), py::arg("size"), py::arg("read"));
  // The recordings in a folder, as every command finds them. Those behind a URL, or the URL itself.
  module.def(
      "recordings_in",
      [](const std::string& source) {
        return Checked([&]() -> Result<std::vector<std::string>> {
          const WithoutGil release;
          if (recording::IsUrl(source)) return source::RemoteRecordingsIn(source);
          return source::RecordingsIn(source);
        }());
      },
      py::arg("source"));
}

}  // namespace cgdebug::python
