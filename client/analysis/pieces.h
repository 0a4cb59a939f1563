// pieces.h: where a graph stands or has failed that is launched kernel by kernel (`run
// --blocking`), as its job tells it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "client/source/source.h"

namespace cgdebug::analysis {

struct PieceNote {
  enum class Kind {
    kStands,  // it runs for long
    kPassed,  // it did, and has ended
    kFailed,
  };
  Kind kind = Kind::kStands;
  std::uint64_t graph_id = 0;
  std::uint64_t order = 0;  // of the notes of a process
  std::string text;         // what it runs
};

// Parses a note (layout::IsOpOrder) about a piece; nothing for any other slot.
std::optional<PieceNote> ReadPieceNote(const source::Slot& slot);
// "graph 12, launched kernel by kernel, failed: node 3, ..."
std::string ToText(const PieceNote& note);

// The newest note of each process.
template <typename Process>
class PieceNotes {
 public:
  void Add(const Process& process, const source::Slot& slot) {
    std::optional<PieceNote> note = ReadPieceNote(slot);
    if (!note) return;
    PieceNote& newest = newest_[process];
    if (newest.order <= note->order) newest = *std::move(note);
  }
  // Nothing if it has gone on since.
  std::optional<PieceNote> Of(const Process& process) const {
    const auto found = newest_.find(process);
    if (found == newest_.end() || found->second.kind == PieceNote::Kind::kPassed) return {};
    return found->second;
  }
  const std::map<Process, PieceNote>& all() const { return newest_; }

 private:
  std::map<Process, PieceNote> newest_;
};

}  // namespace cgdebug::analysis
