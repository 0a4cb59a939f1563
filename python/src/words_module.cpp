#include "python/src/words_module.h"

#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "daemon/core/words/condition.h"
#include "daemon/core/words/config_file.h"
#include "daemon/core/words/finding_kinds.h"
#include "daemon/core/words/probe_name.h"
#include "daemon/core/words/settings.h"
#include "daemon/core/words/watch_level.h"

namespace cgdebug::python {
namespace {

namespace py = pybind11;

// Fails: ValueError.
template <typename T>
T Require(Result<T> result) {
  if (!result.ok()) throw py::value_error(result.error().message);
  return *std::move(result);
}

std::pair<int, double> Condition(const std::string& text, const std::string& what) {
  const words::Condition condition = Require(words::ParseCondition(text, what));
  return {static_cast<int>(condition.trigger), condition.threshold};
}

std::vector<std::string> FindingKinds(const std::string& list, const std::string& what) {
  std::vector<std::string> found;
  for (const layout::FindingKind kind : Require(words::ParseFindingKinds(list, what))) {
    found.emplace_back(words::kFindingWords[static_cast<int>(kind)]);
  }
  return found;
}

std::pair<std::string, std::string> Watched(const std::string& text, const std::string& what) {
  const words::Watched watched = Require(words::ParseWatched(text, what));
  return {std::string(watched.level), watched.globs};
}

void CheckProbeName(const std::string& name) {
  const Result<void> checked = words::CheckProbeName(name);
  if (!checked.ok()) throw py::value_error(checked.error().message);
}

// Why the variable cannot have this text; empty if it can.
std::string SettingProblem(const std::string& name, const std::string& text) {
  const Result<void> checked = words::CheckSetting(name, text);
  return checked.ok() ? std::string() : checked.error().message;
}

// Variables and their texts.
words::ConfigSettings ReadConfig(const std::string& path) {
  return Require(words::ReadConfig(path));
}

}  // namespace

void RegisterWords(py::module_& module) {
  module.def("condition", &Condition, py::arg("text"), py::arg("what"));
  module.def("finding_kinds", &FindingKinds, py::arg("list"), py::arg("what"));
  module.def("watched", &Watched, py::arg("text"), py::arg("what"));
  module.def("check_probe_name", &CheckProbeName, py::arg("name"));
  module.def("make_probe_name", &words::MakeProbeName, py::arg("text"));
  module.def("setting_problem", &SettingProblem, py::arg("name"), py::arg("text"));
  module.def("read_config", &ReadConfig, py::arg("path"));
  module.attr("FINDING_KINDS") =
      std::vector<std::string>(std::begin(words::kFindingWords), std::end(words::kFindingWords));
  module.attr("WATCH_LEVELS") =
      std::vector<std::string>(std::begin(words::kWatchLevels), std::end(words::kWatchLevels));
}

}  // namespace cgdebug::python
