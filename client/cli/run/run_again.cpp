#include "client/cli/run/run_again.h"

#include <fmt/format.h>

namespace cgdebug::cli {

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

std::string_view RunAgain::LevelOfCaptures() const {
  const std::string_view level = LevelOf(options_);
  return options_.eager || level == "module" || level == "fx" ? std::string_view() : level;
}

std::string RunAgain::LogEagerCommand(std::string_view level) const {
  return WatchCommand(fmt::format("'{}:*' --eager", level));
}

std::string RunAgain::WatchCommand(std::string_view what) const {
  std::string command = fmt::format("cgdebug-cli run --watch {} --", what);
  for (const std::string& word : options_.command) command += " " + ShellWord(word);
  return command;
}

}  // namespace cgdebug::cli
