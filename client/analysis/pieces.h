// pieces.h: where a graph stands or has failed that is launched kernel by kernel (`run
// --blocking`), and which op that waits for other ranks a program has called and not gone on from,
// as their job tells it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "client/source/source.h"

namespace cgdebug::analysis {

struct PieceNote {
  enum class Kind {
    kStands,  // it runs for long
    kPassed,  // it did, and has ended
    kFailed,
  };
  Kind kind = Kind::kStands;
  std::uint64_t graph_id = 0;  // 0: of eager ops
  std::uint64_t order = 0;     // of the notes of a process
  std::string text;            // what it runs
};

// Parses a note (layout::IsOpOrder) about a piece; nothing for any other slot.
std::optional<PieceNote> ReadPieceNote(const source::Slot& slot);
// "graph 12, launched kernel by kernel, failed: node 3, ..."; of eager ops "in or after ...".
std::string ToText(const PieceNote& note);

// The newest note of each process.
template <typename Process>
class PieceNotes {
 public:
  void Add(const Process& process, const source::Slot& slot) {
    std::optional<PieceNote> note = ReadPieceNote(slot);
    if (!note) return;
    PieceNote& newest = (note->graph_id == 0 ? eager_ : pieces_)[process];
    if (newest.order <= note->order) newest = *std::move(note);
  }
  // Of a graph in pieces; nothing if it has gone on since.
  std::optional<PieceNote> Of(const Process& process) const { return Of(pieces_, process); }
  // The same of the eager ops.
  std::optional<PieceNote> EagerOf(const Process& process) const { return Of(eager_, process); }

 private:
  using Notes = std::map<Process, PieceNote>;

  static std::optional<PieceNote> Of(const Notes& notes, const Process& process) {
    const auto found = notes.find(process);
    if (found == notes.end() || found->second.kind == PieceNote::Kind::kPassed) return {};
    return found->second;
  }

  Notes pieces_;
  Notes eager_;
};

}  // namespace cgdebug::analysis
