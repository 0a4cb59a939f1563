// page.h: the page that a report is put into. Style, script and library are files (page/, d3) that
// the build takes into the program.
#pragma once

#include <cstddef>
#include <string>

namespace cgdebug::report {

struct PageParts {
  std::string title;    // text
  std::string verdict;  // text, readable where no script runs
  std::string text;     // likewise
  std::string memory;   // likewise: of graphs; empty: not known
  std::string data;     // JSON without '<'
};

// Whether d3 was there when this was built.
bool HasPage();
// Without the parts.
std::size_t PageBytes();
// Requires: HasPage().
std::string MakePage(const PageParts& parts);

}  // namespace cgdebug::report
