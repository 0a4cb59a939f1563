#include "daemon/core/recording/files/remote_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>  // Atomic: see remote_files

namespace cgdebug::recording {
namespace {

// Never freed: files may be read until the process ends. Atomic: two threads of Python may load the
// reader at once.
std::atomic<RemoteFiles*> remote_files{nullptr};  // Atomic: as above

bool IsOfScheme(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '+' ||
         c == '-' || c == '.';
}

}  // namespace

bool IsUrl(std::string_view path) {
  const std::size_t end = path.find("://");
  return end != std::string_view::npos && end > 1 &&
         std::ranges::all_of(path.substr(0, end), IsOfScheme);
}

void SetRemoteFiles(std::unique_ptr<RemoteFiles> files) {
  remote_files.store(files.release(), std::memory_order_release);
}

Result<RemoteFiles*> FindRemoteFiles(const std::string& url) {
  if (RemoteFiles* files = remote_files.load(std::memory_order_acquire)) return files;
  return Error{
      fmt::format("this program reads no URLs ({}). In Python: cgdebug.open(\"{}\")", url, url)};
}

}  // namespace cgdebug::recording
