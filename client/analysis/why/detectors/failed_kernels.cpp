// Kernels of graphs that are launched one by one, and that failed or do not end.
#include <fmt/format.h>

#include "client/analysis/pieces.h"
#include "client/analysis/why/detectors.h"

namespace cgdebug::analysis::why {

Found FindFailedKernels(const Evidence& evidence) {
  PieceNotes<source::Process> notes;
  std::map<source::Process, std::size_t> slots;
  for (std::size_t i = 0; i < evidence.source->slots().size(); ++i) {
    const source::Slot& slot = evidence.source->slots()[i];
    const std::optional<PieceNote> note = ReadPieceNote(slot);
    if (!note || note->graph_id == 0) continue;
    notes.Add(source::ProcessOf(slot), slot);
    slots[source::ProcessOf(slot)] = i;
  }
  Found answer;
  for (const auto& [process, slot] : slots) {
    const std::optional<PieceNote> note = notes.Of(process);
    if (!note) continue;
    const bool has_failed = note->kind == PieceNote::Kind::kFailed;
    answer.findings.push_back(
        {.level = has_failed ? Level::kShown : Level::kConsistent,
         .kind = has_failed ? "failed_kernel" : "hanging_kernel",
         .place = {.slot = slot, .command = "where"},
         .sentence =
             (process.rank >= 0 ? fmt::format("rank {}: ", process.rank) : "") + ToText(*note),
         .refute = has_failed ? "nothing: it was launched alone, and CUDA reported the error"
                              : "a kernel that waits for another rank, or is slow"});
  }
  return answer;
}

}  // namespace cgdebug::analysis::why
