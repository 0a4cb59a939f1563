#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/views/json.h"

namespace cgdebug::cli {
namespace {

namespace fs = std::filesystem;

struct ConfigOptions {
  bool cflags = false;
  bool libs = false;
  bool prefix = false;
};

// Whether it looks like what `cmake --install` or the wheel makes: include/cgdebug, lib.
bool IsPrefix(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path / "include/cgdebug/cgdebug/probe.h", ignored) &&
         fs::exists(path / "lib/libcgdebug_probe.so", ignored);
}

// $CGDEBUG_PREFIX, which `python -m cgdebug` sets; else where this program was installed or built.
std::vector<fs::path> Candidates() {
  std::vector<fs::path> candidates;
  const char* chosen = std::getenv("CGDEBUG_PREFIX");
  if (chosen != nullptr && *chosen != '\0') candidates.emplace_back(chosen);
  std::error_code ignored;
  const fs::path root = fs::read_symlink("/proc/self/exe", ignored).parent_path().parent_path();
  if (root.empty()) return candidates;
  candidates.push_back(root);
  candidates.push_back(root / "python/cgdebug");  // a build tree
  for (const char* lib : {"lib", "lib64"}) {
    for (const auto& entry : fs::directory_iterator(root / lib, ignored)) {
      const std::string name = entry.path().filename();
      if (!name.starts_with("python")) continue;
      for (const char* packages : {"site-packages", "dist-packages"}) {
        candidates.push_back(entry.path() / packages / "cgdebug");
      }
    }
  }
  return candidates;
}

int RunConfig(Context& context, const ConfigOptions& options) {
  for (const fs::path& candidate : Candidates()) {
    if (!IsPrefix(candidate)) continue;
    const std::string prefix = candidate.string();
    const std::string cflags = "-I" + ShellWord(prefix + "/include/cgdebug");
    const std::string lib = ShellWord(prefix + "/lib");
    const std::string libs = fmt::format("-L{0} -lcgdebug_probe -Wl,-rpath,{0}", lib);
    if (context.options.json) {
      Context::Print(Dump({{"prefix", prefix}, {"cflags", cflags}, {"libs", libs}}, true) + "\n");
      return kExitOk;
    }
    std::vector<std::string> words;
    if (options.prefix) words.push_back(prefix);
    if (options.cflags) words.push_back(cflags);
    if (options.libs) words.push_back(libs);
    if (words.empty()) {
      words.push_back(fmt::format("prefix  {}\ncflags  {}\nlibs    {}", prefix, cflags, libs));
    }
    Context::PrintRaw(fmt::format("{}\n", fmt::join(words, " ")));
    return kExitOk;
  }
  return context.Fail(kExitNoMatch,
                      "no headers and no probe library were installed with this program. Type: "
                      "python -m cgdebug config   (in the environment that has the package)");
}

}  // namespace

RunFunction AddConfig(CLI::App& app) {
  auto options = std::make_shared<ConfigOptions>();
  app.add_flag("--cflags", options->cflags, "for the compiler; C++20 is needed");
  app.add_flag("--libs", options->libs, "for the linker");
  app.add_flag("--prefix", options->prefix, "for CMAKE_PREFIX_PATH, of find_package(cgdebug)");
  return [options](Context& context) { return RunConfig(context, *options); };
}

}  // namespace cgdebug::cli
