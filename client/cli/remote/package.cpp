#include "client/cli/remote/package.h"

#include <cstdlib>
#include <system_error>

namespace cgdebug::cli {

namespace fs = std::filesystem;

std::vector<fs::path> PackageFolders() {
  std::vector<fs::path> folders;
  const char* chosen = std::getenv("CGDEBUG_PREFIX");
  if (chosen != nullptr && *chosen != '\0') folders.emplace_back(chosen);
  std::error_code ignored;
  const fs::path root = fs::read_symlink("/proc/self/exe", ignored).parent_path().parent_path();
  if (root.empty()) return folders;
  folders.push_back(root);
  folders.push_back(root / "python/cgdebug");  // a build tree
  for (const char* lib : {"lib", "lib64"}) {
    for (const auto& entry : fs::directory_iterator(root / lib, ignored)) {
      const std::string name = entry.path().filename();
      if (!name.starts_with("python")) continue;
      for (const char* packages : {"site-packages", "dist-packages"}) {
        folders.push_back(entry.path() / packages / "cgdebug");
      }
    }
  }
  return folders;
}

fs::path PackageModule(const std::string& file_name) {
  std::error_code ignored;
  for (const fs::path& folder : PackageFolders()) {
    if (fs::exists(folder / file_name, ignored)) return folder / file_name;
  }
  return {};
}

std::string PythonProgram() {
  const char* chosen = std::getenv("CGDEBUG_PYTHON");
  if (chosen != nullptr && *chosen != '\0') return chosen;
  std::error_code ignored;
  const fs::path beside = fs::read_symlink("/proc/self/exe", ignored).parent_path() / "python3";
  return fs::exists(beside, ignored) ? beside.string() : "python3";
}

}  // namespace cgdebug::cli
