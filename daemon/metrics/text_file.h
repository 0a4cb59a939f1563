// text_file.h: the file that node_exporter's textfile collector reads.
#pragma once

#include <string>
#include <string_view>

#include "daemon/core/base/result.h"
#include "daemon/core/base/unique_fd.h"

namespace cgdebug::metrics {

// DIRECTORY/cgdebug.prom. A reader sees all of one text, or all of the next.
// Lifetime: the destructor removes the file, so that nobody takes it for the present.
class TextFile {
 public:
  // Fails: there is no such directory, it cannot be written, or another daemon writes there.
  static Result<TextFile> Open(const std::string& directory);

  TextFile(TextFile&&) = default;
  TextFile& operator=(TextFile&&) = delete;
  ~TextFile();

  Result<void> Replace(std::string_view text) const;
  const std::string& path() const { return path_; }

 private:
  TextFile(UniqueFd directory, std::string path)
      : directory_(std::move(directory)), path_(std::move(path)) {}

  UniqueFd directory_;  // locked
  std::string path_;
};

}  // namespace cgdebug::metrics
