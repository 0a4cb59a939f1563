// content_hash.h: the hash that tells whether a tensor is still the one that was sent last. A
// tensor that is taken for the same is not sent, so 128 bits decide: two different tensors have the
// same hash with a probability of about 2^-128.
//
// Each half is a sum of f(word + place * step) over the 64-bit words, which is the construction
// "AdHash" of Bellare and Micciancio, "A New Paradigm for Collision-Free Hashing: Incrementality at
// Reduced Cost" (EUROCRYPT 1997). Threads may add their parts in any order. f is a bijection that
// mixes every bit into every other: in one half variant 13 of David Stafford's, "Better Bit
// Mixing" (2011), in the other the finalizer of Austin Appleby's MurmurHash3. So a single changed
// word always changes both halves. The steps differ as well: two words in exchanged places that
// cancel out in one half do not do so in the other. It does not withstand somebody who chooses the
// values on purpose.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define CGDEBUG_HOST_DEVICE __host__ __device__
#else
#define CGDEBUG_HOST_DEVICE
#endif

namespace cgdebug::capture {

struct ContentHash {
  std::uint64_t low = 0;
  std::uint64_t high = 0;

  CGDEBUG_HOST_DEVICE constexpr void Add(std::uint64_t word, std::uint64_t place) {
    std::uint64_t a = word + place * 0x9e3779b97f4a7c15;
    a = (a ^ a >> 30) * 0xbf58476d1ce4e5b9;
    a = (a ^ a >> 27) * 0x94d049bb133111eb;
    low += a ^ a >> 31;
    std::uint64_t b = word + place * 0xd1342543de82ef95 + 0x2545f4914f6cdd1d;
    b = (b ^ b >> 33) * 0xff51afd7ed558ccd;
    b = (b ^ b >> 33) * 0xc4ceb9fe1a85ec53;
    high += b ^ b >> 33;
  }
};

}  // namespace cgdebug::capture

#undef CGDEBUG_HOST_DEVICE
