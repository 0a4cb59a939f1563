#include "client/analysis/pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "proto/layout/op_log_layout.h"

namespace cgdebug::analysis {

std::optional<PieceNote> ReadPieceNote(const source::Slot& slot) {
  if (!layout::IsOpOrder(slot.op)) return std::nullopt;
  std::string_view rest = slot.op;
  const auto take = [&rest] {
    const std::size_t end = std::min(rest.find(' '), rest.size());
    const std::string_view word = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return word;
  };
  (void)take();
  const std::string_view number = take();
  const std::string_view kind = take();
  PieceNote note{.order = slot.order, .text = std::string(rest)};
  const auto [end, failure] =
      std::from_chars(number.data(), number.data() + number.size(), note.graph_id);
  if (failure != std::errc() || end != number.data() + number.size()) return std::nullopt;
  if (kind == "stands") {
    note.kind = PieceNote::Kind::kStands;
  } else if (kind == "passed") {
    note.kind = PieceNote::Kind::kPassed;
  } else if (kind == "failed") {
    note.kind = PieceNote::Kind::kFailed;
  } else {
    return std::nullopt;
  }
  return note;
}

std::string ToText(const PieceNote& note) {
  return fmt::format("graph {}, launched kernel by kernel, {}: {}", note.graph_id,
                     note.kind == PieceNote::Kind::kFailed ? "failed" : "stands", note.text);
}

}  // namespace cgdebug::analysis
