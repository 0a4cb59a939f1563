// settings.h: says which environment variables of this process nobody can read.
#pragma once

namespace cgdebug {

// Prints a line for each malformed variable, once, and counts it as not seen: what it asked for is
// not done. Not for the replay path.
// Requires: the caller holds no lock of the probe table.
void TellMalformedSettings() noexcept;

}  // namespace cgdebug
