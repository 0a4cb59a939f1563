#include "libprobe/ring/segment/segment_names.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "libprobe/ring/segment/shared_file.h"

namespace cgdebug::ring {
namespace {

constexpr std::size_t kMaxExtentDigits = 10;  // enough for 32 bits

bool Only(std::string_view text, std::string_view characters) {
  return text.find_first_not_of(characters) == std::string_view::npos;
}

}  // namespace

std::string OwnPrefix() { return layout::kNamePrefix + std::to_string(geteuid()) + "-"; }

bool IsControlName(std::string_view name) {
  const std::string prefix = OwnPrefix();
  return name.size() == prefix.size() + kUuidHexDigits && name.starts_with(prefix) &&
         Only(name.substr(prefix.size()), "0123456789abcdef");
}

bool IsTemporaryName(std::string_view name) {
  return name.starts_with('.') && IsControlName(name.substr(1));
}

std::string_view ControlNameOfExtent(std::string_view name) {
  const std::size_t dot = name.find('.', 1);
  if (dot == std::string_view::npos) return {};
  const std::string_view index = name.substr(dot + 1);
  const bool extent = !index.empty() && index.size() <= kMaxExtentDigits &&
                      Only(index, "0123456789") && IsControlName(name.substr(0, dot));
  return extent ? name.substr(0, dot) : std::string_view();
}

std::vector<std::string> ListShm() {
  std::vector<std::string> names;
  DIR* directory = opendir(layout::kShmDirectory);
  if (directory == nullptr) return names;
  while (const dirent* entry = readdir(directory)) names.emplace_back(entry->d_name);
  closedir(directory);
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> ListSegments() {
  std::vector<std::string> names = ListShm();
  std::erase_if(names, [](const std::string& name) { return !IsControlName(name); });
  return names;
}

void UnlinkSegment(const std::string& name) noexcept {
  try {
    for (const std::string& file : ListShm()) {
      if (ControlNameOfExtent(file) == name) unlink(ShmPath(file).c_str());
    }
    // Last: if this is interrupted, what is left is still a segment, and the next process removes
    // it.
    unlink(ShmPath(name).c_str());
  } catch (const std::bad_alloc&) {  // the same as an interruption
  }
}

}  // namespace cgdebug::ring
