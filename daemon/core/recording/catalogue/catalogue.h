// catalogue.h: NAME.cgrec/catalogue.sqlite, an index of a recording for SQL.
//
//   sqlite3 runs/a.cgrec/catalogue.sqlite "select probe, replay, nan from v_first_nonfinite"
//
// The segments are the truth. The catalogue is made from them alone, record by record, so a
// catalogue that grew with its recording and one that was rebuilt hold the same rows.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "daemon/core/base/result.h"

namespace cgdebug::recording {

std::string CataloguePath(const std::string& directory);

// Adds what the catalogue lacks, in one transaction. Makes the file if there is none, and makes it
// again if it is damaged or belongs to another recording or version. Returns how many records it
// added. Calls `on_snapshot` behind each snapshot.
// Thread: any; two at a time wait for each other.
// Fails:  no recording, the catalogue cannot be written.
Result<std::uint64_t> UpdateCatalogue(const std::string& directory,
                                      const std::function<void()>& on_snapshot = {});

}  // namespace cgdebug::recording
