// package.h: where the Python package, or what `cmake --install` makes, may lie.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace cgdebug::cli {

// $CGDEBUG_PREFIX, which `python -m cgdebug` sets; else where this program was installed or built.
// In the order of preference; not each of them exists.
std::vector<std::filesystem::path> PackageFolders();

// A module of the Python package, empty if the package is not beside this program.
std::filesystem::path PackageModule(const std::string& file_name);
// Beside this program in an environment of Python, else "python3", which is looked for in PATH.
std::string PythonProgram();

}  // namespace cgdebug::cli
