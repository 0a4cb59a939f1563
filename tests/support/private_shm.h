// private_shm.h: a /dev/shm of the test's own, so that no daemon of the machine takes its segments,
// nothing is left behind, and its size can be chosen.
#pragma once

#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace cgdebug::test {

// False if the system forbids it; it allows it for root and usually for others. Children share the
// mount. Requires: one thread, unless the caller is root.
inline bool UsePrivateShm(const std::string& size = "2g") {
  const uid_t uid = geteuid();
  const gid_t gid = getegid();
  if (unshare(CLONE_NEWNS) != 0) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/uid_map") << uid << ' ' << uid << " 1";
    std::ofstream("/proc/self/gid_map") << gid << ' ' << gid << " 1";
  }
  return mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("tmpfs", "/dev/shm", "tmpfs", 0, ("mode=1777,size=" + size).c_str()) == 0;
}

}  // namespace cgdebug::test
