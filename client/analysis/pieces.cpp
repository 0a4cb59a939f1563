#include "client/analysis/pieces.h"

#include <fmt/format.h>

#include "client/analysis/ops/graph_notes.h"
#include "proto/layout/op_log_layout.h"

namespace cgdebug::analysis {

std::optional<PieceNote> ReadPieceNote(const source::Slot& slot) {
  if (!layout::IsOpOrder(slot.op.text())) return std::nullopt;
  std::string_view rest = slot.op.text();
  (void)TakeWord(&rest);
  const std::optional<std::uint64_t> graph_id = TakeNumber(&rest);
  if (!graph_id) return std::nullopt;
  const std::string_view kind = TakeWord(&rest);
  if (*graph_id == 0) (void)TakeNumber(&rest);
  PieceNote note{.graph_id = *graph_id, .order = slot.order, .text = std::string(rest)};
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
  if (note.graph_id == 0) return "in or after " + note.text;
  return fmt::format("graph {}, launched kernel by kernel, {}: {}", note.graph_id,
                     note.kind == PieceNote::Kind::kFailed ? "failed" : "stands", note.text);
}

}  // namespace cgdebug::analysis
