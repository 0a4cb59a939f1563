// diff_of.h: compares two sources, in tests that expect this to work.
#pragma once

#include <gtest/gtest.h>

#include <utility>

#include "client/analysis/diff/diff.h"

namespace cgdebug::testing_support {

inline analysis::Diff DiffOf(source::Source& a, source::Source& b,
                             const analysis::DiffOptions& options = {}) {
  Result<analysis::Diff> diff = analysis::Compare(a, b, options);
  EXPECT_TRUE(diff.ok()) << diff.error().message;
  return *std::move(diff);
}

}  // namespace cgdebug::testing_support
