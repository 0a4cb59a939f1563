#include "libprobe/ring/segment/shared_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "proto/layout/segment_layout.h"

namespace cgdebug::ring {
namespace bip = boost::interprocess;
namespace {

constexpr double kMiB = 1024.0 * 1024.0;
constexpr std::size_t kPieceBytes = 2 << 20;

std::string MiB(double bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), bytes < kMiB ? "%.3f MiB" : "%.1f MiB", bytes / kMiB);
  return text;
}

std::string NoSpaceText(std::size_t bytes) {
  const ShmSpace space = GetShmSpace();
  const double needed = static_cast<double>(bytes);
  std::string text =
      std::string(layout::kShmDirectory) + " is too small: " + MiB(needed) + " more are needed";
  if (space.total_bytes > 0) {
    text += ", " + MiB(space.free_bytes) + " of " + MiB(space.total_bytes) + " are free";
  }
  unsigned long suggested_gib = 8;
  while (static_cast<double>(suggested_gib) * 1024 * kMiB <
         2 * (space.total_bytes - space.free_bytes + needed)) {
    suggested_gib *= 2;
  }
  return text + ". Give the container more shared memory (docker run --shm-size=" +
         std::to_string(suggested_gib) +
         "g, or a Kubernetes emptyDir with medium Memory at /dev/shm), or lower "
         "TensorRecord(capacity=...).";
}

// Checked here, because the kernel would fill /dev/shm to the brim before it gives up, and other
// processes would be refused meanwhile. It would also answer a file larger than the process may
// write with SIGXFSZ.
void CheckRoom(std::size_t file_bytes, std::size_t bytes) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && file_bytes > limit.rlim_cur) {
    throw SharedMemoryError("the job may write files of at most " +
                                MiB(static_cast<double>(limit.rlim_cur)) + ", and " +
                                MiB(static_cast<double>(file_bytes)) +
                                " of shared memory are needed. Type: ulimit -f unlimited",
                            false);
  }
  const ShmSpace space = GetShmSpace();
  if (space.total_bytes > 0 && static_cast<double>(bytes) > space.free_bytes) {
    throw SharedMemoryError(NoSpaceText(bytes), true);
  }
}

// In pieces: a signal, such as a profiler's timer, undoes the whole call, and a large one would
// never finish between two signals. Returns an errno.
int ReservePages(int fd, std::size_t begin, std::size_t end) {
  for (std::size_t offset = begin; offset < end; offset += kPieceBytes) {
    const std::size_t piece = std::min(kPieceBytes, end - offset);
    int status = 0;
    do {
      status = posix_fallocate(fd, static_cast<off_t>(offset), static_cast<off_t>(piece));
    } while (status == EINTR);
    if (status != 0) return status;
  }
  return 0;
}

// Boost throws for every failed step; the reason is in errno's terms.
std::string Reason(const bip::interprocess_exception& error) {
  const int code = error.get_native_error();
  return code != 0 ? std::strerror(code) : error.what();
}

}  // namespace

std::string ShmPath(const std::string& name) {
  return std::string(layout::kShmDirectory) + "/" + name;
}

ShmSpace GetShmSpace() noexcept {
  struct statvfs fs = {};
  if (statvfs(layout::kShmDirectory, &fs) != 0) return {0, 0};
  const double block = static_cast<double>(fs.f_frsize);
  return {block * static_cast<double>(fs.f_bavail), block * static_cast<double>(fs.f_blocks)};
}

SharedFile SharedFile::Create(const std::string& name, std::size_t bytes, std::size_t reserved) {
  CheckRoom(bytes, reserved);
  SharedFile file;
  std::string own_name = name;  // nothing is allocated between creating the file and naming it here
  try {
    file.object_ = bip::shared_memory_object(bip::create_only, name.c_str(), bip::read_write,
                                             bip::permissions(0600));
    file.name_ = std::move(own_name);
    int status = ReservePages(file.fd(), 0, reserved);
    // Boost's truncate() would reserve the rest as well.
    if (status == 0 && ftruncate(file.fd(), static_cast<off_t>(bytes)) != 0) status = errno;
    if (status != 0) {
      file.Unlink();
      file.object_ = {};  // give its pages back before the message says how many are free
      if (status == ENOSPC || status == ENOMEM)
        throw SharedMemoryError(NoSpaceText(reserved), true);
      throw SharedMemoryError("cannot reserve " + std::to_string(reserved) + " bytes in " +
                                  ShmPath(name) + ": " + std::strerror(status),
                              false);
    }
    file.region_ = bip::mapped_region(file.object_, bip::read_write, 0, bytes);
  } catch (const bip::interprocess_exception& error) {
    if (!file.name_.empty()) file.Unlink();
    const int code = error.get_native_error();
    if (code == ENOSPC) throw SharedMemoryError(NoSpaceText(reserved), true);
    throw SharedMemoryError(
        "cannot create " + ShmPath(name) + ": " + Reason(error) + ". Type: cgdebug-cli doctor",
        false, code);
  }
  return file;
}

void SharedFile::Reserve(std::size_t offset, std::size_t bytes) {
  CheckRoom(this->bytes(), bytes);
  const int status = ReservePages(fd(), offset, offset + bytes);
  if (status == ENOSPC || status == ENOMEM) throw SharedMemoryError(NoSpaceText(bytes), true);
  if (status != 0) {
    throw SharedMemoryError("cannot reserve " + std::to_string(bytes) + " bytes more in " +
                                ShmPath(name_) + ": " + std::strerror(status),
                            false);
  }
}

SharedFile SharedFile::Open(const std::string& name) {
  SharedFile file;
  try {
    file.object_ = bip::shared_memory_object(bip::open_only, name.c_str(), bip::read_write);
    file.name_ = name;
    struct stat info = {};
    if (fstat(file.fd(), &info) != 0) {
      throw SharedMemoryError("cannot inspect " + ShmPath(name) + ": " + std::strerror(errno),
                              false, errno);
    }
    if (info.st_uid != geteuid()) {
      throw SharedMemoryError(ShmPath(name) + " belongs to uid " + std::to_string(info.st_uid),
                              false);
    }
    if (!S_ISREG(info.st_mode) || info.st_size <= 0) {
      throw SharedMemoryError(ShmPath(name) + " is empty or not a regular file", false);
    }
    file.region_ = bip::mapped_region(file.object_, bip::read_write, 0,
                                      static_cast<std::size_t>(info.st_size));
  } catch (const bip::interprocess_exception& error) {
    const int code = error.get_native_error();
    throw SharedMemoryError("cannot open " + ShmPath(name) + ": " + Reason(error), false,
                            code == 0 ? EIO : code);
  }
  return file;
}

void SharedFile::Rename(const std::string& name) {
  if (std::rename(ShmPath(name_).c_str(), ShmPath(name).c_str()) != 0) {
    throw SharedMemoryError("cannot name " + ShmPath(name) + ": " + std::strerror(errno), false);
  }
  name_ = name;
}

void SharedFile::Unlink() noexcept { bip::shared_memory_object::remove(name_.c_str()); }

}  // namespace cgdebug::ring
