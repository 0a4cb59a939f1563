#include "daemon/core/numerics/ascii.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

namespace cgdebug::numerics {
namespace {

// The non-ASCII characters of our own lines. Names may contain Greek letters too, so a letter is
// replaced only together with the character behind it. Bars stay one column wide.
constexpr std::array<std::pair<std::string_view, std::string_view>, 12> kInAscii = {{
    {"▁", "_"},
    {"▂", "."},
    {"▃", "-"},
    {"▄", "="},
    {"▅", "+"},
    {"▆", "*"},
    {"▇", "%"},
    {"█", "#"},
    {"…", "~"},
    {"∈[", " in ["},
    {"μ=", "mean="},
    {"σ=", "std="},
}};

bool BeginsACharacter(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0xc0; }

}  // namespace

std::string ToAscii(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto* found = !BeginsACharacter(text.front())
                            ? kInAscii.end()
                            : std::find_if(kInAscii.begin(), kInAscii.end(), [&](const auto& pair) {
                                return text.starts_with(pair.first);
                              });
    const bool is_ours = found != kInAscii.end();
    out += is_ours ? found->second : text.substr(0, 1);
    text.remove_prefix(is_ours ? found->first.size() : 1);
  }
  return out;
}

bool IsAscii(const LocaleVariables& variables) {
  for (std::string locale : {variables.lc_all, variables.lc_ctype, variables.lang}) {
    if (locale.empty()) continue;
    std::transform(locale.begin(), locale.end(), locale.begin(),
                   [](unsigned char c) { return std::toupper(c); });
    return locale.find("UTF-8") == std::string::npos && locale.find("UTF8") == std::string::npos;
  }
  return false;
}

}  // namespace cgdebug::numerics
