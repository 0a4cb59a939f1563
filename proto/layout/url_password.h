// url_password.h: hides the passwords of URLs in a text that is shown or stored.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace cgdebug::layout {

// "ftp://me:secret@host/a" becomes "ftp://me:***@host/a", wherever it stands in `text`.
inline std::string HideUrlPasswords(std::string_view text) {
  constexpr std::string_view kScheme = "://";
  std::string shown;
  for (std::size_t at = text.find(kScheme); at != text.npos; at = text.find(kScheme)) {
    const std::size_t begin = at + kScheme.size();
    const std::size_t end = std::min(text.find_first_of("/?# \t\r\n\"'", begin), text.size());
    const std::string_view authority = text.substr(begin, end - begin);
    const std::size_t colon = authority.find(':');
    const std::size_t sign = authority.rfind('@');
    shown += text.substr(0, begin);
    text.remove_prefix(begin);
    if (colon == authority.npos || sign == authority.npos || sign < colon) continue;
    shown.append(authority.substr(0, colon + 1)).append("***");
    text.remove_prefix(sign);
  }
  return shown.append(text);
}

}  // namespace cgdebug::layout
