// text.h: texts that came from a job, made safe for terminals and for protobuf.
#pragma once

#include <string>
#include <string_view>

namespace cgdebug::pipeline {

// Valid UTF-8 without control characters: each control character (C0, DEL, C1) and each byte that
// is no UTF-8 becomes '?', so that a probe's name cannot send escape sequences to a terminal.
std::string CleanText(std::string_view text_untrusted, bool keep_newlines = false);

}  // namespace cgdebug::pipeline
