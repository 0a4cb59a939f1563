// check_report.h: a Check in words and as JSON; the same words in the command line and in Python.
#pragma once

#include <optional>
#include <string>

#include "client/analysis/answer.h"
#include "client/analysis/check/check.h"
#include "client/analysis/json_number.h"
#include "client/source/source.h"

namespace cgdebug::analysis {

Json AccountJson(const recording::Account& account);

// One line.
std::string FindingText(source::Source& source, const Finding& finding);
// "first NaN: fwd/x in call 3 on rank 1". `what`: "NaN", "Inf".
std::string FirstOfKindText(const source::Source& source, std::string_view what,
                            const FirstOfKind& first);

// At most `max_rows` findings of a kind. Without it 10, and NaN or Inf in many probes is one line.
Answer CheckAnswer(source::Source& source, const Check& check,
                   std::optional<std::size_t> max_rows = {});

Json CheckJson(source::Source& source, const Check& check);

}  // namespace cgdebug::analysis
