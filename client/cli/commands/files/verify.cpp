#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <vector>

#include "client/analysis/answer.h"
#include "client/analysis/json_number.h"
#include "client/analysis/wording.h"
#include "client/cli/command.h"
#include "client/cli/sources/recordings.h"
#include "client/cli/views/terminal.h"
#include "client/source/source.h"
#include "daemon/core/numerics/format.h"
#include "daemon/core/recording/recording_reader.h"
#include "daemon/core/recording/verify_recording.h"

namespace cgdebug::cli {
namespace {

using recording::RecordingReader;

Json DamageJson(const recording::Damage& damage) {
  return {{"file", damage.file},
          {"offset", damage.offset},
          {"bytes", damage.bytes},
          {"missing_records", damage.missing_records},
          {"what", damage.what}};
}

int RunVerify(Context& context, const std::vector<std::string>& paths) {
  if (const int refused = RefuseSelection(context, "verify"); refused != kExitOk) return refused;
  std::vector<std::unique_ptr<source::Source>> sources;
  if (const int failed = OpenRecordings(context, paths, &sources)) return failed;
  bool is_damaged = false, is_whole = true;
  Json documents = Json::array();
  for (const auto& source : sources) {
    for (const RecordingReader* reader : source->Recordings()) {
      const Result<std::vector<recording::Damage>> damage =
          recording::VerifyRecording(reader->directory(), &source::CountSnapshotRead);
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
      Context::Print(PrintableLines(fmt::format(
          "{}: {}, {}, {}{}\n", reader->directory(), SnapshotsText(reader->snapshot_count()),
          numerics::FormatBytes(reader->bytes()),
          damage->empty() ? "every byte is as it was written"
                          : "damaged in " + analysis::Count(damage->size(), "place"),
          reader->complete() ? "" : "; it is not complete")));
      if (!damage->empty()) {
        context.Hint("cgdebug-cli repair " + ShellWord(reader->directory()));
      } else if (!reader->complete() && reader->snapshot_count() > 0) {
        context.Hint("cgdebug-cli info " + ShellWord(reader->directory()));
      }
    }
  }
  const analysis::Outcome outcome = analysis::OutcomeOf(is_damaged, is_whole);
  if (context.options.json) {
    Context::PrintJson({{"verdict", NameOf(outcome)}, {"recordings", std::move(documents)}});
  }
  return ExitCodeOf(outcome);
}

}  // namespace

RunFunction AddVerify(CLI::App& app) {
  auto paths = std::make_shared<std::vector<std::string>>();
  app.add_option("RECORDING", *paths, "NAME.cgrec, or a folder of them")->required();
  return [paths](Context& context) { return RunVerify(context, *paths); };
}

}  // namespace cgdebug::cli
