// checksum_avx2.h: for checksum.cpp alone.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cgdebug::recording {

// Both require: a CPU with AVX2.
std::uint64_t Xxh3Avx2(const void* data, std::size_t bytes);
// `state` is an XXH3_state_t.
void Xxh3AddAvx2(void* state, const void* data, std::size_t bytes);

}  // namespace cgdebug::recording
