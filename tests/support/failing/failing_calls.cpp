// For LD_PRELOAD: makes one system call, or one allocation, of a process fail. See failing_calls.h.
#include "tests/support/failing/failing_calls.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

// glibc's own names for the functions that this file replaces: dlsym() itself allocates.
extern "C" void* __libc_malloc(std::size_t bytes);
extern "C" void* __libc_calloc(std::size_t count, std::size_t bytes);
extern "C" void* __libc_realloc(void* old, std::size_t bytes);

namespace {

using cgdebug::test::FailKind;
using cgdebug::test::FailPlan;

FailPlan* plan = nullptr;
thread_local bool inside = false;

void KeepStack() {
  void* frames[24];
  const int count = backtrace(frames, 24);
  for (int i = 0; i < count; ++i) {
    Dl_info info = {};
    if (dladdr(frames[i], &info) == 0 || info.dli_fname == nullptr) continue;
    const char* name = strrchr(info.dli_fname, '/');
    snprintf(plan->stack[i], sizeof(plan->stack[i]), "%.90s+0x%lx",
             name == nullptr ? info.dli_fname : name + 1,
             static_cast<unsigned long>(static_cast<char*>(frames[i]) -
                                        static_cast<char*>(info.dli_fbase)));
  }
  plan->frames = static_cast<std::uint64_t>(count);
}

// As on a disk that takes long.
void WaitForRelease(std::uint32_t index) {
  __atomic_store_n(&plan->failed, 1, __ATOMIC_RELEASE);
  const timespec pause = {0, 1'000'000};
  while (__atomic_load_n(&plan->kind, __ATOMIC_ACQUIRE) == index) nanosleep(&pause, nullptr);
}

// Whether this call must fail; sets errno if so.
bool Fails(FailKind kind) {
  if (plan == nullptr || inside) return false;
  const auto index = static_cast<std::uint32_t>(kind);
  const std::uint64_t call = __atomic_add_fetch(&plan->calls[index], 1, __ATOMIC_RELAXED);
  if (__atomic_load_n(&plan->kind, __ATOMIC_ACQUIRE) != index || plan->nth > call) return false;
  if (plan->error == 0) {
    WaitForRelease(index);
    return false;
  }
  if (plan->nth != call) return false;
  inside = true;
  KeepStack();
  __atomic_store_n(&plan->failed, 1, __ATOMIC_RELEASE);
  inside = false;
  errno = plan->error;
  return true;
}

bool IsMeant() {
  const char* wanted = getenv("CGDEBUG_FAIL_IN");
  char name[64] = {};
  const int fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, "/proc/self/comm", O_RDONLY));
  if (wanted == nullptr || fd < 0) return false;
  const ssize_t got = read(fd, name, sizeof(name) - 1);
  close(fd);
  name[strcspn(name, "\n")] = '\0';
  return got > 0 && strncmp(name, wanted, 15) == 0;
}

__attribute__((constructor)) void Prepare() {
  const char* path = getenv("CGDEBUG_FAIL_FILE");
  if (path == nullptr || !IsMeant()) return;
  void* unused[2];
  backtrace(unused, 2);  // loads its library now
  const int fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC));
  if (fd < 0) abort();
  void* map = reinterpret_cast<void*>(
      syscall(SYS_mmap, nullptr, sizeof(FailPlan), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0L));
  close(fd);
  if (map == MAP_FAILED) abort();
  plan = static_cast<FailPlan*>(map);
}

int OpenAt(int directory, const char* path, int flags, mode_t mode) {
  if (Fails(FailKind::kOpen)) return -1;
  return static_cast<int>(syscall(SYS_openat, directory, path, flags, mode));
}

mode_t ModeOf(int flags, va_list arguments) {
  const bool has_mode = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  return has_mode ? va_arg(arguments, mode_t) : 0;
}

// Pipes and counters of the kernel cannot fail as a disk does.
bool CanFail(int fd) {
  struct stat info = {};
  return fstat(fd, &info) == 0 && (S_ISREG(info.st_mode) || S_ISSOCK(info.st_mode));
}
bool WriteFails(int fd) { return CanFail(fd) && Fails(FailKind::kWrite); }

// The C library's own function, for functions that open files without a replaceable call.
template <typename Function>
Function Next(const char* name) {
  inside = true;
  void* found = dlsym(RTLD_NEXT, name);
  inside = false;
  return reinterpret_cast<Function>(found);
}

ssize_t Positioned(long number, int fd, const void* data, std::size_t count, off_t offset) {
  if (WriteFails(fd)) return -1;
  return syscall(number, fd, data, count, offset, 0L);
}

}  // namespace

extern "C" {

// --- open ------------------------------------------------------------------------------------

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return OpenAt(AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return OpenAt(AT_FDCWD, path, flags, mode);
}
int openat(int directory, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return OpenAt(directory, path, flags, mode);
}
int openat64(int directory, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return OpenAt(directory, path, flags, mode);
}
int shm_open(const char* name, int flags, mode_t mode) {
  if (Fails(FailKind::kOpen)) return -1;
  static const auto next = Next<int (*)(const char*, int, mode_t)>("shm_open");
  return next(name, flags, mode);
}
FILE* fopen(const char* path, const char* mode) {
  if (Fails(FailKind::kOpen)) return nullptr;
  static const auto next = Next<FILE* (*)(const char*, const char*)>("fopen");
  return next(path, mode);
}
FILE* fopen64(const char* path, const char* mode) { return fopen(path, mode); }
DIR* opendir(const char* path) {
  if (Fails(FailKind::kOpen)) return nullptr;
  static const auto next = Next<DIR* (*)(const char*)>("opendir");
  return next(path);
}

// --- memory and files ------------------------------------------------------------------------

void* mmap(void* address, std::size_t bytes, int protection, int flags, int fd,
           off_t offset) noexcept {
  if (Fails(FailKind::kMmap)) return MAP_FAILED;
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, bytes, protection, flags, fd, offset));
}
void* mmap64(void* address, std::size_t bytes, int protection, int flags, int fd,
             off_t offset) noexcept {
  return mmap(address, bytes, protection, flags, fd, offset);
}

int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  if (Fails(FailKind::kFallocate)) return -1;
  return static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, bytes));
}
int fallocate64(int fd, int mode, off_t offset, off_t bytes) {
  return fallocate(fd, mode, offset, bytes);
}
int posix_fallocate(int fd, off_t offset, off_t bytes) {
  const int before = errno;
  const int status = fallocate(fd, 0, offset, bytes) == 0 ? 0 : errno;
  errno = before;
  return status;
}
int posix_fallocate64(int fd, off_t offset, off_t bytes) {
  return posix_fallocate(fd, offset, bytes);
}

ssize_t write(int fd, const void* data, std::size_t bytes) {
  if (WriteFails(fd)) return -1;
  return syscall(SYS_write, fd, data, bytes);
}
ssize_t writev(int fd, const iovec* parts, int count) {
  if (WriteFails(fd)) return -1;
  return syscall(SYS_writev, fd, parts, count);
}
ssize_t pwrite(int fd, const void* data, std::size_t bytes, off_t offset) {
  return Positioned(SYS_pwrite64, fd, data, bytes, offset);
}
ssize_t pwrite64(int fd, const void* data, std::size_t bytes, off_t offset) {
  return Positioned(SYS_pwrite64, fd, data, bytes, offset);
}
ssize_t pwritev(int fd, const iovec* parts, int count, off_t offset) {
  return Positioned(SYS_pwritev, fd, parts, static_cast<std::size_t>(count), offset);
}
ssize_t pwritev64(int fd, const iovec* parts, int count, off_t offset) {
  return Positioned(SYS_pwritev, fd, parts, static_cast<std::size_t>(count), offset);
}

int fdatasync(int fd) {
  if (Fails(FailKind::kSync)) return -1;
  return static_cast<int>(syscall(SYS_fdatasync, fd));
}
int fsync(int fd) {
  if (Fails(FailKind::kSync)) return -1;
  return static_cast<int>(syscall(SYS_fsync, fd));
}

int rename(const char* from, const char* to) noexcept {
  if (Fails(FailKind::kRename)) return -1;
  return static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

int accept4(int fd, sockaddr* address, socklen_t* bytes, int flags) {
  if (Fails(FailKind::kAccept)) return -1;
  return static_cast<int>(syscall(SYS_accept4, fd, address, bytes, flags));
}
int accept(int fd, sockaddr* address, socklen_t* bytes) { return accept4(fd, address, bytes, 0); }

// --- allocations: operator new calls malloc --------------------------------------------------

void* malloc(std::size_t bytes) noexcept {
  return Fails(FailKind::kMalloc) ? nullptr : __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) noexcept {
  return Fails(FailKind::kMalloc) ? nullptr : __libc_calloc(count, bytes);
}
void* realloc(void* old, std::size_t bytes) noexcept {
  return Fails(FailKind::kMalloc) ? nullptr : __libc_realloc(old, bytes);
}

}  // extern "C"
