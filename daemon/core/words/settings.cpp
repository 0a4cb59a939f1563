#include "daemon/core/words/settings.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "daemon/core/base/glob.h"
#include "daemon/core/words/condition.h"
#include "daemon/core/words/finding_kinds.h"
#include "daemon/core/words/watch_level.h"

namespace cgdebug::words {
namespace {

Error Malformed(const std::string& name, const std::string& meant, const std::string& text) {
  return Error{name + " is " + meant + ", not '" + text + "'"};
}

Result<void> IsFlag(const std::string& name, const std::string& text) {
  if (text == "0" || text == "1") return {};
  return Malformed(name, "0 or 1", text);
}

Result<void> IsLane(const std::string& name, const std::string& text) {
  if (text == "direct" || text == "callback") return {};
  return Malformed(name, "direct or callback", text);
}

std::optional<std::uint64_t> ParseNumber(const std::string& text) {
  std::uint64_t number = 0;
  const char* const last = text.data() + text.size();
  const auto [end, failure] = std::from_chars(text.data(), last, number);
  if (failure != std::errc() || end != last) return std::nullopt;
  return number;
}

template <std::uint64_t kLeast, std::uint64_t kMost>
Result<void> IsNumber(const std::string& name, const std::string& text) {
  const std::optional<std::uint64_t> number = ParseNumber(text);
  if (number && *number >= kLeast && *number <= kMost) return {};
  return Malformed(
      name, "a whole number from " + std::to_string(kLeast) + " to " + std::to_string(kMost), text);
}

template <typename T>
Result<void> Outcome(const Result<T>& parsed) {
  if (!parsed.ok()) return parsed.error();
  return {};
}

Result<void> IsSelector(const std::string& name, const std::string& text) {
  const Result<Selector> selector = Selector::ParseList(text);
  if (!selector.ok()) return Error{name + ": " + selector.error().message};
  return {};
}

Result<void> IsWatched(const std::string& name, const std::string& text) {
  return Outcome(ParseWatched(text, name));
}

Result<void> IsCondition(const std::string& name, const std::string& text) {
  return Outcome(ParseCondition(text, name));
}

Result<void> AreFindingKinds(const std::string& name, const std::string& text) {
  return Outcome(ParseFindingKinds(text, name));
}

constexpr Setting kSettings[] = {
    {"CGDEBUG", "job",
     "`0`: starts no daemon and waits for none. `1`: a C++ job starts the daemon too, as a Python "
     "job does by default",
     &IsFlag},
    {"CGDEBUG_PROBES", "job",
     "which probes are on, as in `blk3.*,!*.grad`: globs with commas between them. `!GLOB` "
     "excludes, `re:REGEX` is a regular expression. Unset: all",
     &IsSelector},
    {"CGDEBUG_WATCH", "job",
     "watches the models of a job whose Python has the package, as pip installs it, or that "
     "imports it: globs of module names with commas between them, `!GLOB` excludes. With `graph:`, "
     "`op:` or `kernel:` in front it makes an op log of what is captured; with `fx:` it puts "
     "probes inside compiled code",
     &IsWatched},
    {"CGDEBUG_WATCH_EAGER", "job",
     "`1`, as `run --eager` sets it: with `graph:`, `op:` or `kernel:` in `CGDEBUG_WATCH`, eager "
     "code is logged too. Each call of the model begins a replay",
     &IsFlag},
    {"CGDEBUG_WATCH_VALUES", "job",
     "which rows of the op log that `CGDEBUG_WATCH` makes keep their values, as `run --values`: "
     "globs of names such as `fwd/layers.3.*`. They are called `ROW.value`",
     &IsSelector},
    {"CGDEBUG_WATCH_SKETCHES", "job",
     "of how many calls the outputs of the modules that `CGDEBUG_WATCH` names keep a sketch of "
     "each "
     "row, 32 bytes, as `run --sketches`: `diff --by request` compares rows by them. Recordings "
     "have those of all calls",
     &IsNumber<0, 1024>},
    {"CGDEBUG_ON", "job",
     "default trigger for rings in device memory, as `run --on`: `nan`, `inf`, `absmax>1e4`, "
     "`changed` or `mismatch`",
     &IsCondition},
    {"CGDEBUG_FAIL_ON", "job",
     "what `cgdebug.step()` and `cgdebug.check()` raise for, as `run --fail-on`: `nan`, `inf` "
     "(also -Inf), `mismatch`, `replica`, with commas between them. In rows of op logs, what "
     "`cgdebug-cli check` excuses does not count",
     &AreFindingKinds},
    {"CGDEBUG_DEVICE_MIB", "job",
     "how many MiB of a device the rings with `where=\"auto\"` take at most. Unset: a quarter of "
     "its memory, and at most half of what is free",
     &IsNumber<1, UINT32_MAX>},
    {"CGDEBUG_LANE", "job", "`direct` or `callback`: the lane of probes with `lane=\"auto\"`",
     &IsLane},
    {"CGDEBUG_MAX_SLOTS", "job",
     "how many probe slots the job may have at a time: 1 to 131072, by default 131072. A slot is a "
     "call of a probe in a graph, a shape of an eager one or a page of an op log, and takes 8 KiB "
     "of `/dev/shm` or more. What has no place is counted as not watched",
     &IsNumber<1, 131'072>},
    {"CGDEBUG_OP_LOG_BATCH", "job",
     "how many rows of an op log one kernel computes at most: 1 to 64, by default 64. With 1, "
     "`where` names the very op of a graph that hangs",
     &IsNumber<1, 64>},
    {"CGDEBUG_OP_LOG_MIB", "job",
     "how many MiB of tensors a captured op log keeps at most until a kernel has computed their "
     "rows: by default 512. Less means more kernels",
     &IsNumber<1, 1 << 20>},
    {"CGDEBUG_OP_LOG_EVERY", "job",
     "of captured graphs, op logs have the rows of each so many replays: 1, 1 + N, ... The others "
     "cost next to nothing. By default 1",
     &IsNumber<1, UINT32_MAX>},
    {"CGDEBUG_OP_LOG_FRAMES", "job",
     "how many lines of the stack a row of an op log has: 1 to 32, by default 1, the line that "
     "calls the op. `ops --stack` shows them",
     &IsNumber<1, 32>},
    {"CGDEBUG_OP_LOG_READS", "job",
     "`1`: what runs eagerly on a CPU looks again at the memory that an op reads. If it is no "
     "longer what was written there, its op log has a row `overwritten`, and `why` says so",
     &IsFlag},
    {"CGDEBUG_WAIT_MS", "job",
     "how many milliseconds a ring that waits for room waits at most: 0 to 600000, by default "
     "2000",
     &IsNumber<0, 600'000>},
    {"CGDEBUG_LAUNCH_BLOCKING", "job",
     "`1`, as `run --blocking` sets it: captured graphs are launched kernel by kernel, each is "
     "waited for, and one that fails or hangs is named with its op, module, line and tensors",
     &IsFlag},
    {"CGDEBUG_LOSSLESS", "job",
     "`1`: every ring waits for room, as `run -o` sets it. `0`: no ring waits, even if a recording "
     "waits for the job",
     &IsFlag},
    {"CGDEBUG_RACES", "job",
     "`1`, as `run --races` sets it: `races` and `why` name ops of a captured graph that touch the "
     "same bytes with no path between them",
     &IsFlag},
    {"CGDEBUG_ASK", "job",
     "`1`, as `run --ask` sets it: `ask` says what any op of a captured graph makes in its next "
     "replay",
     &IsFlag},
    {"CGDEBUG_REWIND", "job",
     "how many of the last replays of each captured graph `ask` can run again, as `run --rewind` "
     "sets it: their inputs are kept on the device, and a copy of the state that the graph "
     "changes, in at most `CGDEBUG_DEVICE_MIB`. Unset: under vLLM and SGLang, with "
     "`CGDEBUG_WATCH`, the last 64 decode steps, in at most 256 MiB; `0`: none",
     &IsNumber<0, 1 << 20>},
    {"CGDEBUG_CONFIG", "Python jobs, `run`",
     "a file of settings, such as `cgdebug.toml`: its keys are the variables that a job reads, in "
     "lower case and without `cgdebug_`, as in `watch = [\"blk*\", \"!blk3\"]` or `fail_on = "
     "\"nan\"`. A variable that is set comes before the file. `run` takes `./cgdebug.toml` by "
     "itself, and hands the settings to the job"},
    {"CGDEBUG_RUN_ID", "job, `run`",
     "the name of the run that the job's ranks belong to. It comes before `TORCHELASTIC_RUN_ID` "
     "and `SLURM_JOB_ID.SLURM_STEP_ID`"},
    {"CGDEBUG_DIR", "job, daemon",
     "where `TensorRecord(to=\"disk\")` writes: by default `runs` in the job's working directory"},
    {"CGDEBUG_SOCKET", "all",
     "the daemon's socket. A daemon on a socket of its own serves only the jobs and clients that "
     "name it"},
    {"CGDEBUG_DAEMON", "all",
     "the program `cgdebug-daemon`, if it is neither beside the program that starts it nor on "
     "`PATH`"},
    {"CGDEBUG_LOG", "daemon",
     "what it logs, as `--log-level`: a level such as `debug`, or components such as "
     "`+ingest,rpc`"},
    {"CGDEBUG_MAX_DISK", "daemon",
     "as `--max-disk`: a recording ends at this size, such as `20G`. One that a trigger makes "
     "leaves out the oldest replays of each probe instead. By default 0, no limit"},
    {"CGDEBUG_MIN_FREE_DISK", "daemon",
     "as `--min-free-disk`: recordings end before less of the disk is free; by default 64M"},
    {"CGDEBUG_METRICS_LISTEN", "daemon",
     "as `--metrics-listen`, also for a daemon that starts by itself: `HOST:PORT`"},
    {"CGDEBUG_METRICS_TEXTFILE", "daemon",
     "as `--metrics-textfile`, also for a daemon that starts by itself: a directory"},
    {"CGDEBUG_PYTHON", "`export`, `tools/`",
     "the Python to use. By default `export` takes the one beside `cgdebug-cli` or `python3`, and "
     "`tools/test` a virtual environment"},
    {"CGDEBUG_PREFIX", "`config`",
     "where the C++ headers and libraries are; `python -m cgdebug` sets it"},
    {"RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, "
     "TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT, SLURM_JOB_ID, SLURM_STEP_ID, SLURM_PROCID, "
     "SLURM_NTASKS, SLURM_RESTART_COUNT, OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE",
     "job", "which rank of which run it is"},
    {"XDG_RUNTIME_DIR", "all",
     "the socket lies in `$XDG_RUNTIME_DIR/cgdebug/`. Unset: in `/tmp/cgdebug-UID/`"},
    {"XDG_STATE_HOME, HOME", "daemon",
     "recordings of jobs whose files the daemon cannot reach lie in "
     "`$XDG_STATE_HOME/cgdebug/runs`. Unset: in `~/.local/state/cgdebug/runs`"},
    {"PATH", "all", "where `cgdebug-daemon` is looked for"},
    {"NO_COLOR, FORCE_COLOR, TERM, LC_ALL, LC_CTYPE, LANG", "`cgdebug-cli`",
     "colours, the status line, the screen of `top`, and ASCII instead of bars and Greek letters"},
    {"BROWSER, DISPLAY, WAYLAND_DISPLAY", "`report --open`",
     "the program that opens the report. Unset: `xdg-open`, where there is a screen"},
    {"PAGER", "`cgdebug-cli`",
     "the program that long output goes through on a terminal. Unset: `less -FRX`"},
    {"KUBERNETES_SERVICE_HOST", "`doctor`", "says how to enlarge `/dev/shm` there"},
};

const char* TextOf(const std::string& name) {
  const char* text = std::getenv(name.c_str());
  return text == nullptr ? "" : text;
}

}  // namespace

std::span<const Setting> Settings() { return kSettings; }

Result<void> CheckSetting(const std::string& name, const std::string& text) {
  const auto* const setting = std::find_if(std::begin(kSettings), std::end(kSettings),
                                           [&](const Setting& one) { return one.names == name; });
  const bool is_checked = setting != std::end(kSettings) && setting->check != nullptr;
  if (!is_checked || text.empty()) return {};
  return setting->check(name, text);
}

std::string ReadSetting(const std::string& name) {
  const std::string text = TextOf(name);
  return CheckSetting(name, text).ok() ? text : std::string();
}

std::optional<std::uint64_t> ReadNumber(const std::string& name) {
  return ParseNumber(ReadSetting(name));
}

std::vector<MalformedSetting> MalformedSettings() {
  std::vector<MalformedSetting> malformed;
  for (const Setting& setting : kSettings) {
    if (setting.check == nullptr) continue;
    const std::string name(setting.names);
    const Result<void> checked = CheckSetting(name, TextOf(name));
    if (!checked.ok()) malformed.push_back({name, checked.error().message});
  }
  return malformed;
}

}  // namespace cgdebug::words
