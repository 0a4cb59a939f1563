// absent_files.h: which files a folder of .safetensors lacks, as far as those that are there tell.
#pragma once

#include <string>
#include <vector>

#include "client/source/safetensors.h"

namespace cgdebug::source {

// In sentences. What tells of others: an export (the replays before and behind a file, and its
// ranks), the name of a shard (model-00001-of-00004.safetensors), and an index of shards
// (*.safetensors.index.json).
std::vector<std::string> AbsentFiles(const std::string& folder,
                                     const std::vector<SafetensorsFile>& files);

}  // namespace cgdebug::source
