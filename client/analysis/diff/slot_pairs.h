// slot_pairs.h: which slots of one source are compared with which slots of another.
#pragma once

#include <cstddef>
#include <vector>

#include "client/analysis/diff/align.h"
#include "client/source/source.h"

namespace cgdebug::analysis {

// Slots of A and B that are compared: one of each, or, of a place that is called eagerly, all of
// them, one for each shape.
struct ComparedPlace {
  std::vector<std::size_t> a;
  std::vector<std::size_t> b;
};

struct ComparedSlots {
  std::vector<ComparedPlace> places;     // in graph order of A
  std::vector<std::size_t> only_a = {};  // wanted, without a counterpart, in graph order
  std::vector<std::size_t> only_b = {};
};

ComparedSlots PairSlots(const source::Source& a, const source::Source& b,
                        const AlignOptions& options);

}  // namespace cgdebug::analysis
