// checks.h: what a machine needs for cgdebug, one check each.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "client/cli/context.h"
#include "client/live/status.h"

namespace cgdebug::cli {

enum class Level { kOk, kWarn, kFail };

struct Check {
  std::string name;
  Level level = Level::kOk;
  std::string text;
  std::string fix;  // what to type; empty when there is nothing to do
};

// --- decisions about what was read, apart from the reading so that tests can call them -----------

struct ShmFacts {
  bool exists = false;
  bool writable = false;
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::string container;      // "docker", "kubernetes", "podman"; empty outside
  std::uint64_t modules = 0;  // that are to be watched; 0: not known
};
// Whether what a watch needs has room there.
Check JudgeShm(const ShmFacts& facts);

// What each living job holds there, and whether another of its size has room in `free_bytes`. A
// probe that found no room is a failure.
std::vector<Check> JudgeJobs(const std::vector<live::Session>& sessions, std::uint64_t free_bytes);

// `config`: logind's configuration files, one after another, a later setting wins.
// `lingers`: systemd keeps the user's things after logout.
Check JudgeRemoveIpc(std::string_view config, bool has_logind, std::uint64_t uid, bool lingers);

// `text`: /proc/driver/nvidia/version, empty when there is none.
Check JudgeNvidia(std::string_view text);

// `output`: of `program -m cgdebug._doctor`, a JSON object in each line; `failed`: it did not end
// with 0.
std::vector<Check> JudgePython(const std::string& program, std::string_view output, bool failed);

// --- the machine ---------------------------------------------------------------------------------

// `modules`: how many are to be watched; 0: not known.
Check CheckShm(std::uint64_t modules);
Check CheckMemlock();
Check CheckProcFd();
Check CheckRemoveIpc();
Check CheckNvidia();
Check CheckRuntimeDir(Context& context);
Check CheckDaemon(Context& context);
// Requires: CheckDaemon() was called; empty if no daemon answered.
std::vector<Check> CheckJobs(Context& context);
// The environment variables of cgdebug: which are set, and which nobody can read.
std::vector<Check> CheckSettings();
// The Python of this program, what it can import, and whether probes work in it. Takes seconds:
// imports torch.
std::vector<Check> CheckPython();
// Control files of dead producers: how many bytes they keep, and whether a daemon reads them.
std::vector<Check> CheckStaleSegments(const std::string& directory);
// Files by which jobs and daemons of this user find each other, where somebody else has made one of
// that name: one check each.
std::vector<Check> CheckMarks(const std::string& directory);
// Says the same before a recording begins.
void NoteMarks(Context& context);

}  // namespace cgdebug::cli
