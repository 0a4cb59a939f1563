#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/remote/package.h"
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

int RunConfig(Context& context, const ConfigOptions& options) {
  for (const fs::path& candidate : PackageFolders()) {
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
  app.add_flag("--prefix", options->prefix,
               "for CMAKE_PREFIX_PATH, so that find_package(cgdebug) works");
  return [options](Context& context) { return RunConfig(context, *options); };
}

}  // namespace cgdebug::cli
