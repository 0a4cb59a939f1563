#include <fmt/format.h>
#include <stdio.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "client/cli/doctor/checks.h"
#include "client/cli/remote/package.h"

namespace cgdebug::cli {
namespace {

// What the command writes to stdout and stderr; `*failed`: it did not end with 0.
std::string OutputOf(const std::string& command, bool* failed) {
  std::string output;
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "re");
  *failed = pipe == nullptr;
  if (pipe == nullptr) return output;
  char buffer[4096];
  for (std::size_t bytes; (bytes = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    output.append(buffer, bytes);
  }
  *failed = ::pclose(pipe) != 0;
  return output;
}

}  // namespace

std::vector<Check> JudgePython(const std::string& program, std::string_view output, bool failed) {
  std::vector<Check> checks;
  std::string last;
  while (!output.empty()) {
    const std::size_t end = std::min(output.find('\n'), output.size());
    const std::string line(output.substr(0, end));
    output.remove_prefix(std::min(end + 1, output.size()));
    const nlohmann::json one = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!one.is_object() || !one.contains("name")) {
      if (!line.empty()) last = line;
      continue;
    }
    const std::string level = one.value("level", "");
    checks.push_back({.name = Printable(one.value("name", "")),
                      .level = level == "OK"     ? Level::kOk
                               : level == "FAIL" ? Level::kFail
                                                 : Level::kWarn,
                      .text = Printable(one.value("text", "")),
                      .fix = Printable(one.value("fix", ""))});
  }
  if (!failed) return checks;
  // Whoever has C++ alone needs no Python.
  checks.push_back({.name = "python",
                    .level = Level::kWarn,
                    .text = fmt::format("{} -m cgdebug._doctor failed: {}", program,
                                        last.empty() ? "no output" : Printable(last)),
                    .fix = "pip install the wheel of cgdebug there, or name another Python: "
                           "CGDEBUG_PYTHON=/path/to/python3 cgdebug-cli doctor"});
  return checks;
}

std::vector<Check> CheckPython() {
  const std::string program = PythonProgram();
  bool failed = false;
  const std::string output = OutputOf(ShellWord(program) + " -m cgdebug._doctor", &failed);
  return JudgePython(program, output, failed);
}

}  // namespace cgdebug::cli
