#include "client/cli/views/recording_text.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>

#include "daemon/core/numerics/format.h"

namespace cgdebug::cli {
namespace {

namespace fs = std::filesystem;

}  // namespace

std::string RecordingPath(const std::string& directory) {
  fs::path path = directory;
  if (directory.empty()) {
    const char* chosen = std::getenv("CGDEBUG_DIR");
    path = chosen != nullptr && *chosen != '\0' ? chosen : "runs";
    path /= fmt::format("{:%Y%m%d-%H%M%S}.cgrec", fmt::localtime(std::time(nullptr)));
  }
  path = fs::absolute(path).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "runs/a/"
  // An existing folder keeps its name: the daemon then says that it is not a recording.
  std::error_code ignored;
  if (path.extension() != ".cgrec" && !fs::is_directory(path, ignored)) path += ".cgrec";
  return path;
}

std::string RecordingText(const live::Recording& recording, const Style& style) {
  std::string text = fmt::format("{} of {}, {}", GroupedCount(recording.snapshots, "snapshot"),
                                 GroupedCount(recording.slot_count, "probe"),
                                 numerics::FormatBytes(recording.bytes));
  const std::uint64_t waiting = recording.snapshots - recording.durable_snapshots;
  if (waiting > 0) text += fmt::format(", {} not on the disk yet", FormatGrouped(waiting));
  const std::uint64_t missing = recording.lost + recording.refused;
  // A recording that has stopped does not count for long what comes after it.
  const char* const least = recording.refused > 0 ? "at least " : "";
  if (missing > 0) text += ", " + style.Yellow(least + FormatGrouped(missing) + " missing");
  return text;
}

std::string NearPath(const std::string& path) {
  std::error_code failure;
  const fs::path near = fs::path(path).lexically_relative(fs::current_path(failure));
  return failure || near.empty() || *near.begin() == ".." ? path : near.string();
}

}  // namespace cgdebug::cli
