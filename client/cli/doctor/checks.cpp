#include "client/cli/doctor/checks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pwd.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>

#include "daemon/core/endpoint/autostart.h"
#include "daemon/core/endpoint/endpoint.h"
#include "daemon/core/endpoint/runtime_dir.h"
#include "daemon/core/numerics/format.h"
#include "proto/layout/not_seen.h"
#include "proto/layout/ring_layout.h"
#include "proto/layout/segment_layout.h"

namespace cgdebug::cli {
namespace {

namespace fs = std::filesystem;

// A probe keeps several tensors of each site in a ring: with less than this, few values fit.
constexpr std::uint64_t kSmallShmBytes = 1ull << 30;
// What a watched module takes for each shape and graph: statistics, and the same in a run that is
// recorded.
constexpr std::uint64_t kWatchedBytes =
    layout::ComputeGeometry(layout::kStatsBytes, layout::kStatsCapacity).block_bytes;
constexpr std::uint64_t kRecordedBytes =
    layout::ComputeGeometry(layout::kStatsBytes, layout::kLosslessStatsCapacity).block_bytes;
// Of a process beside its rings: its control file, and ends of extents.
constexpr std::uint64_t kProcessBytes = 1ull << 20;
constexpr std::size_t kMostJobs = 5;
constexpr std::uint64_t kFirstRegularUid = 1000;
constexpr int kOldestDriver = 525;  // the first that runs CUDA 12

std::string ReadText(const fs::path& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

std::string Container() {
  if (std::getenv("KUBERNETES_SERVICE_HOST") != nullptr) return "kubernetes";
  if (::access("/.dockerenv", F_OK) == 0) return "docker";
  if (::access("/run/.containerenv", F_OK) == 0) return "podman";
  return "";
}

std::string ShmFix(const std::string& container) {
  if (container == "kubernetes") {
    return "mount an emptyDir with medium: Memory and a sizeLimit of some GiB at /dev/shm";
  }
  if (container == "docker" || container == "podman") {
    return fmt::format("{} run --shm-size=8g ...   (or --ipc=host)", container);
  }
  return "sudo mount -o remount,size=50% /dev/shm";
}

// How many rings of `bytes` have room.
std::uint64_t Fitting(std::uint64_t free_bytes, std::uint64_t bytes) {
  return free_bytes < kProcessBytes ? 0 : (free_bytes - kProcessBytes) / bytes;
}

// "62 MiB": what watching `modules` takes.
std::string NeedText(std::uint64_t modules, std::uint64_t bytes) {
  return numerics::FormatBytes(modules * bytes + kProcessBytes);
}

// Whether `facts.modules` can be watched.
void JudgeModules(const ShmFacts& facts, Check* check) {
  const std::uint64_t watched = Fitting(facts.free_bytes, kWatchedBytes);
  const std::uint64_t recorded = Fitting(facts.free_bytes, kRecordedBytes);
  const std::string modules = GroupedCount(facts.modules, "module");
  if (facts.modules > watched) {
    check->level = Level::kFail;
    check->text += fmt::format(": too little, run --watch '*' of {} needs {}", modules,
                               NeedText(facts.modules, kWatchedBytes));
    check->fix = ShmFix(facts.container) + "   (or watch fewer: --watch 'layers.3.*')";
  } else if (facts.modules > recorded) {
    check->level = Level::kWarn;
    check->text += fmt::format(
        ": enough for run --watch '*' of {} ({}), too little for run --watch '*' -o ({})", modules,
        NeedText(facts.modules, kWatchedBytes), NeedText(facts.modules, kRecordedBytes));
    check->fix = ShmFix(facts.container) + "   (or with -o: --lossy)";
  } else {
    check->text += fmt::format(": enough for run --watch '*' of {} ({}; with -o {})", modules,
                               NeedText(facts.modules, kWatchedBytes),
                               NeedText(facts.modules, kRecordedBytes));
  }
}

}  // namespace

Check JudgeShm(const ShmFacts& facts) {
  Check check{"/dev/shm", Level::kOk, "", ""};
  if (!facts.exists || !facts.writable) {
    check.level = Level::kFail;
    check.text = facts.exists ? "not writable: no probe can create its rings" : "does not exist";
    check.fix = facts.exists ? "sudo chmod 1777 /dev/shm" : "sudo mount -t tmpfs tmpfs /dev/shm";
    return check;
  }
  check.text = fmt::format("{} of {} free", numerics::FormatBytes(facts.free_bytes),
                           numerics::FormatBytes(facts.total_bytes));
  if (!facts.container.empty()) check.text += " in a container (" + facts.container + ")";
  if (facts.modules > 0) {
    JudgeModules(facts, &check);
    return check;
  }
  if (facts.free_bytes < facts.total_bytes / 20) {
    check.level = Level::kFail;
    check.text += ": nearly full, a new probe will be refused";
    check.fix = "cgdebug-cli ps -a   to see who holds rings, then " + ShmFix(facts.container);
  } else if (facts.total_bytes < kSmallShmBytes) {
    check.level = Level::kWarn;
    check.text +=
        fmt::format(": enough for run --watch '*' of {} (with -o {}), little for values of tensors",
                    GroupedCount(Fitting(facts.free_bytes, kWatchedBytes), "module"),
                    FormatGrouped(Fitting(facts.free_bytes, kRecordedBytes)));
    check.fix = ShmFix(facts.container);
  }
  return check;
}

std::vector<Check> JudgeJobs(const std::vector<live::Session>& sessions, std::uint64_t free_bytes) {
  std::vector<Check> checks;
  std::size_t left_out = 0;
  for (const live::Session& session : sessions) {
    if (session.state != live::SessionState::kAlive || session.slots == 0) continue;
    Check check{"job", Level::kOk, "", ""};
    check.text = fmt::format("{} holds {} for {}", Printable(session.label),
                             numerics::FormatBytes(session.shm_bytes),
                             GroupedCount(session.slots, "tensor"));
    for (const layout::NotSeen& not_seen : session.not_seen) {
      if (not_seen.kind != layout::NotSeenKind::kRefused ||
          not_seen.reason.find(layout::kShmDirectory) == std::string::npos) {
        continue;
      }
      check.level = Level::kFail;
      check.text += "; " + Printable(layout::ToText(not_seen));
      check.fix = ShmFix(Container());
    }
    if (check.level == Level::kOk && free_bytes < session.shm_bytes) {
      check.level = Level::kWarn;
      check.text += "; another of this size has no room";
      check.fix = ShmFix(Container());
    }
    if (check.level == Level::kOk && checks.size() >= kMostJobs) {
      ++left_out;
    } else {
      checks.push_back(std::move(check));
    }
  }
  if (left_out > 0) {
    checks.push_back({"job", Level::kOk, fmt::format("{} more have room", left_out), ""});
  }
  return checks;
}

Check JudgeRemoveIpc(std::string_view config, bool has_logind, std::uint64_t uid, bool lingers) {
  Check check{"RemoveIPC", Level::kOk, "", ""};
  if (!has_logind) {
    check.text = "no systemd-logind: nothing deletes shared memory at logout";
    return check;
  }
  bool removes = true;  // systemd's default
  const std::string text(config);
  static const std::regex kSetting(R"((?:^|\n)[ \t]*RemoveIPC[ \t]*=[ \t]*(\w+))");
  for (std::sregex_iterator it(text.begin(), text.end(), kSetting), end; it != end; ++it) {
    const std::string value = (*it)[1];
    removes = value == "yes" || value == "true" || value == "1" || value == "on";
  }
  if (!removes) check.text = "off: rings outlive a logout";
  if (removes && uid < kFirstRegularUid) check.text = "does not concern a system user";
  if (removes && uid >= kFirstRegularUid && lingers) check.text = "on, but this user lingers";
  if (!check.text.empty()) return check;
  check.level = Level::kWarn;
  check.text = "on: when your last login ends, systemd deletes the rings of jobs that still run";
  check.fix = "loginctl enable-linger";
  return check;
}

Check JudgeNvidia(std::string_view text) {
  Check check{"NVIDIA driver", Level::kOk, "", ""};
  if (text.empty()) {
    check.level = Level::kWarn;
    check.text = "not loaded: recordings and CPU tensors work, CUDA tensors do not";
    check.fix = "install NVIDIA's driver, or in a container: docker run --gpus all ...";
    return check;
  }
  static const std::regex kVersion(R"((\d{3,})\.[\d.]+)");
  std::cmatch match;
  if (!std::regex_search(text.data(), text.data() + text.size(), match, kVersion)) {
    check.level = Level::kWarn;
    check.text = "of a version that cannot be read from /proc/driver/nvidia/version";
    return check;
  }
  check.text = match[0].str();
  if (std::atoi(match[1].str().c_str()) < kOldestDriver) {
    check.level = Level::kWarn;
    check.text += ": older than CUDA 12 needs";
    check.fix = fmt::format("install driver {} or newer", kOldestDriver);
  }
  return check;
}

Check CheckShm(std::uint64_t modules) {
  ShmFacts facts;
  facts.modules = modules;
  facts.container = Container();
  struct statvfs info {};
  facts.exists = ::statvfs(layout::kShmDirectory, &info) == 0;
  facts.writable = ::access(layout::kShmDirectory, W_OK | X_OK) == 0;
  facts.total_bytes = std::uint64_t{info.f_blocks} * info.f_frsize;
  facts.free_bytes = std::uint64_t{info.f_bavail} * info.f_frsize;
  return JudgeShm(facts);
}

Check CheckMemlock() {
  Check check{"memlock", Level::kOk, "unlimited", ""};
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur == RLIM_INFINITY) return check;
  check.text = fmt::format("{}; CUDA's own registrations are not counted by most drivers",
                           numerics::FormatBytes(limit.rlim_cur));
  if (limit.rlim_cur < (1u << 20)) {
    check.level = Level::kWarn;
    check.fix = "ulimit -l unlimited   (only if a probe's lane says that registration failed)";
  }
  return check;
}

// The daemon prints into a job's terminal through /proc/<pid>/fd.
Check CheckProcFd() {
  Check check{"/proc/<pid>/fd", Level::kOk, "visible: printed tensors reach the job's terminal",
              ""};
  const std::string mounts = ReadText("/proc/self/mountinfo");
  const bool hides =
      std::regex_search(mounts, std::regex(R"( /proc [^\n]*hidepid=([12]|noaccess|invisible))"));
  std::error_code failure;
  fs::directory_iterator(fmt::format("/proc/{}/fd", ::getpid()), failure);
  if (failure) {
    check.level = Level::kWarn;
    check.text = "not readable: printed tensors appear in cgdebug-cli tail only";
    check.fix = "mount /proc without restrictions, or use: cgdebug-cli tail -f";
  } else if (hides) {
    check.text = "visible for your own processes (hidepid is set)";
  }
  return check;
}

Check CheckRemoveIpc() {
  std::string config = ReadText("/etc/systemd/logind.conf");
  std::error_code failure;
  for (const char* directory : {"/usr/lib/systemd/logind.conf.d", "/etc/systemd/logind.conf.d",
                                "/run/systemd/logind.conf.d"}) {
    for (const auto& entry : fs::directory_iterator(directory, failure)) {
      config += "\n" + ReadText(entry.path());
    }
  }
  const bool has_logind = ::access("/run/systemd/seats", F_OK) == 0;
  const passwd* user = ::getpwuid(::geteuid());
  const std::string linger =
      std::string("/var/lib/systemd/linger/") + (user == nullptr ? "" : user->pw_name);
  const bool lingers = user != nullptr && ::access(linger.c_str(), F_OK) == 0;
  return JudgeRemoveIpc(config, has_logind, ::geteuid(), lingers);
}

Check CheckNvidia() { return JudgeNvidia(ReadText("/proc/driver/nvidia/version")); }

Check CheckRuntimeDir(Context& context) {
  Check check{"socket", Level::kOk, "", ""};
  const Result<std::string> path =
      SocketPath(RuntimeEnvironment::OfThisProcess(), context.options.socket);
  check.text = path.ok() ? *path : path.error().message;
  if (!path.ok()) check.level = Level::kFail;
  return check;
}

Check CheckDaemon(Context& context) {
  Check check{"daemon", Level::kOk, "", ""};
  client::ConnectOptions connect = context.MakeConnectOptions();
  connect.start_daemon = false;
  const Result<void> connected = context.client().Connect(connect);
  if (connected.ok()) {
    const std::string& version = context.client().daemon_version();
    check.text = fmt::format("answers, version {} (pid {})", Printable(version),
                             context.client().daemon_pid());
    if (version != CGDEBUG_VERSION) {
      check.level = Level::kWarn;
      check.text += ", this is " CGDEBUG_VERSION;
      check.fix = "cgdebug-cli daemon stop   (the next command starts the new one)";
    }
    return check;
  }
  if (context.client().last_failure() != client::Failure::kNoDaemon) {
    return {"daemon", Level::kFail, connected.error().message, ""};
  }
  const Result<std::string> executable = wire::FindDaemon();
  if (!executable.ok()) return {"daemon", Level::kFail, executable.error().message, ""};
  check.text = fmt::format("not running; starts by itself when needed ({})", *executable);
  return check;
}

std::vector<Check> CheckJobs(Context& context) {
  if (context.client().daemon_pid() == 0) return {};
  const Result<live::Status> status = live::GetStatus(context.client());
  return status.ok() ? JudgeJobs(status->sessions, status->shm_free_bytes) : std::vector<Check>();
}

}  // namespace cgdebug::cli
