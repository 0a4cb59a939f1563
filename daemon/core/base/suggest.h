// suggest.h: names close to what was typed, for "did you mean".
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cgdebug {

// The number of edits (insert, delete, replace, swap of neighbours) from `a` to `b`, ignoring ASCII
// case. Any number above `limit` is returned as limit + 1.
std::size_t EditDistance(std::string_view a, std::string_view b, std::size_t limit);

// Up to `max_names` of `names`, best first: names that start with what was typed, then names that
// contain it, then names a few edits away. Ignores glob characters, "re:" and "!" in `typed`.
std::vector<std::string> CloseNames(std::string_view typed, std::span<const std::string> names,
                                    std::size_t max_names = 3);

// " Close: 'a', 'b'." with a leading space, or "" if nothing is close.
std::string DidYouMean(std::string_view typed, std::span<const std::string> names,
                       std::size_t max_names = 3);

}  // namespace cgdebug
