#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/remote/package.h"
#include "client/cli/remote/passwords.h"
#include "client/cli/sources/sources.h"

namespace cgdebug::cli {
namespace {

struct ExportOptions {
  std::string source;
  std::string format;
  std::string output;
  std::vector<std::string> probes;
  std::string replays;
  std::string upcast;
  std::string trace;
  bool force = false;
  WhichOptions which;
};

// Like python3 -m cgdebug.export, with a message for a Python that lacks packages.
constexpr const char* kPythonProgram = R"(
import signal, sys
is_heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
if is_heeded: signal.signal(signal.SIGINT, signal.SIG_DFL)
try:
    import cgdebug.export, cgdebug.recording
except ImportError as error:
    sys.exit(print(
        f"cgdebug: export needs Python with the package cgdebug, and with {sys.executable}: {error}. "
        "Name one that has it: CGDEBUG_PYTHON=/path/to/python cgdebug-cli export ...",
        file=sys.stderr) or 2)
if is_heeded: signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(cgdebug.export.main())
)";

// The writers of these formats are Python libraries, so Python takes over this process.
int RunExport(Context& context, const ExportOptions& options) {
  if (!source::LooksLikePath(options.source)) {
    const std::string& job = options.source == "live" ? context.options.session : options.source;
    const std::string session = job.empty() ? "" : ShellWord(job) + " ";
    return context.Fail(
        kExitTrouble, fmt::format("there is no recording '{0}'. To export a live job, first type: "
                                  "cgdebug-cli freeze {1}-o {2}",
                                  options.source, session, ShellWord(options.source + ".cgrec")));
  }
  if (!context.options.session.empty()) {
    return context.Fail(
        kExitTrouble,
        fmt::format(
            "export takes every session of {0}. For one of them, type: cgdebug-cli -s {1} extract "
            "{0} -o one.cgrec",
            ShellWord(options.source), ShellWord(context.options.session)));
  }
  const std::string python = PythonProgram();
  std::vector<std::string> words = {
      python, "-c",           kPythonProgram, WithPassword(options.source),
      "--to", options.format, "-o",           options.output};
  for (const std::string& probe : options.probes) words.insert(words.end(), {"--probes", probe});
  if (!options.replays.empty()) words.insert(words.end(), {"--replays", options.replays});
  if (const Result<WhichSlots> which = options.which.Parse(); !which.ok()) {
    return context.Fail(kExitTrouble, which.error().message);
  }
  if (!options.which.graph.empty()) words.insert(words.end(), {"--graph", options.which.graph});
  if (!options.which.shape.empty()) words.insert(words.end(), {"--shape", options.which.shape});
  if (!options.upcast.empty()) words.insert(words.end(), {"--upcast", options.upcast});
  if (!options.trace.empty()) words.insert(words.end(), {"--trace", options.trace});
  if (!context.ranks.selects_all()) words.insert(words.end(), {"--ranks", context.options.ranks});
  if (options.force) words.emplace_back("--force");
  if (context.options.quiet) words.emplace_back("--quiet");
  if (context.options.json) words.emplace_back("--json");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::fflush(stdout);
  ::execvp(python.c_str(), arguments.data());
  return context.Fail(
      kExitTrouble,
      ErrnoError("export needs Python with the package cgdebug; cannot run " + python).message +
          ". Name one: CGDEBUG_PYTHON=/path/to/python cgdebug-cli export ...");
}

}  // namespace

RunFunction AddExport(CLI::App& app) {
  auto options = std::make_shared<ExportOptions>();
  app.add_option("SOURCE", options->source, "NAME.cgrec, a folder of them, or .safetensors")
      ->required();
  app.add_option("--to", options->format, "the format")
      ->required()
      ->check(CLI::IsMember(
          {"safetensors", "npz", "npy", "jsonl", "csv", "parquet", "tensorboard", "perfetto"}))
      ->type_name("{safetensors,npz,npy,jsonl,csv,parquet,tensorboard,perfetto}");
  app.add_option("-o,--output", options->output,
                 "a folder or, for a format of one file, a file; - for stdout")
      ->required()
      ->type_name("PATH");
  app.add_option("--probes", options->probes, "globs; 're:...', '!...' excludes")
      ->type_name("GLOB");
  app.add_option("--replays", options->replays, "only these replays")->type_name("100..200");
  AddWhichOptions(app, &options->which);
  app.add_option("--upcast", options->upcast,
                 "in NumPy formats, write bfloat16 and float8 as float32")
      ->check(CLI::IsMember({"float32"}))
      ->type_name("{float32}");
  app.add_option("--trace", options->trace,
                 "for perfetto: a file of torch.profiler, among whose events the snapshots go")
      ->type_name("FILE");
  app.add_flag("-f,--force", options->force, "overwrite");
  return [options](Context& context) { return RunExport(context, *options); };
}

}  // namespace cgdebug::cli
