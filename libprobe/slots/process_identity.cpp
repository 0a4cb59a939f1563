#include "libprobe/slots/process_identity.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <mutex>
#include <string_view>
#include <system_error>

#include "cgdebug/probe.h"
#include "daemon/core/words/settings.h"
#include "libprobe/ring/segment/process_origin.h"
#include "proto/layout/url_password.h"

namespace cgdebug {
namespace {

std::string FirstOf(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') return value;
  }
  return {};
}

std::int32_t Number(const std::string& text, std::int32_t otherwise) {
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  return text.empty() || *end != '\0' ? otherwise : static_cast<std::int32_t>(value);
}

std::uint64_t Mix(std::uint64_t hash, std::string_view text) {  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash * 0x100000001b3;
}

// Ranks that meet at one address and have the same parent were started together. The parent's start
// time and PID namespace distinguish it from a later process with the same pid.
std::uint64_t Launch(const std::string& meeting) {
  std::string address = FirstOf({"MASTER_ADDR"});
  const std::string port = FirstOf({"MASTER_PORT"});
  if (address.empty() || port.empty()) address = meeting;
  if (address.empty()) return 0;
  const pid_t parent = getppid();
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::string& part :
       {address, port, std::to_string(parent), std::to_string(ring::StartTicks(parent)),
        std::to_string(ring::OwnPidNamespace())}) {
    hash = Mix(hash, part);
  }
  return hash == 0 ? 1 : hash;
}

std::string CommandLine() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  while (!text.empty() && text.back() == '\0') text.pop_back();
  for (char& c : text) {
    if (c == '\0') c = ' ';
  }
  return layout::HideUrlPasswords(text);  // recordings keep it
}

// $CGDEBUG_DIR, else "runs", as an absolute path; empty if the working directory is gone.
std::string RecordingsDirectory() {
  const std::string chosen = FirstOf({"CGDEBUG_DIR"});
  std::error_code error;
  const auto working = std::filesystem::current_path(error);
  if (error && !chosen.starts_with('/')) return {};
  return working / (chosen.empty() ? "runs" : chosen);
}

// As the daemon on it calls it.
std::string Socket() {
  const std::string chosen = FirstOf({"CGDEBUG_SOCKET"});
  if (chosen.empty() || chosen.starts_with('/')) return chosen;
  std::error_code error;
  const auto absolute = std::filesystem::absolute(chosen, error);
  return error ? chosen : absolute.string();
}

// One allocation may have several steps (srun), at once or one after the other, and each of them is
// a job of its own.
std::string SlurmRun() {
  const std::string job = FirstOf({"SLURM_JOB_ID"});
  const std::string step = FirstOf({"SLURM_STEP_ID"});
  return job.empty() || step.empty() ? job : job + "." + step;
}

// As the launcher calls it. torchrun says "none" without --rdzv-id.
std::string LaunchedRun() {
  const std::string run = FirstOf({"TORCHELASTIC_RUN_ID"});
  if (run == "none") return {};
  return run.empty() ? SlurmRun() : run;
}

// What SetRank() told.
struct GivenRank {
  std::mutex mutex;
  int rank = -1;
  int world_size = 1;
  std::string meeting;
};

GivenRank& Given() {
  static GivenRank given;
  return given;
}

}  // namespace

void SetRank(int rank, int world_size, const std::string& meeting) {
  GivenRank& given = Given();
  const std::lock_guard lock(given.mutex);
  given.rank = rank;
  given.world_size = world_size;
  given.meeting = meeting;
}

ring::Identity CurrentIdentity() {
  GivenRank& given = Given();
  const std::lock_guard lock(given.mutex);
  ring::Identity identity;
  identity.version = CGDEBUG_VERSION;
  identity.run_id = FirstOf({"CGDEBUG_RUN_ID"});
  if (identity.run_id.empty()) identity.run_id = LaunchedRun();
  identity.rank = Number(FirstOf({"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"}), given.rank);
  identity.world_size =
      Number(FirstOf({"WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"}), given.world_size);
  identity.restart_count =
      Number(FirstOf({"TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"}), 0);
  if (identity.rank >= 0) identity.launch = Launch(given.meeting);
  // torchrun gives a machine consecutive ranks; other launchers may distribute them in any order.
  if (!FirstOf({"TORCHELASTIC_RUN_ID"}).empty()) {
    identity.local_rank = Number(FirstOf({"LOCAL_RANK"}), -1);
    identity.local_world_size = Number(FirstOf({"LOCAL_WORLD_SIZE"}), 0);
  }
  identity.command = CommandLine();
  identity.socket = Socket();
  identity.recordings = RecordingsDirectory();
  identity.most_slots = static_cast<std::uint32_t>(
      words::ReadNumber("CGDEBUG_MAX_SLOTS").value_or(layout::kMaxSlots));
  char host[64] = {};
  if (gethostname(host, sizeof(host) - 1) == 0) identity.hostname = host;
  return identity;
}

}  // namespace cgdebug
