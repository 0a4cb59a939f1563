// page_cut.h: where the rows of an eager run are cut into pages.
//
// A page that is unlike all before it takes a slot, and each of its rows one. Rows leave once a
// second, wherever the run is then. So a run of which rows have left before its end is cut at
// multiples of powers of two: runs that are alike then have pages in common, whenever their rows
// left, and n rows make fewer than 2 n unlike pages.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>

namespace cgdebug {

// How many rows the next page has. `first`: how many rows of the run lie in pages; `count`: how
// many are to be put into pages now, at least 1; `is_end`: they are the rest of the run; `most`:
// rows of a page, a power of two.
inline std::size_t RowsOfNextPage(std::size_t first, std::size_t count, bool is_end,
                                  std::size_t most) {
  const bool is_whole_pages = is_end && first % most == 0;
  if (is_whole_pages) return std::min(count, most);
  const std::size_t alignment = first == 0 ? most : std::size_t{1} << std::countr_zero(first);
  return std::min({std::bit_floor(count), alignment, most});
}

}  // namespace cgdebug
