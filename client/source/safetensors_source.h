// safetensors_source.h: .safetensors files as a source.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/source/source.h"

namespace cgdebug::source {

// One file is one replay: the one it was exported from, else the last number in its name
// ("step_12"), else its place among the files. Files that share no tensor name are parts of one
// replay. Requires: at least one path.
Result<std::unique_ptr<Source>> OpenSafetensorsFiles(const std::string& path,
                                                     const std::vector<std::string>& files);

}  // namespace cgdebug::source
