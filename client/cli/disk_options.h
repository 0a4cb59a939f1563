// disk_options.h: how a recording is written, for every command that starts one.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "proto/control.pb.h"

namespace cgdebug::cli {

struct DiskOptions {
  std::string durability;
  std::uint64_t roll_bytes = 0;
  std::uint64_t max_bytes = 0;

  bool any() const { return !durability.empty() || roll_bytes != 0 || max_bytes != 0; }
};

// `options` outlives the parsing.
void AddDiskOptions(CLI::App& app, DiskOptions* options);
void Apply(const DiskOptions& options, v1::RecordStartRequest* request);

}  // namespace cgdebug::cli
