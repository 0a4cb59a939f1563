// package.h: where the Python package, or what `cmake --install` makes, may lie.
#pragma once

#include <filesystem>
#include <vector>

namespace cgdebug::cli {

// $CGDEBUG_PREFIX, which `python -m cgdebug` sets; else where this program was installed or built.
// In the order of preference; not each of them exists.
std::vector<std::filesystem::path> PackageFolders();

}  // namespace cgdebug::cli
