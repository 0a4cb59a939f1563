// disk_options.h: where a recording is written and how, for the commands that make one.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "client/live/recordings.h"

namespace cgdebug::cli {

// Where to, whether a recording that is there goes, and which probes. All outlive the parsing.
void AddRecordingOptions(CLI::App& app, std::string* output, bool* force,
                         std::vector<std::string>* probes);
void AddForceOption(CLI::App& app, bool* force);

// `request` outlives the parsing.
void AddDiskOptions(CLI::App& app, live::RecordRequest* request);
// Whether one of them was given.
bool HasDiskOptions(const live::RecordRequest& request);

}  // namespace cgdebug::cli
