// detectors.h: the list of those that find causes. A new one is a file with one function, and a
// line in detectors.cpp.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/analysis/why/evidence.h"
#include "client/analysis/why/why.h"

namespace cgdebug::analysis::why {

struct Answer {
  std::vector<Finding> findings = {};
  std::string clean = {};  // what it looked at, if it found nothing; empty: nothing of its kind
  std::string not_looked = {};  // what it could not look at, and why; empty: nothing
};

// A pure function of the evidence.
using Detector = Answer (*)(const Evidence&);

// In the order of their findings, among those of one level.
std::span<const Detector> Detectors();

Answer FindNonfinite(const Evidence& evidence);
Answer FindFailedChecks(const Evidence& evidence);
Answer FindUnequalReplicas(const Evidence& evidence);
Answer FindIdleOptimizer(const Evidence& evidence);
Answer FindRepeatedNoise(const Evidence& evidence);
Answer FindFrozenInputs(const Evidence& evidence);
Answer FindStaleOutputs(const Evidence& evidence);
Answer FindDeadLayers(const Evidence& evidence);
Answer FindUntrained(const Evidence& evidence);
Answer FindUnread(const Evidence& evidence);
Answer FindUnreplayed(const Evidence& evidence);

// --- what they share
// ------------------------------------------------------------------------------

template <std::size_t Size>
bool IsOneOf(std::string_view word, const std::array<std::string_view, Size>& words) {
  return std::ranges::find(words, word) != words.end();
}
Place PlaceAt(const Evidence& evidence, std::size_t log, std::size_t row, std::size_t run);
// "fwd/layers.3/mm_0".
std::string RowText(const Evidence& evidence, std::size_t log, std::size_t row);
// "in/a, in/b and 3 more".
std::string NamesText(const std::vector<std::string>& names, std::size_t most = 3);
// "layers.3.weight" of its row "in/layers.3.weight".
std::string ParameterName(const Evidence& evidence, const Row& row);
// Whether it is a parameter that an optimizer reads.
bool IsStepped(const Evidence& evidence, const Log& log, const Row& row);
// The rows that are made of `row`, in the order of the log.
std::vector<std::size_t> DescendantsOf(const Log& log, std::size_t row);
// Whether one of `prefix`es begins the name of a row that a run has: "opt/", "bwd/".
bool HasPhase(const Evidence& evidence, const Log& log, std::size_t run, std::string_view prefix);

}  // namespace cgdebug::analysis::why
