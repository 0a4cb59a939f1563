#include "daemon/core/replicas/shard_text.h"

#include <charconv>

#include "proto/layout/ring_layout.h"

namespace cgdebug::replicas {
namespace {

constexpr std::string_view kMark = ", replicas ";
constexpr int kMostRanks = 1 << 20;

// Takes a number from the front of `text`.
std::optional<int> TakeNumber(std::string_view* text) {
  int number = 0;
  const auto parsed = std::from_chars(text->data(), text->data() + text->size(), number);
  if (parsed.ec != std::errc() || number < 0 || number > kMostRanks) return std::nullopt;
  text->remove_prefix(static_cast<std::size_t>(parsed.ptr - text->data()));
  return number;
}

bool Take(std::string_view* text, std::string_view what) {
  if (!text->starts_with(what)) return false;
  text->remove_prefix(what.size());
  return true;
}

}  // namespace

std::optional<std::vector<int>> ParseRanks(std::string_view text) {
  std::vector<int> ranks;
  do {
    const std::optional<int> first = TakeNumber(&text);
    std::optional<int> last = first, every = 1;
    if (first && Take(&text, "..")) {
      last = TakeNumber(&text);
      if (last && Take(&text, "/")) every = TakeNumber(&text);
    }
    if (!first || !last || !every || *every < 1 || *last < *first) return std::nullopt;
    if (!ranks.empty() && ranks.back() >= *first) return std::nullopt;
    for (int rank = *first; rank <= *last; rank += *every) ranks.push_back(rank);
  } while (Take(&text, ","));
  if (!text.empty() || ranks.size() < 2) return std::nullopt;
  return ranks;
}

Replicas ReplicasOf(std::string_view shard) {
  const std::size_t mark = shard.rfind(kMark);
  if (mark == std::string_view::npos) {
    // A text of this length was cut.
    const bool is_cut = shard.size() >= layout::kMaxShardBytes;
    return {.kind = is_cut ? Replication::kUnknown : Replication::kNone};
  }
  const std::string_view text = shard.substr(mark + kMark.size());
  std::optional<std::vector<int>> ranks = ParseRanks(text);
  if (!ranks || shard.size() >= layout::kMaxShardBytes) return {.kind = Replication::kUnknown};
  return {.kind = Replication::kKnown, .text = text, .ranks = *std::move(ranks)};
}

}  // namespace cgdebug::replicas
