#include "client/cli/run/run_again.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "daemon/core/base/suggest.h"

namespace cgdebug::cli {
namespace {

namespace fs = std::filesystem;

void AddNamesIn(const fs::path& folder, std::vector<std::string>* names) {
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(folder, failure)) {
    names->push_back(entry.path().filename().string());
  }
}

// " Close: 'python'." of the programs that the shell would find.
std::string CloseInPath(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  std::vector<std::string> names;
  for (std::string folder; std::getline(folders, folder, ':');) AddNamesIn(folder, &names);
  return DidYouMean(program, names);
}

}  // namespace

std::string RunAgain::NoGraphText() const {
  const std::string_view level = LevelOfCaptures();
  if (level.empty()) return {};
  return fmt::format("level {} logs what CUDA graphs capture, and no such graph was replayed",
                     level);
}

std::vector<std::string> RunAgain::LogOpsCommands(bool has_compiled_code) const {
  if (options_.watch.empty() || LevelOf(options_) != "module") return {};
  const std::string eagerly = LogEagerCommand("op");
  if (!has_compiled_code) return {eagerly};
  return {WatchCommand("'fx:*'"), eagerly + "  # not compiled"};
}

std::string RunAgain::WatchAllCommand() const {
  const std::string_view level = LevelOf(options_);
  const std::string all = level == "module" ? "*" : fmt::format("{}:*", level);
  const std::string watched = fmt::format("{}", fmt::join(options_.watch, ","));
  if (watched == all || watched == "module:*") return {};
  std::string command = "cgdebug-cli";
  bool is_of_job = false, has_watch = false;
  for (std::size_t i = 0; i < words_.size(); ++i) {
    const std::string& word = words_[i];
    is_of_job = is_of_job || word == "--";
    if (!is_of_job && word == "--watch") ++i;  // and what it says
    if (!is_of_job && word.starts_with("--watch")) continue;
    command += " " + ShellWord(word);
    if (word != "run" || has_watch) continue;
    command += " --watch " + ShellWord(all);
    has_watch = true;
  }
  return command;
}

std::string RunAgain::InsteadText() const {
  const std::string& program = options_.command.front();
  std::error_code ignored;
  const bool is_file = fs::is_regular_file(program, ignored);
  if (is_file && program.ends_with(".py")) {
    return fmt::format(". Type: {}", WithProgram("python " + ShellWord(program)));
  }
  if (!is_file && program.find(' ') != std::string::npos) {
    return fmt::format(". Type it without the quotes: {}", WithProgram(program));
  }
  if (program.find('/') == std::string::npos) {
    const std::string close = CloseInPath(program);
    return close.empty() ? ". Type: echo $PATH" : "." + close;
  }
  fs::path folder = is_file ? fs::path(program) : fs::path(program).parent_path();
  while (folder.has_parent_path() && !fs::exists(folder, ignored)) folder = folder.parent_path();
  return fmt::format(". Type: ls -l {}", ShellWord(folder.empty() ? "." : folder.string()));
}

std::string_view RunAgain::LevelOfCaptures() const {
  const std::string_view level = LevelOf(options_);
  return options_.eager || level == "module" || level == "fx" ? std::string_view() : level;
}

std::string RunAgain::LogEagerCommand(std::string_view level) const {
  return WatchCommand(fmt::format("'{}:*' --eager", level));
}

std::string RunAgain::WithProgram(const std::string& program) const {
  std::string command = "cgdebug-cli";
  const std::size_t place = words_.size() - options_.command.size();
  for (std::size_t i = 0; i < words_.size(); ++i) {
    command += " " + (i == place ? program : ShellWord(words_[i]));
  }
  return command;
}

std::string RunAgain::WatchCommand(std::string_view what) const {
  std::string command = fmt::format("cgdebug-cli run --watch {} --", what);
  for (const std::string& word : options_.command) command += " " + ShellWord(word);
  return command;
}

}  // namespace cgdebug::cli
