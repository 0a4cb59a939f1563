// why_report.h: Causes in words and as JSON; the same in the command line and in Python.
#pragma once

#include <functional>
#include <string>

#include "client/analysis/answer.h"
#include "client/analysis/json_number.h"
#include "client/analysis/why/why.h"
#include "client/source/source.h"

namespace cgdebug::analysis::why {

// The command that shows the place of a finding.
using CommandOf = std::function<std::string(const source::Slot&, const Place&)>;
// For a source that `source` opens, without options that choose a job or a rank.
CommandOf CommandsOf(const std::string& source);

// At most `max_rows` findings, and of what was not looked at.
Answer CausesAnswer(const source::Source& source, const Causes& causes, const CommandOf& command_of,
                    std::size_t max_rows = 10);

Json CausesJson(const source::Source& source, const Causes& causes, const CommandOf& command_of);

}  // namespace cgdebug::analysis::why
