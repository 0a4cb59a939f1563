// op_traits.h: what is known of aten's ops by their names, in one table: a new rule about ops is a
// trait there.
#pragma once

#include <cstdint>
#include <string_view>

namespace cgdebug::ops {

enum class OpTrait : std::uint32_t {
  kProduct =
      1u << 0,  // each element that it reads counts in the result, unless it is multiplied by 0
  kBlunt =
      1u << 1,  // its result may stay the same: it rounds, chooses, compares, or looks at no value
  kRectifier = 1u << 2,  // it cuts off what is negative, or beyond an end
  kWeighted = 1u << 3,   // a layer with weights
  kPassing = 1u << 4,    // what it reads gets through to its result
  kLogarithm = 1u << 5,
  kRoot = 1u << 6,
  kQuotient = 1u << 7,    // it divides by its last input
  kMean = 1u << 8,        // a mean, or a deviation from one
  kGrowing = 1u << 9,     // its result may be too large for the dtype of what it reads
  kDropout = 1u << 10,    // random, by its input's elements
  kNoise = 1u << 11,      // random
  kGiven = 1u << 12,      // it writes values that the program gives
  kMover = 1u << 13,      // it shows parts of what it reads, in another place or several times
  kChooser = 1u << 14,    // it leaves out elements that the program says
  kInspector = 1u << 15,  // it asks whether values are NaN or Inf
};

// `op`: as a row names it, with an overload or the "_" of an op that writes in place.
bool HasTrait(OpTrait trait, std::string_view op);
// Whether a NaN is in its floating result if it is in what it takes of its inputs: it computes each
// element of all that it takes, or moves or chooses elements. Not if that is unknown: a custom op,
// one that rounds or quantizes.
bool PassesNanOn(std::string_view op);
// Whether other ranks take part in it.
bool IsCollective(std::string_view op);

}  // namespace cgdebug::ops
