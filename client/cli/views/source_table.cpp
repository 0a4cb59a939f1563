#include "client/cli/views/source_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "client/cli/views/source_rows.h"
#include "daemon/core/numerics/format.h"

namespace cgdebug::cli {
namespace {

using source::Slot;
using source::Source;

std::string LastText(Source& source, const SourceRow& row, const Style& style) {
  if (row.keys.empty()) return "no snapshot";
  const Slot& slot = source.slots()[row.slot];
  const Result<source::Snapshot> snapshot = source.Get(row.slot, row.keys.back());
  if (!snapshot.ok()) return style.Red("cannot be read");
  const Result<numerics::Stats> stats = source::StatsOf(source, *snapshot);
  if (!stats.ok()) return style.Red("cannot be read");
  return numerics::FormatStats(slot.dtype, slot.shape, *stats, style.enabled());
}

}  // namespace

Result<TextTable> SlotTable(Source& source, const analysis::Scope& scope, const Style& style,
                            bool is_whole) {
  using Align = TextTable::Align;
  const Result<std::vector<SourceRow>> rows = RowsOf(source, scope);
  if (!rows.ok()) return rows.error();
  const OwnerColumns owners(source);
  std::vector<TextTable::Column> columns = owners.Columns();
  // Shown only if some probe is thinned out, because REPLAYS 1..96 would look whole.
  const bool has_every = std::ranges::any_of(
      *rows, [&](const SourceRow& row) { return source.slots()[row.slot].every > 1; });
  columns.insert(columns.end(), {TextTable::Name("PROBE"),
                                 {"TENSOR"},
                                 {"DEVICE", Align::kLeft, true},
                                 {"GRAPH", Align::kLeft, true},
                                 {"SNAPSHOTS", Align::kCount},
                                 {"REPLAYS", Align::kCount}});
  if (has_every) columns.push_back({"EVERY", Align::kCount});
  columns.push_back({"MISSING", Align::kCount});
  const bool has_shards =
      std::ranges::any_of(source.slots(), [](const Slot& slot) { return !slot.shard.empty(); });
  if (has_shards) columns.push_back({"SHARD", Align::kLeft, true});
  columns.push_back({"LAST", Align::kLeft, true});
  TextTable table(columns);
  const Folds<SourceRow> folds = FoldsOf(source, *rows, is_whole);
  for (const SourceRow& row : *rows) {
    const Slot& slot = source.slots()[row.slot];
    std::vector<std::string> cells = owners.Cells(slot);
    if (const auto fold = folds.find(FoldKeyOf(slot)); fold != folds.end()) {
      if (fold->second.front() != &row) continue;
      const Folded folded = Summarize(source, fold->second);
      cells.insert(cells.end(),
                   {Printable(SlotName(slot)), folded.tensor, folded.device, folded.graph,
                    std::to_string(folded.snapshots), fmt::format("..{}", folded.last_replay)});
      if (has_every) cells.push_back("-");
      cells.push_back(LostText(folded.lost, style));
      if (has_shards) cells.push_back("-");
      cells.push_back(FindingsText(source, folded, style));
      table.Add(std::move(cells));
      continue;
    }
    cells.insert(cells.end(), {Printable(SlotName(slot)), Printable(TypeText(slot)),
                               slot.device.empty() ? "-" : Printable(slot.device), GraphText(slot),
                               std::to_string(row.keys.size()), ReplaysText(row.keys)});
    if (has_every) cells.push_back(std::to_string(slot.every));
    cells.push_back(LostText(row.lost, style));
    if (has_shards) cells.push_back(slot.shard.empty() ? "-" : Printable(slot.shard));
    cells.push_back(LastText(source, row, style));
    table.Add(std::move(cells));
  }
  return table;
}

Result<Json> SlotsJson(Source& source, const analysis::Scope& scope) {
  const Result<std::vector<SourceRow>> rows = RowsOf(source, scope);
  if (!rows.ok()) return rows.error();
  Json probes = Json::array();
  for (const SourceRow& row : *rows)
    probes.push_back(analysis::SlotJson(source.slots()[row.slot], row));
  return probes;
}

}  // namespace cgdebug::cli
