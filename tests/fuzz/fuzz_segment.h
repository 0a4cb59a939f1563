// fuzz_segment.h: turns fuzzed bytes into the segment file of a recording.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace cgdebug::fuzz {

// A recording's directory in memory, with one segment file; the same one for every input.
//
// Code behind a checksum would never be reached by chance. So if the first byte is odd, every CRC
// and every offset in the file is put right first.
const std::string& WriteSegment(std::span<const std::uint8_t> input);

// Writes seed recordings into $CGDEBUG_FUZZ_SEEDS, if that is set.
void WriteSeeds();

}  // namespace cgdebug::fuzz
