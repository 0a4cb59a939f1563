#include "client/cli/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "client/cli/context.h"
#include "daemon/core/base/unique_fd.h"

namespace cgdebug::cli {

Result<void> WriteFile(const std::string& path, bool force, std::string_view header,
                       std::string_view payload) {
  if (path == "-") {
    Context::PrintRaw(header);
    Context::PrintRaw(payload);
    return {};
  }
  const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | (force ? O_TRUNC : O_EXCL);
  const UniqueFd fd(::open(path.c_str(), flags, 0666));
  if (!fd && errno == EEXIST) {
    return Error{fmt::format("{} exists. To overwrite it, add: -f", path)};
  }
  if (!fd) return ErrnoError("cannot create " + path);
  for (std::string_view part : {header, payload}) {
    while (!part.empty()) {
      const ssize_t written = ::write(fd.get(), part.data(), part.size());
      if (written < 0) return ErrnoError("cannot write " + path);
      part.remove_prefix(static_cast<std::size_t>(written));
    }
  }
  return {};
}

}  // namespace cgdebug::cli
