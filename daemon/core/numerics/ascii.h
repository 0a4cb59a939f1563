// ascii.h: lines of format.h for terminals that show only ASCII.
#pragma once

#include <string>
#include <string_view>

namespace cgdebug::numerics {

// `text` with the bars and Greek letters of our own lines spelled in ASCII: "x in [0 |#_____| 1]
// mean=0.4 std=0.9". Names that a job chose are left as they are.
std::string ToAscii(std::string_view text);

// The values of LC_ALL, LC_CTYPE and LANG, empty where they are not set.
struct LocaleVariables {
  std::string lc_all;
  std::string lc_ctype;
  std::string lang;
};

// Whether they name a locale without UTF-8, such as C. If none is set, as in most containers, the
// terminal is assumed to have UTF-8.
bool IsAscii(const LocaleVariables& variables);

}  // namespace cgdebug::numerics
