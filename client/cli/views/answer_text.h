// answer_text.h: what a command found, in colour.
#pragma once

#include <string>

#include "client/analysis/answer.h"
#include "client/cli/views/terminal.h"

namespace cgdebug::cli {

// Each line with its newline.
std::string AnswerText(const Style& style, const analysis::Answer& answer);

}  // namespace cgdebug::cli
