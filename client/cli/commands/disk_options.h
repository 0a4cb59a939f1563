// disk_options.h: where a recording is written and how, for the commands that make one.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "client/live/recordings.h"

namespace cgdebug::cli {

// Where to and which probes. `output` and `probes` outlive the parsing.
void AddRecordingOptions(CLI::App& app, std::string* output, std::vector<std::string>* probes);

// `request` outlives the parsing.
void AddDiskOptions(CLI::App& app, live::RecordRequest* request);
// Whether one of them was given.
bool HasDiskOptions(const live::RecordRequest& request);

}  // namespace cgdebug::cli
