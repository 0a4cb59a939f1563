#include "daemon/core/words/probe_name.h"

#include <cstddef>
#include <cstdio>

#include "proto/layout/ring_layout.h"

namespace cgdebug::words {
namespace {

constexpr std::size_t kMostShown = 80;

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

// How many bytes at `at` are a character that no name may have; 0 if it may.
std::size_t ReservedAt(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
  };
  const unsigned first = byte(0);
  constexpr std::string_view kOfSelectors = "*?@#:{}";
  if (first < 0x20 || first == 0x7f || (at == 0 && first == '!')) return 1;
  if (kOfSelectors.find(text[at]) != std::string_view::npos) return 1;
  if (first == 0xc2 && byte(1) >= 0x80 && byte(1) < 0xa0) return 2;                        // C1
  if (first == 0xe2 && byte(1) == 0x80 && (byte(2) == 0xa8 || byte(2) == 0xa9)) return 3;  // U+2028
  return 0;
}

std::string WithoutReserved(std::string_view text) {
  std::string name;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t reserved = ReservedAt(text, at);
    name += reserved != 0 ? '_' : text[at];
    at += reserved != 0 ? reserved : 1;
  }
  return name;
}

// In quotes, cut to what fits a line, bytes that do not print escaped.
std::string Quoted(std::string_view text) {
  std::size_t shown = text.size();
  if (shown > kMostShown) {
    for (shown = kMostShown; shown > 0 && IsContinuation(text[shown]);) --shown;
  }
  std::string quoted = "'";
  for (std::size_t at = 0; at < shown; ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const std::size_t reserved = ReservedAt(text, at);
    if (byte >= 0x20 && byte != 0x7f && reserved < 2) {
      quoted += text[at];
      continue;
    }
    for (std::size_t end = at + (reserved > 0 ? reserved : 1); at < end; ++at) {
      char escaped[5];
      std::snprintf(escaped, sizeof(escaped), "\\x%02x", static_cast<unsigned char>(text[at]));
      quoted += escaped;
    }
    --at;
  }
  return quoted + (shown < text.size() ? "..." : "") + "'";
}

}  // namespace

Result<void> CheckProbeName(std::string_view name) {
  if (name.empty()) {
    return Error{"a probe needs a name: every place that shows the tensor uses it"};
  }
  for (std::size_t at = 0; at < name.size(); ++at) {
    const std::size_t reserved = ReservedAt(name, at);
    if (reserved == 0) continue;
    return Error{"a probe's name cannot contain " + Quoted(name.substr(at, reserved)) + ": " +
                 Quoted(name) +
                 ". Selectors such as 'blk*' and NAME@12 use it, or it ends a line. Write for "
                 "example " +
                 Quoted(WithoutReserved(name))};
  }
  if (name.size() > layout::kMaxNameBytes) {
    return Error{"a probe's name may have " + std::to_string(layout::kMaxNameBytes) +
                 " bytes of UTF-8, this one has " + std::to_string(name.size()) + ": " +
                 Quoted(name)};
  }
  return {};
}

std::string MakeProbeName(std::string_view text) {
  std::string name = WithoutReserved(text);
  if (name.size() <= layout::kMaxNameBytes) return name;
  std::size_t begin = name.size() - layout::kMaxNameBytes;
  while (begin < name.size() && IsContinuation(name[begin])) ++begin;
  // The end of a long name may begin with what no name may begin with.
  return WithoutReserved(std::string_view(name).substr(begin));
}

}  // namespace cgdebug::words
