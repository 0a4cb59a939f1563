#include "client/cli/remote/passwords.h"

#include <algorithm>
#include <map>

#include "proto/layout/url_password.h"

namespace cgdebug::cli {
namespace {

constexpr std::string_view kHostEnds = "/?# \t\r\n\"'";

// What is shown -> what was typed, of everything up to the end of the host of a URL: another host
// may have the same user, and must not get this password. Never freed: threads may read URLs until
// the process ends.
std::map<std::string, std::string>& Typed() {
  static auto* const typed = new std::map<std::string, std::string>;
  return *typed;
}

}  // namespace

std::vector<std::string> HidePasswords(int argc, char** argv) {
  std::vector<std::string> words(argv, argv + argc);
  for (std::string& word : words) {
    std::string shown = layout::HideUrlPasswords(word);
    if (shown == word) continue;
    constexpr std::string_view kHidden = ":***@";
    const std::size_t host = shown.rfind(kHidden) + kHidden.size();
    const std::size_t end = std::min(shown.find_first_of(kHostEnds, host), shown.size());
    const std::size_t same = shown.size() - end;  // behind the last host
    Typed()[shown.substr(0, end)] = word.substr(0, word.size() - same);
    word = std::move(shown);
  }
  return words;
}

std::string WithPassword(std::string word) {
  for (const auto& [shown, typed] : Typed()) {
    if (!word.starts_with(shown)) continue;
    const bool is_host =
        word.size() == shown.size() || kHostEnds.find(word[shown.size()]) != kHostEnds.npos;
    if (is_host) return word.replace(0, shown.size(), typed);
  }
  return word;
}

}  // namespace cgdebug::cli
