#include "daemon/core/ops/op_text.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

namespace cgdebug::ops {
namespace {

std::string_view NextWord(std::string_view* text) {
  const std::size_t end = std::min(text->find(' '), text->size());
  const std::string_view word = text->substr(0, end);
  text->remove_prefix(std::min(end + 1, text->size()));
  return word;
}

template <typename Number = std::uint32_t>
std::optional<Number> ParseNumber(std::string_view word) {
  Number number = 0;
  const auto parsed = std::from_chars(word.data(), word.data() + word.size(), number);
  if (parsed.ec != std::errc() || parsed.ptr != word.data() + word.size() || number == 0) {
    return std::nullopt;
  }
  return number;
}

// Parses "3:flash_fwd_kernel,memset".
std::optional<UnseenNodes> ParseUnseen(std::string_view word) {
  const std::size_t colon = std::min(word.find(':'), word.size());
  const auto count = ParseNumber<std::uint32_t>(word.substr(0, colon));
  if (!count) return std::nullopt;
  UnseenNodes unseen{.count = *count};
  for (const char c : word.substr(std::min(colon + 1, word.size()))) {
    unseen.names += c;
    if (c == ',') unseen.names += ' ';
  }
  return unseen;
}

// Whether the word tells of nodes.
bool ParseNodes(std::string_view word, OpText* text) {
  if (word.empty()) return false;
  const std::string_view rest = word.substr(1);
  const auto add = [&](std::uint64_t* count) {
    const auto more = ParseNumber<std::uint32_t>(rest);
    if (more) *count += *more;
    return more.has_value();
  };
  switch (word.front()) {
    case '+':
      return add(&text->explained);
    case '-':
      return add(&text->left_out);
    case '<':
      return (text->unseen_before = ParseUnseen(rest)).has_value();
    case '>':
      return (text->unseen_after = ParseUnseen(rest)).has_value();
    default:
      return false;
  }
}

}  // namespace

std::string UnseenNodes::Text() const {
  std::string place = after == 0    ? fmt::format("before #{}", before)
                      : before == 0 ? fmt::format("after #{}", after)
                                    : fmt::format("between #{} and #{}", after, before);
  return fmt::format("{} kernel{} {}: {}", count, count == 1 ? "" : "s", place, names);
}

std::optional<OpText> ParseOpText(std::string_view text) {
  OpText parsed;
  const std::optional<std::uint32_t> number = ParseNumber(NextWord(&text));
  parsed.op = NextWord(&text);
  if (!number || parsed.op.empty()) return std::nullopt;
  parsed.number = *number;
  while (!text.empty()) {
    const std::string_view word = NextWord(&text);
    if (ParseNodes(word, &parsed)) {
      parsed.has_nodes = true;
      continue;
    }
    const std::optional<std::uint32_t> input = ParseNumber(word);
    if (input) {
      parsed.inputs.push_back(*input);
    } else {
      parsed.is_covered = false;  // "?", or "..." where there was no room
    }
  }
  return parsed;
}

std::optional<OpGap> ParseOpGap(std::string_view op) {
  if (!layout::IsOpGap(op)) return std::nullopt;
  (void)NextWord(&op);
  const std::string_view of = NextWord(&op);
  return OpGap{std::string(of), std::string(op)};
}

OpEntry::OpEntry(std::string text) : text_(std::move(text)) {
  if (std::optional<OpGap> gap = ParseOpGap(text_)) {
    parsed_ = *std::move(gap);
  } else if (std::optional<OpText> row = ParseOpText(text_)) {
    parsed_ = *std::move(row);
  }
}

std::string_view BaseOf(std::string_view op) {
  const std::size_t overload = op.rfind('.');
  std::string_view base = op.substr(0, overload);
  if (base.starts_with("aten.")) base.remove_prefix(5);
  return base;
}

std::string_view StemOf(std::string_view op) {
  std::string_view base = BaseOf(op);
  if (base.ends_with('_')) base.remove_suffix(1);
  return base;
}

}  // namespace cgdebug::ops
