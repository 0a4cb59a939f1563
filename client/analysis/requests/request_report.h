// request_report.h: a RequestDiff in words and as JSON.
#pragma once

#include "client/analysis/answer.h"
#include "client/analysis/json_number.h"
#include "client/analysis/requests/request_diff.h"

namespace cgdebug::analysis::requests {

// Where the error grows first, or how large it is, and what was not compared.
Answer RequestAnswer(const RequestDiff& diff);

Json RequestJson(const RequestDiff& diff);

}  // namespace cgdebug::analysis::requests
