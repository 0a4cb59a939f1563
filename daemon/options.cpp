#include "daemon/options.h"

#include <CLI/CLI.hpp>
#include <climits>
#include <iostream>
#include <string_view>

#include "daemon/core/base/bytes.h"
#include "daemon/core/base/duration.h"
#include "daemon/core/options/number.h"
#include "daemon/core/options/parsed_option.h"
#include "daemon/core/wire/frame.h"
#include "daemon/metrics/page.h"

namespace cgdebug {
namespace {

constexpr const char* kFooter =
    "Nothing needs to be started by hand: cgdebug-cli starts a daemon when there is none, and\n"
    "so does a probe that needs one. It ends by itself.\n\n"
    "  cgdebug-daemon --foreground --log-level debug   see what it does\n"
    "  cgdebug-cli status                              ask the running daemon\n"
    "  cgdebug-cli daemon stop                         end it";

// Room for every request except those that list hundreds of probes.
constexpr std::uint64_t kLeastMessageBytes = 4u << 10;

Result<std::chrono::milliseconds> ParseWait(const std::string& text) { return ParseDuration(text); }

Result<std::chrono::milliseconds> ParseInterval(const std::string& text) {
  Result<std::chrono::milliseconds> interval = ParseWait(text);
  if (interval.ok() && *interval <= std::chrono::milliseconds(0)) {
    return Error{"'" + text + "' is not an interval; give for example 15s"};
  }
  return interval;
}

// "5%" or "10G".
void ReadMinFree(const std::string& text, recording::WriterOptions* options) {
  const bool is_part = text.ends_with('%');
  const Result<std::uint64_t> value = ParseBytes(text.substr(0, text.size() - (is_part ? 1 : 0)));
  if (!value.ok() || (is_part && *value > 99)) {
    throw CLI::ValidationError("--min-free-disk", "'" + text +
                                                      "' is neither a size such as 10G nor a part "
                                                      "such as 5%");
  }
  options->min_free_percent = is_part ? static_cast<std::uint32_t>(*value) : 0;
  options->min_free_bytes = is_part ? 0 : *value;
}

void AddRecordingOptions(CLI::App& app, recording::WriterOptions* options) {
  app.add_option_function<std::string>(
         "--durability",
         [options](const std::string& text) {
           options->durability = *recording::ParseDurability(text);
         },
         "when recordings survive a power failure: none, interval = within a second, each = with "
         "every snapshot (interval)")
      ->check(CLI::IsMember({"none", "interval", "each"}).description(""))
      ->type_name("{none,interval,each}");
  AddParsed(
      app, "--roll-size",
      [](const std::string& text) { return ParseBytes(text, recording::kMinRollBytes); },
      &options->roll_bytes, "SIZE", "a recording begins a new file at this size (4G)");
  AddParsed(
      app, "--max-disk",
      [](const std::string& text) {
        return text == "0" ? ParseBytes(text) : ParseBytes(text, recording::kMinMaxBytes);
      },
      &options->max_bytes, "SIZE",
      "a recording ends at this size, and one that a trigger makes leaves out the oldest replays; "
      "0 "
      "= no limit (0)")
      ->envname("CGDEBUG_MAX_DISK");
  app.add_option_function<std::string>(
         "--min-free-disk", [options](const std::string& text) { ReadMinFree(text, options); },
         "recordings end when less than this is free on their disk: 10G, 5% (64M)")
      ->envname("CGDEBUG_MIN_FREE_DISK")
      ->type_name("SIZE|PERCENT");
}

void AddMetricsOptions(CLI::App& app, metrics::ExportOptions* options) {
  const auto built_with_prometheus = CLI::Validator(
      [](const std::string&) -> std::string {
        if (metrics::CanMakePages()) return "";
        return "this cgdebug was built without prometheus-cpp, which writes metrics. Type: apt-get "
               "install prometheus-cpp-dev, and build it again";
      },
      "");
  app.add_option("--metrics-textfile", options->textfile,
                 "keep DIR/cgdebug.prom new, for the textfile collector of Prometheus' "
                 "node_exporter")
      ->envname("CGDEBUG_METRICS_TEXTFILE")
      ->check(built_with_prometheus)
      ->check([](const std::string& folder) -> std::string {
        return folder.empty() ? "no directory is given" : "";
      })
      ->type_name("DIR");
  AddParsed(app, "--metrics-listen", &metrics::ParseListen, &options->listen, "HOST:PORT",
            "serve metrics to Prometheus on http://HOST:PORT/metrics")
      ->envname("CGDEBUG_METRICS_LISTEN")
      ->check(built_with_prometheus);
  AddParsed(app, "--metrics-interval", &ParseInterval, &options->interval, "DURATION",
            "how often the text file is written (15s)");
  app.add_option("--metrics-probes", options->probes,
                 "probes of each job with series of their own, the first that were registered; 0 = "
                 "none (50)")
      ->check(WholeNumber(0, 100000))
      ->type_name("N");
}

// How long it lives and what it may take. Returns the option of how long.
const CLI::Option* AddLimits(CLI::App& app, DaemonOptions* options) {
  const CLI::Option* idle_timeout = AddParsed(
      app, "--idle-timeout", &ParseWait, &options->idle_timeout, "DURATION",
      "end after this long without a live job or a client; 0 = never (10m; 0 with metrics)");
  AddParsed(app, "--keep-dead", &ParseWait, &options->keep_dead, "DURATION",
            "how long the last values of an ended job stay readable (1h)");
  AddParsed(
      app, "--max-memory", [](const std::string& text) { return ParseBytes(text); },
      &options->max_memory_bytes, "SIZE", "for tensor values; 0 = statistics only (1G)");
  app.add_option("--max-clients", options->max_clients, "connections at a time (64)")
      ->check(WholeNumber(1, 4096))
      ->type_name("N");
  app.add_option("--workers", options->workers,
                 "threads that copy and compute large snapshots; 0 = the reading thread does it "
                 "(max of min(4, cores/2) and min(8, cores/4))")
      ->check(WholeNumber(0, 64))
      ->type_name("N");
  AddParsed(
      app, "--max-message",
      [](const std::string& text) {
        return ParseBytes(text, kLeastMessageBytes, wire::kMaxMessageBytes);
      },
      &options->max_message_bytes, "SIZE", "largest request, 4K to 16M (16M)");
  return idle_timeout;
}

}  // namespace

ParsedOptions ParseOptions(int argc, char** argv) {
  ParsedOptions parsed;
  DaemonOptions& options = parsed.options;
  CLI::App app(
      "cgdebug-daemon: reads the tensors of jobs with probes, prints, compares and serves them.");
  app.footer(kFooter);
  app.get_formatter()->label("Env", "variable");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.set_version_flag("-V,--version", "cgdebug-daemon " CGDEBUG_VERSION);
  app.add_option("--socket", options.socket,
                 "where to listen; default: the user's runtime directory")
      ->type_name("PATH");
  app.add_flag("--foreground", options.foreground, "stay in this terminal");
  app.add_flag("--spawned", options.spawned, "started by a probe or a client: quiet");
  const CLI::Option* idle_timeout = AddLimits(app, &options);
  AddRecordingOptions(app, &options.recording);
  AddMetricsOptions(app, &options.metrics);
  app.add_option("--log-level", options.log_level,
                 "a level, or components as in CGDEBUG_LOG: debug, +ingest,rpc")
      ->type_name("LEVEL");
  app.add_option("--log-file", options.log_file,
                 "rotating log; default: stderr with --foreground, else beside the socket")
      ->type_name("PATH");
  app.add_option("--exit-with", options.exit_with, "end when this process ends")
      ->check(WholeNumber(1, INT_MAX))
      ->type_name("PID");
  try {
    app.parse(argc, argv);
    if (options.metrics.any() && idle_timeout->empty()) options.idle_timeout = {};
    const bool were_typed = std::any_of(argv + 1, argv + argc, [](const char* word) {
      return std::string_view(word).starts_with("--metrics-");
    });
    options.needs_metrics = options.metrics.any() && (were_typed || !options.spawned);
  } catch (const CLI::Success& help) {
    parsed.done = true;
    parsed.exit_code = app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::cerr << "cgdebug-daemon: " << error.what() << ". Type: cgdebug-daemon --help\n";
    parsed.done = true;
    parsed.exit_code = 2;
  }
  return parsed;
}

}  // namespace cgdebug
