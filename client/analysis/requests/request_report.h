// request_report.h: a RequestDiff in words and as JSON.
#pragma once

#include "client/analysis/answer.h"
#include "client/analysis/json_number.h"
#include "client/analysis/requests/request_diff.h"
#include "client/source/source.h"

namespace cgdebug::analysis::requests {

// Where the error grows first, or how large it is, and what was not compared.
Answer RequestAnswer(source::Source& a, source::Source& b, const RequestDiff& diff);

Json RequestJson(source::Source& a, source::Source& b, const RequestDiff& diff);

}  // namespace cgdebug::analysis::requests
