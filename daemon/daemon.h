// daemon.h: puts the parts together.
#pragma once

#include <memory>

#include "daemon/instance.h"
#include "daemon/metrics/exporter.h"
#include "daemon/options.h"

namespace cgdebug {

// Reads and serves until there is nothing left to do or a client or signal stops it. The calling
// thread serves; the other threads are in README.md. `exporter` may be null. Ends the process if
// memory runs out. Requires: the log is set up; SIGTERM and SIGINT are not blocked.
void RunDaemon(const DaemonOptions& options, const std::string& socket_path, Instance instance,
               std::unique_ptr<metrics::Exporter> exporter) noexcept;

}  // namespace cgdebug
