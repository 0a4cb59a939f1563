#include "daemon/core/words/finding_kinds.h"

#include <algorithm>

namespace cgdebug::words {

using layout::FindingKind;

static_assert(kFindingWords[static_cast<int>(FindingKind::kNan)] == "nan" &&
              kFindingWords[static_cast<int>(FindingKind::kInf)] == "inf" &&
              kFindingWords[static_cast<int>(FindingKind::kMismatch)] == "mismatch" &&
              kFindingWords[static_cast<int>(FindingKind::kReplica)] == "replica");

Result<std::vector<FindingKind>> ParseFindingKinds(std::string_view list, std::string_view what) {
  std::vector<FindingKind> kinds;
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    const std::string_view word = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    const auto* const known = std::find(std::begin(kFindingWords), std::end(kFindingWords), word);
    if (known == std::end(kFindingWords)) {
      return Error{std::string(what) + " knows nan, inf, mismatch and replica, not '" +
                   std::string(word) + "'. Type for example: " + std::string(what) + " nan,inf"};
    }
    kinds.push_back(static_cast<FindingKind>(known - std::begin(kFindingWords)));
  }
  return kinds;
}

}  // namespace cgdebug::words
