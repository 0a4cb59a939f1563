#include "client/cli/sources/recordings.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "client/cli/exit_codes.h"
#include "client/cli/views/json.h"
#include "client/cli/views/recording_text.h"
#include "client/cli/views/terminal.h"
#include "daemon/core/recording/files/recording_files.h"
#include "daemon/core/recording/recording_reader.h"

namespace cgdebug::cli {

using recording::RecordingReader;

std::string SnapshotsText(std::uint64_t count) {
  return fmt::format("{} snapshot{}", FormatGrouped(count), count == 1 ? "" : "s");
}

int ReportRecording(const Context& context, const live::Recording& recording,
                    std::string_view why_missing, const std::string& next) {
  const bool troubled = !recording.error.empty();
  const bool missing = troubled || recording.lost + recording.refused > 0;
  if (context.options.json) {
    Context::PrintJson(FieldsJson(recording));
    return missing ? kExitInconclusive : kExitOk;
  }
  std::string text = fmt::format("{}: {}", Printable(NearPath(recording.directory)),
                                 RecordingText(recording, context.err));
  if (troubled) {
    text += fmt::format("\n  {}: {}", context.err.Red(recording.state), Printable(recording.error));
  } else if (recording.lost > 0) {
    text += fmt::format("\n  {} {}", context.err.Yellow("missing:"), why_missing);
  }
  context.Say(text);
  if (recording.snapshots == 0) {
    context.Hint("cgdebug-cli probes" + context.SameJob());
  } else {
    const std::string path = ShellWord(NearPath(recording.directory));
    context.Hint(fmt::format("cgdebug-cli {} {}", next.empty() ? "check" : "why", path));
    if (!next.empty()) context.Hint(next);
  }
  return missing ? kExitInconclusive : kExitOk;
}

int RefuseSelection(const Context& context, const char* verb) {
  if (context.options.session.empty() && context.ranks.selects_all()) return kExitOk;
  return context.Fail(kExitTrouble,
                      fmt::format("{} works on whole recordings: leave out --session and --ranks. "
                                  "To copy a part, type: cgdebug-cli extract --help",
                                  verb));
}

int OpenRecordings(Context& context, const std::vector<std::string>& paths,
                   std::vector<std::unique_ptr<source::Source>>* sources) {
  for (const std::string& path : paths) {
    Result<std::unique_ptr<source::Source>> source = source::Open(path);
    if (!source.ok()) return context.Fail(kExitTrouble, source.error().message);
    if ((*source)->Recordings().empty()) {
      return context.Fail(kExitTrouble, path + " is not a recording");
    }
    if (const auto unread = (*source)->Describe().unread; !unread.empty()) {
      return context.Fail(kExitTrouble, unread.front());
    }
    sources->push_back(*std::move(source));
  }
  return kExitOk;
}

Result<void> MakeRoom(const std::string& path, bool force) {
  return force && RecordingReader::IsRecording(path) ? RemoveRecording(path) : Result<void>();
}

Result<void> RemoveRecording(const std::string& path) {
  if (!RecordingReader::IsRecording(path)) return Error{path + " is not a recording"};
  return RemoveFilesOf(path);
}

Result<void> RemoveFilesOf(const std::string& path) {
  const Result<UniqueFd> lock = recording::LockForWriting(path);
  if (!lock.ok()) return lock.error();
  for (const std::filesystem::directory_entry& entry : std::filesystem::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    const bool is_ours =
        name.starts_with("segment-") || name.starts_with("catalogue.sqlite") || name == "lock";
    if (is_ours && ::unlink(entry.path().c_str()) != 0) {
      return ErrnoError("cannot remove " + entry.path().string());
    }
  }
  if (::rmdir(path.c_str()) != 0) {
    return ErrnoError(path + " keeps files that are not part of a recording");
  }
  return {};
}

}  // namespace cgdebug::cli
