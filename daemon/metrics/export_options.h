// export_options.h: where metrics go.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "daemon/core/base/result.h"

namespace cgdebug::metrics {

struct ExportOptions {
  std::string textfile;  // a directory; empty: no file
  std::string listen;    // HOST:PORT; empty: no HTTP. Port 0: any that is free
  std::chrono::milliseconds interval = std::chrono::seconds(15);  // of the text file
  std::size_t probes = 50;  // of each job, with series of their own

  bool any() const { return !textfile.empty() || !listen.empty(); }
};

// "localhost:9400" or "[::1]:9400". Fails: no host, or no port.
Result<std::string> ParseListen(const std::string& text);

}  // namespace cgdebug::metrics
