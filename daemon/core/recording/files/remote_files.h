// remote_files.h: files that are named by a URL, such as s3://bucket/runs/a.cgrec. Whoever can
// fetch them says so at its start; the reader of recordings asks here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/core/base/result.h"

namespace cgdebug::recording {

struct RemoteEntry {
  std::string name;  // within its folder
  std::uint64_t bytes = 0;
  bool is_folder = false;
};

// Thread: any, several at a time.
class RemoteFiles {
 public:
  RemoteFiles() = default;
  virtual ~RemoteFiles() = default;
  RemoteFiles(const RemoteFiles&) = delete;
  RemoteFiles& operator=(const RemoteFiles&) = delete;

  // What a folder holds now, in any order; nothing if there is no such folder.
  // Fails: nobody knows what it holds.
  virtual Result<std::optional<std::vector<RemoteEntry>>> List(const std::string& url) = 0;
  // The size of a file, as the last List() of its folder said.
  virtual Result<std::uint64_t> Size(const std::string& url) = 0;
  // Fills `buffer`. Fails: any byte is not to be had.
  virtual Result<void> Fetch(const std::string& url, std::uint64_t offset,
                             std::span<std::byte> buffer) = 0;
};

// "s3://bucket/key", "memory://a": letters, digits and "+-.", then "://".
bool IsUrl(std::string_view path);

// From now on URLs are read by `files`. Requires: called once, before any URL is read.
void SetRemoteFiles(std::unique_ptr<RemoteFiles> files);
// Fails: this program reads no URLs; says what does.
Result<RemoteFiles*> FindRemoteFiles(const std::string& url);

}  // namespace cgdebug::recording
