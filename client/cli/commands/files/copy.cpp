#include "client/cli/commands/files/copy.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "client/analysis/json_number.h"
#include "client/cli/interrupt.h"
#include "client/cli/sources/recordings.h"
#include "client/cli/views/recording_text.h"
#include "client/source/copy_recording.h"
#include "daemon/core/recording/recording_reader.h"
#include "proto/layout/op_log_layout.h"

namespace cgdebug::cli {
namespace {

namespace fs = std::filesystem;
using recording::RecordingReader;

// A copy is written here first, so that what it overwrites stays until the copy is whole.
Result<std::string> PlaceToWrite(const CopyCommand& options,
                                 const std::vector<const RecordingReader*>& readers,
                                 const std::string& output) {
  std::error_code ignored;
  if (options.dry_run || !options.force || !fs::exists(output, ignored)) return output;
  if (!RecordingReader::IsRecording(output)) return Error{output + " is not a recording"};
  for (const RecordingReader* reader : readers) {
    if (fs::equivalent(reader->directory(), output, ignored)) {
      return Error{output + " is read from; give another -o DIR"};
    }
  }
  return Beside(output, fmt::format("new-{}", ::getpid()));
}

Result<void> ReplaceRecording(const std::string& from, const std::string& to) {
  if (Result<void> removed = RemoveRecording(to); !removed.ok()) return removed;
  if (::rename(from.c_str(), to.c_str()) != 0) return ErrnoError("cannot rename " + from);
  return {};
}

// What its sources lacked, the copy lacks.
bool IsComplete(const std::string& copy) {
  const auto reader = RecordingReader::Open(copy);
  return reader.ok() && (*reader)->complete();
}

}  // namespace

void AddCopyOptions(CLI::App& app, const std::shared_ptr<CopyCommand>& options, bool has_scope) {
  app.add_option("-o,--output", options->output, "the new recording")->type_name("DIR");
  app.add_flag("-f,--force", options->force, "overwrite DIR");
  app.add_flag("--dry-run", options->dry_run, "only say what would be done");
  if (!has_scope) return;
  app.add_option("--probes", options->scope.probes, "globs; 're:...', '!...' excludes")
      ->type_name("GLOB");
  app.add_option("--replays", options->scope.replays, "only these replays")->type_name("100..200");
}

std::string Beside(std::string path, const std::string& word) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const std::string extension = ".cgrec";
  if (path.ends_with(extension)) path.resize(path.size() - extension.size());
  return path + "." + word + extension;
}

int Copy(Context& context, const CopyCommand& options,
         const std::vector<const RecordingReader*>& readers, const std::string& output) {
  source::CopyOptions copy;
  const Result<analysis::Scope> scope = MakeScope(context, options.scope);
  if (!scope.ok()) return context.Fail(kExitTrouble, scope.error().message);
  const std::string& selector = context.options.session;
  copy.wants = [&](const recording::Slot& slot, const recording::Session& session) {
    return (layout::IsNoRow(slot.op) || scope->probes.Matches(slot.probe)) &&
           (!scope->wants_rank || scope->wants_rank(session.rank)) &&
           (selector.empty() || MatchesSession(session, selector));
  };
  copy.first_replay = scope->first_replay;
  copy.last_replay = scope->last_replay;
  copy.dry_run = options.dry_run;
  const InterruptScope interrupt(&context.client());
  copy.goes_on = [&] { return !interrupt.interrupted(); };
  const Result<std::string> place = PlaceToWrite(options, readers, output);
  if (!place.ok()) return context.Fail(kExitTrouble, place.error().message);
  std::error_code ignored;
  const bool was_there = fs::exists(*place, ignored);
  const Result<source::CopyResult> result = source::CopyRecordings(readers, *place, copy);
  if (result.ok() && result->is_nothing) {
    const std::string from = readers.size() == 1 ? " " + ShellWord(readers[0]->directory()) : "";
    return context.Fail(
        kExitNoMatch,
        fmt::format("{}: nothing to write. Type: cgdebug-cli info{}",
                    result->slots == 0 ? std::string("no probe matches")
                                       : "there is no snapshot in replays " + options.scope.replays,
                    from));
  }
  if (!result.ok()) {
    if (!was_there) static_cast<void>(RemoveFilesOf(*place));
    if (interrupt.interrupted()) return InterruptExitCode();
    return context.Fail(kExitTrouble, result.error().message);
  }
  if (*place != output) {
    if (const Result<void> replaced = ReplaceRecording(*place, output); !replaced.ok()) {
      return context.Fail(kExitTrouble, replaced.error().message + ". The copy is " + *place);
    }
  }
  const bool is_complete = options.dry_run ? result->lost == 0 : IsComplete(output);
  if (context.options.json) {
    Context::PrintJson({{"output", output},
                        {"dry_run", options.dry_run},
                        {"probes", result->slots},
                        {"snapshots", result->snapshots},
                        {"damaged", result->damaged},
                        {"lost", result->lost},
                        {"complete", is_complete}});
  } else {
    Context::Print(PrintableLines(fmt::format(
        "{}{}: {} of {} probe call{}{}{}{}\n", options.dry_run ? "would write " : "", output,
        SnapshotsText(result->snapshots), result->slots, result->slots == 1 ? "" : "s",
        result->damaged > 0 ? fmt::format(", {} damaged and left out", result->damaged) : "",
        result->lost > 0 ? fmt::format(", {} more are missing", result->lost) : "",
        is_complete ? "" : "; it is not complete")));
  }
  if (!options.dry_run) context.Hint("cgdebug-cli info " + ShellWord(output));
  return is_complete ? kExitOk : kExitInconclusive;
}

int CopyPaths(Context& context, const CopyCommand& options) {
  std::vector<std::unique_ptr<source::Source>> sources;
  if (const int failed = OpenRecordings(context, options.paths, &sources)) return failed;
  std::vector<const RecordingReader*> readers;
  for (const auto& source : sources) {
    for (const RecordingReader* reader : source->Recordings()) readers.push_back(reader);
  }
  return Copy(context, options, readers, RecordingPath(options.output));
}

}  // namespace cgdebug::cli
