// check_fixture.h: sources that are checked.
#pragma once

#include <gtest/gtest.h>

#include "client/analysis/check/check.h"
#include "tests/support/analysis/memory_source.h"

namespace cgdebug::testing_support {

inline analysis::Check CheckOf(MemorySource& source, const analysis::CheckOptions& options = {}) {
  Result<analysis::Check> check = analysis::RunCheck(source, options);
  EXPECT_TRUE(check.ok()) << check.error().message;
  return *std::move(check);
}

inline const analysis::Finding* FindingOf(const analysis::Check& check,
                                          analysis::FindingKind kind) {
  for (const analysis::Finding& finding : check.findings) {
    if (finding.kind == kind) return &finding;
  }
  return nullptr;
}

// Inputs that change, in three probes.
inline MemorySource Healthy(int replays = 4) {
  MemorySource source;
  for (const char* name : {"in", "mid", "out"}) source.AddSlot(name, {2});
  source.has_hashes = true;
  for (int replay = 1; replay <= replays; ++replay) {
    for (const std::size_t slot : {0, 1, 2}) {
      source.Add(slot, replay, {static_cast<float>(replay), static_cast<float>(slot)},
                 replay + 100);
    }
  }
  return source;
}

}  // namespace cgdebug::testing_support
