// catalogue.h: NAME.cgrec/catalogue.sqlite, an index of a recording for SQL.
//
//   sqlite3 runs/a.cgrec/catalogue.sqlite "select probe, replay, nan from v_first_nonfinite"
//
// The segments are the truth. The catalogue is made from them and from nothing else, record by
// record, so that one that grew with its recording and one that was made anew hold the same rows.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/core/base/result.h"

namespace cgdebug::recording {

std::string CataloguePath(const std::string& directory);

// Takes in what the segments have and the catalogue has not, in one transaction; makes the file
// when there is none, and anew when it is damaged, of another recording or of another version.
// Returns how many records it took in.
// Thread: any; two at a time wait for each other.
// Fails:  no recording, the catalogue cannot be written.
Result<std::uint64_t> UpdateCatalogue(const std::string& directory);

// The same from nothing.
Result<std::uint64_t> RebuildCatalogue(const std::string& directory);

}  // namespace cgdebug::recording
