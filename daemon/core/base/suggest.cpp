#include "daemon/core/base/suggest.h"

#include <algorithm>
#include <array>
#include <utility>

namespace cgdebug {
namespace {

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::string WithoutPatternCharacters(std::string_view typed) {
  if (typed.starts_with('!')) typed.remove_prefix(1);
  if (typed.starts_with("re:")) typed.remove_prefix(3);
  std::string plain = Lower(typed);
  std::erase_if(
      plain, [](char c) { return std::string_view("*?[]^$\\").find(c) != std::string_view::npos; });
  return plain;
}

// Names come from jobs and there may be many thousands, so larger distances are never computed.
constexpr std::size_t kMaxEdits = 4;

}  // namespace

std::size_t EditDistance(std::string_view a, std::string_view b, std::size_t limit) {
  const std::string from = Lower(a), to = Lower(b);
  const std::size_t longer = std::max(from.size(), to.size());
  if (longer - std::min(from.size(), to.size()) > limit) return limit + 1;
  std::array<std::vector<std::size_t>, 3> rows;  // i - 2, i - 1, i
  for (auto& row : rows) row.resize(to.size() + 1);
  for (std::size_t j = 0; j <= to.size(); ++j) rows[1][j] = j;
  for (std::size_t i = 1; i <= from.size(); ++i) {
    auto& row = rows[2];
    row[0] = i;
    std::size_t best = i;
    for (std::size_t j = 1; j <= to.size(); ++j) {
      const std::size_t replace = rows[1][j - 1] + (from[i - 1] == to[j - 1] ? 0 : 1);
      row[j] = std::min({rows[1][j] + 1, row[j - 1] + 1, replace});
      if (i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1]) {
        row[j] = std::min(row[j], rows[0][j - 2] + 1);
      }
      best = std::min(best, row[j]);
    }
    // A swap reaches back two rows, so a row above the limit ends the search only if the row before
    // it is above the limit too.
    const std::size_t best_before = *std::min_element(rows[1].begin(), rows[1].end());
    if (best > limit && best_before > limit) return limit + 1;
    std::rotate(rows.begin(), rows.begin() + 1, rows.end());
  }
  return std::min(rows[1][to.size()], limit + 1);
}

std::vector<std::string> CloseNames(std::string_view typed, std::span<const std::string> names,
                                    std::size_t max_names) {
  const std::string plain = WithoutPatternCharacters(typed);
  if (plain.empty()) return {};
  const std::size_t limit = std::clamp<std::size_t>(plain.size() / 3, 1, kMaxEdits);
  using Rank = std::pair<std::size_t, std::size_t>;  // kind of likeness, then how far
  std::vector<std::pair<Rank, const std::string*>> found;
  for (const std::string& name : names) {
    const std::string lower = Lower(name);
    if (const std::size_t at = lower.find(plain); at != std::string::npos) {
      found.push_back({Rank{at == 0 ? 0 : 1, lower.size()}, &name});
    } else if (const std::size_t edits = EditDistance(plain, lower, limit); edits <= limit) {
      found.push_back({Rank{2, edits}, &name});
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> close;
  for (const auto& [rank, name] : found) {
    if (close.size() == max_names) break;
    if (std::find(close.begin(), close.end(), *name) == close.end()) close.push_back(*name);
  }
  return close;
}

std::string DidYouMean(std::string_view typed, std::span<const std::string> names,
                       std::size_t max_names) {
  std::string text;
  for (const std::string& name : CloseNames(typed, names, max_names)) {
    text += (text.empty() ? " Close: '" : ", '") + name + "'";
  }
  return text.empty() ? text : text + ".";
}

}  // namespace cgdebug
