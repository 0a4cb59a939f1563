#include "libprobe/ring/shared_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "proto/layout/segment_layout.h"

namespace cgdebug::ring {
namespace bip = boost::interprocess;
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

std::string MiB(double bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), bytes < kMiB ? "%.3f MiB" : "%.1f MiB", bytes / kMiB);
  return text;
}

std::string NoSpaceText(std::size_t bytes) {
  std::string text = std::string(layout::kShmDirectory) +
                     " is too small: " + MiB(static_cast<double>(bytes)) + " more are needed";
  struct statvfs fs = {};
  if (statvfs(layout::kShmDirectory, &fs) == 0) {
    const double block = static_cast<double>(fs.f_frsize);
    text += ", " + MiB(block * static_cast<double>(fs.f_bavail)) + " of " +
            MiB(block * static_cast<double>(fs.f_blocks)) + " are free";
  }
  return text +
         ". Give the container more shared memory (docker run --shm-size=8g, or a Kubernetes "
         "emptyDir "
         "with medium Memory at /dev/shm), or lower TensorRecord(capacity=...).";
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

SharedFile SharedFile::Create(const std::string& name, std::size_t bytes) {
  SharedFile file;
  try {
    file.object_ = bip::shared_memory_object(bip::create_only, name.c_str(), bip::read_write,
                                             bip::permissions(0600));
    file.name_ = name;
    const int status = posix_fallocate(file.fd(), 0, static_cast<off_t>(bytes));
    if (status != 0) {
      file.Unlink();
      if (status == ENOSPC || status == ENOMEM) throw SharedMemoryError(NoSpaceText(bytes), true);
      throw SharedMemoryError("cannot reserve " + std::to_string(bytes) + " bytes in " +
                                  ShmPath(name) + ": " + std::strerror(status),
                              false);
    }
    file.region_ = bip::mapped_region(file.object_, bip::read_write, 0, bytes);
  } catch (const bip::interprocess_exception& error) {
    if (!file.name_.empty()) file.Unlink();
    const int code = error.get_native_error();
    if (code == ENOSPC) throw SharedMemoryError(NoSpaceText(bytes), true);
    throw SharedMemoryError(
        "cannot create " + ShmPath(name) + ": " + Reason(error) + ". Type: cgdebug-cli doctor",
        false);
  }
  return file;
}

SharedFile SharedFile::Open(const std::string& name) {
  SharedFile file;
  try {
    file.object_ = bip::shared_memory_object(bip::open_only, name.c_str(), bip::read_write);
    file.name_ = name;
    struct stat info = {};
    if (fstat(file.fd(), &info) != 0) {
      throw SharedMemoryError("cannot inspect " + ShmPath(name) + ": " + std::strerror(errno),
                              false);
    }
    if (info.st_uid != geteuid()) {
      throw SharedMemoryError(ShmPath(name) + " belongs to uid " + std::to_string(info.st_uid),
                              false);
    }
    if (!S_ISREG(info.st_mode) || info.st_size <= 0) {
      throw SharedMemoryError(ShmPath(name) + " is empty or no regular file", false);
    }
    file.region_ = bip::mapped_region(file.object_, bip::read_write, 0,
                                      static_cast<std::size_t>(info.st_size));
  } catch (const bip::interprocess_exception& error) {
    throw SharedMemoryError("cannot open " + ShmPath(name) + ": " + Reason(error), false);
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
