// disk_options.h: how a recording is written, for every command that starts one.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

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

// `options` outlives the parsing.
void AddDiskOptions(CLI::App& app, DiskOptions* options);
void Apply(const DiskOptions& options, v1::RecordStartRequest* request);

}  // namespace cgdebug::cli
