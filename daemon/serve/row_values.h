// row_values.h: what to type for the values of a row of an op log.
#pragma once

#include <string>

#include "daemon/model/identity.h"

namespace cgdebug::serve {

// Says why the row has no values when all rows of its graph leave it, and names the probe and the
// call of cgdebug.watch() that have them. Requires: pipeline::IsOfOpLog(row).
std::string HowToGetValues(const pipeline::SlotIdentity& row);

}  // namespace cgdebug::serve
