// page_files.h: files that the build puts into page_files.cpp (embed.cmake), as they are.
#pragma once

#include <string_view>

namespace cgdebug::report {

extern const std::string_view kPage;     // page/report.html
extern const std::string_view kStyle;    // page/report.css
extern const std::string_view kScript;   // page/report.js
extern const std::string_view kLibrary;  // d3; empty where there was none
extern const std::string_view kLicence;  // of d3

}  // namespace cgdebug::report
