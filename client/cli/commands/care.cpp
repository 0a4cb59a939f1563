#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "client/analysis/json_number.h"
#include "client/cli/command.h"
#include "client/cli/sources.h"
#include "client/cli/views/recording_text.h"
#include "client/source/copy_recording.h"
#include "daemon/core/numerics/format.h"
#include "daemon/core/recording/recording_files.h"
#include "daemon/core/recording/recording_reader.h"

namespace cgdebug::cli {
namespace {

namespace fs = std::filesystem;
using recording::RecordingReader;

struct CareOptions {
  std::vector<std::string> paths;
  std::string output;
  ScopeOptions scope;
  bool force = false;
  bool dry_run = false;
};

std::string Snapshots(std::uint64_t count) {
  return fmt::format("{} snapshot{}", FormatGrouped(count), count == 1 ? "" : "s");
}

// --- verify --------------------------------------------------------------------------------------

// Commands that act on whole recordings refuse --session and --ranks.
int RefuseSelection(const Context& context, const char* verb) {
  if (context.options.session.empty() && context.ranks.selects_all()) return kExitOk;
  return context.Fail(kExitTrouble,
                      fmt::format("{} is about whole recordings: leave --session and --ranks out. "
                                  "Some of one: cgdebug-cli extract --help",
                                  verb));
}

// Every recording that the paths name; a folder stands for the recordings in it.
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

Json DamageJson(const recording::Damage& damage) {
  return {{"file", damage.file},
          {"offset", damage.offset},
          {"bytes", damage.bytes},
          {"missing_records", damage.missing_records},
          {"what", damage.what}};
}

int RunVerify(Context& context, const CareOptions& options) {
  if (const int refused = RefuseSelection(context, "verify"); refused != kExitOk) return refused;
  std::vector<std::unique_ptr<source::Source>> sources;
  if (const int failed = OpenRecordings(context, options.paths, &sources); failed != kExitOk) {
    return failed;
  }
  bool is_damaged = false, is_whole = true;
  Json documents = Json::array();
  for (const auto& source : sources) {
    for (const RecordingReader* reader : source->Recordings()) {
      const Result<std::vector<recording::Damage>> damage = reader->Verify();
      if (!damage.ok()) return context.Fail(kExitTrouble, damage.error().message);
      is_damaged = is_damaged || !damage->empty();
      is_whole = is_whole && reader->complete();
      Json found = Json::array();
      for (const recording::Damage& one : *damage) found.push_back(DamageJson(one));
      documents.push_back({{"recording", reader->directory()},
                           {"snapshots", reader->snapshot_count()},
                           {"bytes", reader->bytes()},
                           {"complete", reader->complete()},
                           {"damage", std::move(found)}});
      if (context.options.json) continue;
      for (const recording::Damage& one : *damage) {
        Context::Print(
            PrintableLines(fmt::format("{} at byte {}: {}\n", one.file, one.offset, one.what)));
      }
      Context::Print(PrintableLines(
          fmt::format("{}: {}, {}, {}{}\n", reader->directory(),
                      Snapshots(reader->snapshot_count()), numerics::FormatBytes(reader->bytes()),
                      damage->empty() ? "every byte is as it was written"
                                      : fmt::format("damaged in {} place{}", damage->size(),
                                                    damage->size() == 1 ? "" : "s"),
                      reader->complete() ? "" : "; it is not complete, see: info")));
      if (!damage->empty()) {
        context.Hint("cgdebug-cli repair " + ShellWord(reader->directory()));
      }
    }
  }
  if (context.options.json) {
    Context::Print(Dump({{"recordings", std::move(documents)}}, /*indented=*/true) + "\n");
  }
  if (is_damaged) return kExitFound;
  return is_whole ? kExitOk : kExitInconclusive;
}

// --- repair, merge, extract ----------------------------------------------------------------------

Result<void> RemoveRecording(const std::string& path) {
  if (!RecordingReader::IsRecording(path)) return Error{path + " is not a recording"};
  const Result<UniqueFd> lock = recording::LockForWriting(path);
  if (!lock.ok()) return lock.error();
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    const bool is_ours =
        name.starts_with("segment-") || name.starts_with("catalogue.sqlite") || name == "lock";
    if (is_ours && ::unlink(entry.path().c_str()) != 0) {
      return ErrnoError("cannot remove " + entry.path().string());
    }
  }
  if (::rmdir(path.c_str()) != 0) {
    return ErrnoError(path + " keeps files that are not of a recording");
  }
  return {};
}

// "runs/a.cgrec" -> "runs/a.<word>.cgrec".
std::string Beside(std::string path, const std::string& word) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const std::string extension = ".cgrec";
  if (path.ends_with(extension)) path.resize(path.size() - extension.size());
  return path + "." + word + extension;
}

// A copy is written here first, so that what it overwrites stays until the copy is whole.
Result<std::string> PlaceToWrite(const CareOptions& options,
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

int Copy(Context& context, const CareOptions& options,
         const std::vector<const RecordingReader*>& readers, const std::string& output) {
  source::CopyOptions copy;
  const Result<analysis::Scope> scope = MakeScope(context, options.scope);
  if (!scope.ok()) return context.Fail(kExitTrouble, scope.error().message);
  const std::string& selector = context.options.session;
  copy.wants = [&](const recording::Slot& slot, const recording::Session& session) {
    return scope->probes.Matches(slot.probe) &&
           (!scope->wants_rank || scope->wants_rank(session.rank)) &&
           (selector.empty() || MatchesSession(session, selector));
  };
  copy.first_replay = scope->first_replay;
  copy.last_replay = scope->last_replay;
  copy.dry_run = options.dry_run;
  const Result<std::string> place = PlaceToWrite(options, readers, output);
  if (!place.ok()) return context.Fail(kExitTrouble, place.error().message);
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
  if (*place != output) {
    const Result<void> replaced =
        result.ok() ? ReplaceRecording(*place, output) : RemoveRecording(*place);
    if (result.ok() && !replaced.ok()) {
      return context.Fail(kExitTrouble, replaced.error().message + ". The copy is " + *place);
    }
  }
  if (!result.ok()) return context.Fail(kExitTrouble, result.error().message);
  if (context.options.json) {
    Context::Print(Dump({{"output", output},
                         {"dry_run", options.dry_run},
                         {"probes", result->slots},
                         {"snapshots", result->snapshots},
                         {"damaged", result->damaged},
                         {"lost", result->lost}},
                        /*indented=*/true) +
                   "\n");
  } else {
    Context::Print(PrintableLines(fmt::format(
        "{}{}: {} of {} probe call{}{}{}\n", options.dry_run ? "would write " : "", output,
        Snapshots(result->snapshots), result->slots, result->slots == 1 ? "" : "s",
        result->damaged > 0 ? fmt::format(", {} damaged and left out", result->damaged) : "",
        result->lost > 0 ? fmt::format(", {} were lost before", result->lost) : "")));
  }
  if (!options.dry_run) context.Hint("cgdebug-cli info " + ShellWord(output));
  return kExitOk;
}

int RunRepair(Context& context, const CareOptions& options) {
  const std::string& path = options.paths.front();
  // Do not trust the index: it may be what is damaged.
  const auto reader = RecordingReader::Open(path, {.trust_index = false});
  if (!reader.ok()) return context.Fail(kExitTrouble, reader.error().message);
  if ((*reader)->being_written()) {
    return context.Fail(kExitTrouble,
                        path + " is being written now. Type: cgdebug-cli record stop");
  }
  return Copy(context, options, {reader->get()},
              options.output.empty() ? Beside(path, "repaired") : RecordingPath(options.output));
}

int RunCopy(Context& context, const CareOptions& options) {
  std::vector<std::unique_ptr<source::Source>> sources;
  if (const int failed = OpenRecordings(context, options.paths, &sources); failed != kExitOk) {
    return failed;
  }
  std::vector<const RecordingReader*> readers;
  for (const auto& source : sources) {
    for (const RecordingReader* reader : source->Recordings()) readers.push_back(reader);
  }
  return Copy(context, options, readers, RecordingPath(options.output));
}

// --- rm ------------------------------------------------------------------------------------------

int RunRemove(Context& context, const CareOptions& options) {
  if (const int refused = RefuseSelection(context, "rm"); refused != kExitOk) return refused;
  std::vector<std::unique_ptr<source::Source>> sources;
  if (const int failed = OpenRecordings(context, options.paths, &sources); failed != kExitOk) {
    return failed;
  }
  for (const auto& source : sources) {
    for (const RecordingReader* reader : source->Recordings()) {
      const std::string text =
          fmt::format("{} ({}, {})", reader->directory(), Snapshots(reader->snapshot_count()),
                      numerics::FormatBytes(reader->bytes()));
      if (!options.force || options.dry_run) {
        Context::Print(PrintableLines("would remove " + text) + "\n");
        continue;
      }
      const Result<void> removed = RemoveRecording(reader->directory());
      if (!removed.ok()) return context.Fail(kExitTrouble, removed.error().message);
      context.Note("removed " + PrintableLines(text));
    }
  }
  if (options.force || options.dry_run) return kExitOk;
  return context.Fail(kExitTrouble, "nothing was removed. To remove it, add: -f");
}

void AddCommon(CLI::App& app, const std::shared_ptr<CareOptions>& options, bool has_scope) {
  app.add_option("-o,--output", options->output, "the new recording")->type_name("DIR");
  app.add_flag("-f,--force", options->force, "overwrite DIR");
  app.add_flag("--dry-run", options->dry_run, "only say what would be done");
  if (!has_scope) return;
  app.add_option("--probes", options->scope.probes, "globs; 're:...', '!...' excludes")
      ->type_name("GLOB");
  app.add_option("--replays", options->scope.replays, "only these")->type_name("100..200");
}

}  // namespace

RunFunction AddVerify(CLI::App& app) {
  auto options = std::make_shared<CareOptions>();
  app.add_option("RECORDING", options->paths, "NAME.cgrec, or a folder of them")->required();
  return [options](Context& context) { return RunVerify(context, *options); };
}

RunFunction AddRepair(CLI::App& app) {
  auto options = std::make_shared<CareOptions>();
  app.add_option("RECORDING", options->paths, "what is damaged or cut off; it stays as it is")
      ->required()
      ->expected(1);
  AddCommon(app, options, /*has_scope=*/false);
  return [options](Context& context) { return RunRepair(context, *options); };
}

RunFunction AddMerge(CLI::App& app) {
  auto options = std::make_shared<CareOptions>();
  app.add_option("RECORDING", options->paths, "recordings, or folders of them")->required();
  AddCommon(app, options, /*has_scope=*/false);
  app.get_option("--output")->required();
  return [options](Context& context) { return RunCopy(context, *options); };
}

RunFunction AddExtract(CLI::App& app) {
  auto options = std::make_shared<CareOptions>();
  app.add_option("RECORDING", options->paths, "NAME.cgrec")->required()->expected(1);
  AddCommon(app, options, /*has_scope=*/true);
  app.get_option("--output")->required();
  return [options](Context& context) { return RunCopy(context, *options); };
}

RunFunction AddRemove(CLI::App& app) {
  auto options = std::make_shared<CareOptions>();
  app.add_option("RECORDING", options->paths, "recordings, or folders of them")->required();
  app.add_flag("-f,--force", options->force, "remove it; without, only say what would be removed");
  app.add_flag("--dry-run", options->dry_run, "only say what would be removed");
  return [options](Context& context) { return RunRemove(context, *options); };
}

}  // namespace cgdebug::cli
