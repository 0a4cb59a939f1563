// remote_helper.h: URLs read by a Python beside this program, which runs python/cgdebug/_remote.py.
#pragma once

#include <sys/types.h>

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "client/analysis/json_number.h"
#include "daemon/core/base/unique_fd.h"
#include "daemon/core/recording/files/remote_files.h"

namespace cgdebug::cli {

// Starts the Python when the first URL is read, and ends it with this object or this process.
// Thread: any; they wait for each other.
class RemoteHelper : public recording::RemoteFiles {
 public:
  ~RemoteHelper() override;

  Result<std::optional<std::vector<recording::RemoteEntry>>> List(const std::string& url) override;
  Result<std::uint64_t> Size(const std::string& url) override;
  Result<void> Fetch(const std::string& url, std::uint64_t offset,
                     std::span<std::byte> buffer) override;

 private:
  Result<void> Start(const std::string& url);
  // Sends a request and receives its answer, whose "bytes" bytes go into `buffer`.
  Result<Json> Ask(const Json& request, std::span<std::byte> buffer = {});
  Error Ended();
  bool Receive(std::span<std::byte> buffer);

  std::mutex mutex_;  // guards what follows
  pid_t pid_ = -1;
  UniqueFd socket_;
};

}  // namespace cgdebug::cli
