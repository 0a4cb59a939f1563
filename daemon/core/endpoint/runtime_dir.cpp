#include "daemon/core/endpoint/runtime_dir.h"

#include <pwd.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "daemon/core/endpoint/daemon_mark.h"

namespace cgdebug {
namespace {

constexpr mode_t kOthersMayWrite = S_IWGRP | S_IWOTH;
constexpr const char* kSocketName = "daemon.sock";
constexpr const char* kElsewhere = "export CGDEBUG_SOCKET=$HOME/.cgdebug.sock";

std::string UserText(uid_t uid) {
  const passwd* user = ::getpwuid(uid);
  return "uid " + std::to_string(uid) +
         (user == nullptr ? "" : " (" + std::string(user->pw_name) + ")");
}

bool IsPrivateDirectory(const struct stat& info, uid_t uid) {
  return S_ISDIR(info.st_mode) && info.st_uid == uid && (info.st_mode & kOthersMayWrite) == 0;
}

// Checks whether `directory`, if it exists, may hold the daemon's socket.
Result<void> CheckDirectory(const std::string& directory, uid_t uid) {
  struct stat info {};
  if (::lstat(directory.c_str(), &info) != 0) {
    if (errno == ENOENT) return {};
    return ErrnoError("cannot look at " + directory);
  }
  const std::string refused = "refusing to use " + directory + " for the daemon's socket: ";
  if (S_ISLNK(info.st_mode)) {
    return Error{refused + "it is not a directory but a symbolic link of " + UserText(info.st_uid) +
                 ". Type: rm " + directory + "   or: " + kElsewhere};
  }
  if (!S_ISDIR(info.st_mode)) {
    return Error{refused + "it is not a directory but a file of " + UserText(info.st_uid) +
                 ". Type: rm " + directory + "   or: " + kElsewhere};
  }
  if (info.st_uid != uid) {
    return Error{refused + "it belongs to " + UserText(info.st_uid) + ", not to " + UserText(uid) +
                 ", who could pose as the daemon. Type: " + kElsewhere};
  }
  if ((info.st_mode & kOthersMayWrite) != 0) {
    return Error{refused + "others than its owner, " + UserText(info.st_uid) +
                 ", may write it. Type: chmod 0700 " + directory};
  }
  return {};
}

// Several processes of a job may do this at once, so an existing directory is fine.
Result<void> MakeDirectory(const std::string& directory) {
  if (::mkdir(directory.c_str(), S_IRWXU) == 0 || errno == EEXIST) return {};
  return ErrnoError("cannot create " + directory +
                    " for the daemon's socket (to choose another "
                    "place, type: " +
                    kElsewhere + ")");
}

std::string DefaultDirectory(const RuntimeEnvironment& environment) {
  struct stat info {};
  const std::string& xdg = environment.xdg_runtime_dir;
  if (xdg.starts_with('/') && ::stat(xdg.c_str(), &info) == 0 &&
      IsPrivateDirectory(info, environment.uid)) {
    return xdg + "/cgdebug";
  }
  return environment.tmp_dir + "/cgdebug-" + std::to_string(environment.uid);
}

Result<std::string> CheckLength(std::string path) {
  constexpr std::size_t kMaxBytes = sizeof(sockaddr_un::sun_path) - 1;
  if (path.size() <= kMaxBytes) return path;
  return Error{"the socket path has " + std::to_string(path.size()) + " bytes, the system allows " +
               std::to_string(kMaxBytes) + ": " + path +
               ". Type: export CGDEBUG_SOCKET=/tmp/NAME.sock"};
}

Result<std::string> Locate(const RuntimeEnvironment& environment, const std::string& flag_path,
                           bool create) {
  std::string chosen = flag_path.empty() ? environment.socket : flag_path;
  if (!chosen.empty()) {
    // The daemon leaves its working directory; its clients do not.
    if (!chosen.starts_with('/')) chosen = std::filesystem::absolute(chosen).string();
    const std::size_t slash = chosen.rfind('/');
    if (create && slash != std::string::npos && slash != 0) {
      const Result<void> made = MakeDirectory(chosen.substr(0, slash));
      if (!made.ok()) return made.error();
    }
    return CheckLength(std::move(chosen));
  }
  if (!environment.mark_dir.empty()) {
    std::string marked = MarkedSocket(environment.mark_dir);
    if (!marked.empty()) return CheckLength(std::move(marked));
  }
  const std::string directory = DefaultDirectory(environment);
  if (create) {
    const Result<void> made = MakeDirectory(directory);
    if (!made.ok()) return made.error();
  }
  const Result<void> checked = CheckDirectory(directory, environment.uid);
  if (!checked.ok()) return checked.error();
  return CheckLength(directory + "/" + kSocketName);
}

}  // namespace

RuntimeEnvironment RuntimeEnvironment::OfThisProcess() {
  RuntimeEnvironment environment = OfThisDaemon();
  environment.mark_dir = "/dev/shm";
  return environment;
}

bool IsChosen(const RuntimeEnvironment& environment, const std::string& flag_path) {
  return !flag_path.empty() || !environment.socket.empty();
}

RuntimeEnvironment RuntimeEnvironment::OfThisDaemon() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  RuntimeEnvironment environment;
  environment.socket = variable("CGDEBUG_SOCKET");
  environment.xdg_runtime_dir = variable("XDG_RUNTIME_DIR");
  environment.uid = ::geteuid();
  return environment;
}

Result<std::string> SocketPath(const RuntimeEnvironment& environment,
                               const std::string& flag_path) {
  return Locate(environment, flag_path, /*create=*/false);
}

Result<std::string> PrepareSocketPath(const RuntimeEnvironment& environment,
                                      const std::string& flag_path) {
  return Locate(environment, flag_path, /*create=*/true);
}

}  // namespace cgdebug
