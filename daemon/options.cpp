#include "daemon/options.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <string>

#include "daemon/base/duration.h"

namespace cgdebug {
namespace {

constexpr const char* kFooter =
    "Nothing needs to be started by hand: a probe that prints or compares, and cgdebug-cli, start "
    "a\n"
    "daemon when there is none. It ends by itself.\n\n"
    "  cgdebug-daemon --foreground --log-level debug   see what it does\n"
    "  cgdebug-cli status                              ask the one that runs\n"
    "  cgdebug-cli daemon stop                         end it";

void AddDuration(CLI::App& app, const std::string& name, std::chrono::milliseconds* value,
                 const std::string& help) {
  app.add_option_function<std::string>(
         name,
         [value](const std::string& text) {
           const Result<std::chrono::milliseconds> parsed = ParseDuration(text);
           if (!parsed.ok()) throw CLI::ValidationError(parsed.error().message);
           *value = *parsed;
         },
         help)
      ->type_name("DURATION");
}

// "5%" or "10G".
void ReadMinFree(const std::string& text, recording::WriterOptions* options) {
  const bool is_part = text.ends_with('%');
  std::string number = text.substr(0, text.size() - (is_part ? 1 : 0));
  std::uint64_t value = 0;
  bool good = false;
  try {
    good = is_part || CLI::AsSizeValue(false)(number).empty();
  } catch (const CLI::ValidationError&) {  // an unknown unit
  }
  good = good && CLI::detail::lexical_cast(number, value) && !(is_part && value > 99);
  if (!good) {
    throw CLI::ValidationError("--min-free-disk", "'" + text +
                                                      "' is neither a size such as 10G nor a part "
                                                      "such as 5%");
  }
  options->min_free_percent = is_part ? static_cast<std::uint32_t>(value) : 0;
  options->min_free_bytes = is_part ? 0 : value;
}

void AddRecordingOptions(CLI::App& app, recording::WriterOptions* options) {
  app.add_option_function<std::string>(
         "--durability",
         [options](const std::string& text) {
           options->durability = *recording::ParseDurability(text);
         },
         "when recordings survive a power failure: none, interval = within a second, each = with "
         "every snapshot (interval)")
      ->check(CLI::IsMember({"none", "interval", "each"}))
      ->type_name("{none,interval,each}");
  app.add_option("--roll-size", options->roll_bytes,
                 "a recording begins a new file at this size (4G)")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(static_cast<double>(recording::kMinRollBytes), 1e18))
      ->type_name("SIZE");
  app.add_option("--max-disk", options->max_bytes,
                 "a recording ends at this size; 0 = no limit (0)")
      ->transform(CLI::AsSizeValue(false))
      ->type_name("SIZE");
  app.add_option_function<std::string>(
         "--min-free-disk", [options](const std::string& text) { ReadMinFree(text, options); },
         "recordings end when less than this is free on their disk: 10G, 5% (64M)")
      ->type_name("SIZE|PERCENT");
}

}  // namespace

ParsedOptions ParseOptions(int argc, char** argv) {
  ParsedOptions parsed;
  DaemonOptions& options = parsed.options;
  CLI::App app(
      "cgdebug-daemon: reads the tensors of jobs with probes, prints, compares and serves them.");
  app.footer(kFooter);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.set_version_flag("-V,--version", "cgdebug-daemon " CGDEBUG_VERSION);
  app.add_option("--socket", options.socket,
                 "where to listen; default: the user's runtime directory")
      ->type_name("PATH");
  app.add_flag("--foreground", options.foreground, "stay in this terminal");
  app.add_flag("--spawned", options.spawned, "started by a probe or a client: quiet");
  AddDuration(app, "--idle-timeout", &options.idle_timeout,
              "end after this long without a live job and a client; 0 = never (10m)");
  AddDuration(app, "--keep-dead", &options.keep_dead,
              "how long the last values of an ended job stay readable (1h)");
  app.add_option("--max-memory", options.max_memory_bytes, "for tensor values (1G)")
      ->transform(CLI::AsSizeValue(false))
      ->type_name("SIZE");
  app.add_option("--max-clients", options.max_clients, "connections at a time (64)")
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
  app.add_option("--workers", options.workers,
                 "threads that copy and compute large snapshots; 0 = the reading one does it "
                 "(half of the cores, at most 4)")
      ->check(CLI::Range(0, 64))
      ->type_name("N");
  app.add_option("--max-message", options.max_message_bytes, "largest request (16M)")
      ->transform(CLI::AsSizeValue(false))
      ->type_name("SIZE");
  AddRecordingOptions(app, &options.recording);
  app.add_option("--log-level", options.log_level,
                 "a level, or components as in CGDEBUG_LOG: debug, +ingest,rpc")
      ->type_name("LEVEL");
  app.add_option("--log-file", options.log_file,
                 "rotating log; default: stderr with --foreground, else beside the socket")
      ->type_name("PATH");
  app.add_option("--exit-with", options.exit_with, "end when this process ends")
      ->check(CLI::PositiveNumber)
      ->type_name("PID");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    parsed.done = true;
    parsed.exit_code = app.exit(error) == 0 ? 0 : 2;
  }
  return parsed;
}

}  // namespace cgdebug
