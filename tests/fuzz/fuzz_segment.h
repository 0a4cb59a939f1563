// fuzz_segment.h: fuzzed bytes as the segment file of a recording.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace cgdebug::fuzz {

// A recording's directory in memory, with one segment file; the same one for every input.
//
// What is behind a checksum would never be reached by chance, so where the first byte is odd every
// CRC and every place in the file is put right first.
const std::string& WriteSegment(std::span<const std::uint8_t> input);

// Writes recordings to begin with into $CGDEBUG_FUZZ_SEEDS, when that is set.
void WriteSeeds();

}  // namespace cgdebug::fuzz
