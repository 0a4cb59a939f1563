#include "client/cli/views/source_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace cgdebug::cli {
namespace {

using source::Key;
using source::Slot;
using source::Source;

}  // namespace

std::string ReplaysText(const std::vector<Key>& keys) {
  if (keys.empty()) return "-";
  if (keys.size() == 1) return std::to_string(keys.front().replay);
  return fmt::format("{}..{}", keys.front().replay, keys.back().replay);
}

Folded Summarize(Source& source, const std::vector<const SourceRow*>& fold) {
  Folded folded;
  std::set<std::string> types, devices, graphs;
  for (const SourceRow* row : fold) {
    const Slot& slot = source.slots()[row->slot];
    types.insert(Printable(TypeText(slot)));
    devices.insert(slot.device.empty() ? "-" : Printable(slot.device));
    graphs.insert(GraphText(slot));
    folded.snapshots += row->keys.size();
    if (!row->keys.empty()) {
      folded.last_replay = std::max(folded.last_replay, row->keys.back().replay);
    }
    folded.lost += row->lost;
    const std::uint64_t bad_before = folded.totals.nonfinite_snapshots;
    analysis::AddTo(&folded.totals, source, *row);
    folded.bad += folded.totals.nonfinite_snapshots > bad_before;
  }
  folded.tensor = OneOf(types, "shapes");
  folded.device = OneOf(devices, "devices");
  folded.graph = OneOf(graphs, "graphs");
  return folded;
}

std::string FindingsText(const Source& source, const Folded& folded, const Style& style) {
  const Totals& totals = folded.totals;
  std::string text =
      totals.first_bad ? FoldedFindings(folded.bad, source.slots()[totals.first_bad_slot].qualifier,
                                        totals.first_bad->replay, style)
                       : FoldedFindings(0, "", 0, style);
  if (totals.unread > 0) text += style.Red(fmt::format("  {} unread", totals.unread));
  return text;
}

FoldKey FoldKeyOf(const Slot& slot) {
  return {slot.session, slot.rank, slot.probe, slot.invocation};
}

Folds<SourceRow> FoldsOf(const Source& source, const std::vector<SourceRow>& rows, bool is_whole) {
  return FoldsOf(rows, is_whole,
                 [&](const SourceRow& row) { return FoldKeyOf(source.slots()[row.slot]); });
}

bool HasSeveralJobs(const Source& source) {
  const std::vector<Slot>& slots = source.slots();
  return std::any_of(slots.begin(), slots.end(), [&](const Slot& slot) {
    return slot.rank == slots.front().rank && slot.session != slots.front().session;
  });
}

OwnerColumns::OwnerColumns(const Source& source)
    : has_jobs_(HasSeveralJobs(source)),
      has_ranks_(
          std::ranges::any_of(source.slots(), [](const Slot& slot) { return slot.rank >= 0; })) {}

}  // namespace cgdebug::cli
