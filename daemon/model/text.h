// text.h: texts that came from a job, made safe for terminals and for protobuf.
#pragma once

#include <string>
#include <string_view>

namespace cgdebug::pipeline {

// Valid UTF-8 without control characters: each byte of a control character (C0, DEL, C1, ends of
// lines, directions of writing) and each that is no UTF-8 becomes "\x1b", so that a probe's name
// cannot send escape sequences to a terminal. Two texts that differ stay different: a "\x1b" that
// is written out becomes "\x5cx1b".
std::string CleanText(std::string_view text_untrusted, bool keep_newlines = false);

}  // namespace cgdebug::pipeline
