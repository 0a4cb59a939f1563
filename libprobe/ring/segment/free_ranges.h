// free_ranges.h: which parts of several areas of memory are free. Neighbours in one area are one
// range; two areas are never taken for neighbours, even if their addresses are.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <new>
#include <optional>
#include <tuple>
#include <utility>

namespace cgdebug::ring {

// Thread: one at a time.
class FreeRanges {
 public:
  struct Place {
    std::uint32_t area;
    std::uint64_t offset;
    auto operator<=>(const Place&) const = default;
  };

  // Takes the first range that is large enough.
  // Fails: std::nullopt if there is none.
  std::optional<Place> Take(std::uint64_t bytes) {
    const auto found =
        std::ranges::find_if(ranges_, [&](const auto& range) { return range.second >= bytes; });
    if (found == ranges_.end()) return std::nullopt;
    const Place place = found->first;
    const std::uint64_t rest = found->second - bytes;
    if (rest != 0) {  // reuses the node: allocating one could fail
      auto node = ranges_.extract(found);
      node.key().offset += bytes;
      node.mapped() = rest;
      ranges_.insert(std::move(node));
    } else {
      ranges_.erase(found);
    }
    return place;
  }

  // False: there is no memory to remember it, so it is never used again.
  bool Give(const Place& place, std::uint64_t bytes) noexcept {
    Ranges::iterator range;
    try {
      bool inserted = false;
      std::tie(range, inserted) = ranges_.insert({place, bytes});
      if (!inserted) return true;
    } catch (const std::bad_alloc&) {
      return false;
    }
    const auto next = std::next(range);
    if (next != ranges_.end() && IsBehind(next->first, *range)) {
      range->second += next->second;
      ranges_.erase(next);
    }
    if (range == ranges_.begin()) return true;
    const auto previous = std::prev(range);
    if (IsBehind(range->first, *previous)) {
      previous->second += range->second;
      ranges_.erase(range);
    }
    return true;
  }

  void Forget(std::uint32_t area) {
    std::erase_if(ranges_, [&](const auto& range) { return range.first.area == area; });
  }

 private:
  using Ranges = std::map<Place, std::uint64_t>;  // bytes
  static bool IsBehind(const Place& place, const Ranges::value_type& range) {
    return place.area == range.first.area && place.offset == range.first.offset + range.second;
  }

  Ranges ranges_;
};

}  // namespace cgdebug::ring
