// finding_kinds.h: lists of what may be found: "nan,inf,mismatch,replica".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "daemon/core/base/result.h"
#include "proto/layout/segment_layout.h"

namespace cgdebug::words {

// By the numbers of layout::FindingKind.
inline constexpr std::string_view kFindingWords[layout::kFindingKinds] = {"nan", "inf", "mismatch",
                                                                          "replica"};

// Kinds with commas between them; none of an empty text.
// Fails: another word. The message begins with `what`, which names where it was typed.
Result<std::vector<layout::FindingKind>> ParseFindingKinds(std::string_view list,
                                                           std::string_view what);

}  // namespace cgdebug::words
