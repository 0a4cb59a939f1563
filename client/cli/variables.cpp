#include "client/cli/variables.h"

namespace cgdebug::cli {
namespace {

constexpr EnvironmentVariable kVariables[] = {
    {"CGDEBUG", "job",
     "`0`: starts no daemon and waits for none. `1`: a C++ job starts the daemon too, as a Python "
     "job does by default"},
    {"CGDEBUG_PROBES", "job",
     "which probes are on, as in `blk3.*,!*.grad`: globs with commas between them. `!GLOB` "
     "excludes, `re:REGEX` is a regular expression. Unset: all"},
    {"CGDEBUG_WATCH", "job",
     "watches the models of a job that imports cgdebug or that `run --watch` started: globs of "
     "module names with commas between them, `!GLOB` excludes. With `graph:`, `op:` or `kernel:` "
     "in front it makes an op log of what is captured; with `fx:` it puts probes inside compiled "
     "code"},
    {"CGDEBUG_WATCH_EAGER", "job",
     "`1`, as `run --eager` sets it: with `graph:`, `op:` or `kernel:` in `CGDEBUG_WATCH`, eager "
     "code is logged too. Each call of the model begins a replay"},
    {"CGDEBUG_ON", "job",
     "default trigger for rings in device memory, as `run --on`: `nan`, `inf`, `absmax>1e4`, "
     "`changed` or `mismatch`"},
    {"CGDEBUG_FAIL_ON", "job",
     "what `cgdebug.step()` and `cgdebug.check()` raise for, as `run --fail-on`: `nan`, `inf` "
     "(also -Inf, and so a mask of -Inf), `compare`, `replica`, with commas between them"},
    {"CGDEBUG_DEVICE_MIB", "job",
     "how many MiB of a device the rings with `where=\"auto\"` take at most. Unset: a quarter of "
     "its memory, and at most half of what is free"},
    {"CGDEBUG_LANE", "job", "`direct` or `callback`: the lane of probes with `lane=\"auto\"`"},
    {"CGDEBUG_OP_LOG_BATCH", "job",
     "how many rows of an op log one kernel computes at most: 1 to 64, by default 64. With 1, "
     "`where` names the very op that hangs"},
    {"CGDEBUG_OP_LOG_MIB", "job",
     "how many MiB of tensors a captured op log keeps at most until a kernel has computed their "
     "rows: by default 512. Less means more kernels"},
    {"CGDEBUG_WAIT_MS", "job",
     "how many milliseconds a ring that waits for room waits at most: 0 to 600000, by default "
     "2000"},
    {"CGDEBUG_LOSSLESS", "job",
     "`1`: every ring waits for room, as `run -o` sets it. `0`: no ring waits, even if a recording "
     "waits for the job"},
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
    {"PAGER", "`cgdebug-cli`",
     "the program that long output goes through on a terminal. Unset: `less -FRX`"},
    {"KUBERNETES_SERVICE_HOST", "`doctor`", "says how to enlarge `/dev/shm` there"},
};

}  // namespace

std::span<const EnvironmentVariable> EnvironmentVariables() { return kVariables; }

}  // namespace cgdebug::cli
