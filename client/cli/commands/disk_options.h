// disk_options.h: where a recording is written and how, for the commands that make one.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/control.pb.h"

namespace cgdebug::cli {

struct DiskOptions {
  std::string durability;
  std::uint64_t roll_bytes = 0;
  std::uint64_t max_bytes = 0;
  std::optional<std::uint64_t> min_free_bytes = std::nullopt;

  bool any() const {
    return !durability.empty() || roll_bytes != 0 || max_bytes != 0 || min_free_bytes;
  }
};

// Where to and which probes. `output` and `probes` outlive the parsing.
void AddRecordingOptions(CLI::App& app, std::string* output, std::vector<std::string>* probes);

// `options` outlives the parsing.
void AddDiskOptions(CLI::App& app, DiskOptions* options);
void Apply(const DiskOptions& options, v1::RecordStartRequest* request);

}  // namespace cgdebug::cli
