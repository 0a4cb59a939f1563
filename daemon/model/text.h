// text.h: makes texts that came from a job safe for terminals and for protobuf.
#pragma once

#include <string>
#include <string_view>

namespace cgdebug::pipeline {

// Returns valid UTF-8 without control characters, so that a probe's name cannot send escape
// sequences to a terminal. Each byte of a control character (C0, DEL, C1, line ends, directions of
// writing) and each byte that is not UTF-8 becomes "\x1b". Different texts stay different: a "\x1b"
// that is written out becomes "\x5cx1b".
std::string CleanText(std::string_view text_untrusted, bool keep_newlines = false);

}  // namespace cgdebug::pipeline
