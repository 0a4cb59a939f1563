// suggest.h: names close to what was typed, for "did you mean".
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cgdebug {

// Edits (insert, delete, replace, swap of neighbours) from `a` to `b`, ASCII case ignored; any
// number above `limit` comes back as limit + 1.
std::size_t EditDistance(std::string_view a, std::string_view b, std::size_t limit);

// Up to `max_names` of `names`, best first: those that start with what was typed, those that
// contain it, those a few edits away. Glob characters, "re:" and "!" in `typed` are ignored.
std::vector<std::string> CloseNames(std::string_view typed, std::span<const std::string> names,
                                    std::size_t max_names = 3);

// " Close: 'a', 'b'." with a space in front, or "" when nothing is close.
std::string DidYouMean(std::string_view typed, std::span<const std::string> names,
                       std::size_t max_names = 3);

}  // namespace cgdebug
