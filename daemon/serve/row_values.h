// row_values.h: what to type for the values of a row of an op log.
#pragma once

#include <string>

#include "daemon/model/identity.h"

namespace cgdebug::serve {

// Says why the row has no values, how the job is started so that they are kept, and how a job that
// takes questions is asked for those of a captured graph.
// Requires: pipeline::IsOfOpLog(row).
std::string HowToGetValues(const pipeline::SlotIdentity& row);

}  // namespace cgdebug::serve
