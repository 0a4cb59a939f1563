// fold.h: many graphs and shapes of one probe in a single line of a table.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "client/cli/views/terminal.h"
#include "client/source/source.h"

namespace cgdebug::cli {

// A probe with more graphs and shapes than this takes one line for all of them, unless a table must
// be whole.
inline constexpr std::size_t kMostLinesOfAProbe = 3;

// Calls of one name in several graphs, or with several shapes, by session, rank, name and call.
// `Item` is what a table has a line for: a row of a source, or a probe of a live job.
using FoldKey = std::tuple<std::string, int, std::string, std::uint32_t>;
template <typename Item>
using Folds = std::map<FoldKey, std::vector<const Item*>>;

// Leaves out groups that are few enough for a line each.
template <typename Item, typename KeyOf>
Folds<Item> FoldsOf(const std::vector<Item>& items, bool is_whole, const KeyOf& key_of) {
  Folds<Item> folds;
  if (is_whole) return folds;
  for (const Item& item : items) folds[key_of(item)].push_back(&item);
  std::erase_if(folds, [](const auto& fold) { return fold.second.size() <= kMostLinesOfAProbe; });
  return folds;
}

// A file of tensors has no calls.
std::string GraphText(const source::Slot& slot);

// What the slots of a line have in common, or how many different ones they have.
std::string OneOf(const std::set<std::string>& texts, const char* noun);

std::string LostText(std::uint64_t lost, const Style& style);

// "3 saw NaN or Inf, first bs=16 @20  -v: each". `bad`: how many graphs or shapes had NaN or Inf,
// the first of them at `replay` in the one with `qualifier`.
std::string FoldedFindings(std::uint64_t bad, const std::string& qualifier, std::uint64_t replay,
                           const Style& style);

}  // namespace cgdebug::cli
