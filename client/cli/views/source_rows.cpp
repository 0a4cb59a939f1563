#include "client/cli/views/source_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace cgdebug::cli {
namespace {

using numerics::Stats;
using source::Key;
using source::Slot;
using source::Source;

void AddTo(Totals* sum, Source& source, const SourceRow& row) {
  Totals& totals = *sum;
  for (const Key& key : row.keys) {
    const Result<source::Snapshot> snapshot = source.Get(row.slot, key);
    const Result<Stats> stats =
        snapshot.ok() ? source::StatsOf(source, *snapshot) : Result<Stats>(snapshot.error());
    if (!stats.ok()) {
      ++totals.unread;
      continue;
    }
    if (stats->nonfinite() > 0) {
      const source::Moment moment = MomentOf(source.slots()[row.slot], *snapshot);
      if (!totals.first_bad || moment < *totals.first_bad) {
        totals.first_bad = moment;
        totals.first_bad_slot = row.slot;
      }
    }
    totals.abs_max.push_back(stats->abs_max);
    if (stats->count > 0) {
      totals.spark.push_back(stats->nonfinite() > 0 ? INFINITY : stats->abs_max);
    }
    totals.min = std::fmin(totals.min, stats->min);
    totals.max = std::fmax(totals.max, stats->max);
    totals.nonfinite_snapshots += stats->nonfinite() > 0;
    if (std::isfinite(stats->mean)) {
      totals.mean_sum += stats->mean;
      ++totals.finite_snapshots;
    }
  }
}

}  // namespace

Result<std::vector<SourceRow>> RowsOf(Source& source, const analysis::Scope& scope) {
  std::vector<SourceRow> rows;
  for (const std::size_t slot : analysis::WantedSlots(source, scope)) {
    Result<std::vector<Key>> keys = analysis::WantedKeys(source, slot, scope);
    if (!keys.ok()) return keys.error();
    rows.push_back({.slot = slot, .keys = *std::move(keys)});
  }
  std::map<std::size_t, std::uint64_t> lost;
  for (const source::Gap& gap : source.Gaps()) {
    if (scope.Wants(gap)) lost[gap.slot] += gap.count;
  }
  for (SourceRow& row : rows) {
    if (const auto found = lost.find(row.slot); found != lost.end()) row.lost = found->second;
  }
  return rows;
}

std::string ReplaysText(const std::vector<Key>& keys) {
  if (keys.empty()) return "-";
  if (keys.size() == 1) return std::to_string(keys.front().replay);
  return fmt::format("{}..{}", keys.front().replay, keys.back().replay);
}

Json SlotJson(const Slot& slot, const SourceRow& row) {
  return {{"probe", slot.probe},
          {"invocation", slot.invocation},
          {"rank", slot.rank},
          {"session", slot.session},
          {"dtype", slot.dtype_name},
          {"shape", slot.shape},
          {"device", slot.device},
          {"graph", slot.graph},
          {"graph_id", slot.graph_id},
          {"graph_order", slot.order},
          {"site", slot.site},
          {"shard", slot.shard},
          {"op", slot.op},
          {"payload_bytes", slot.payload_bytes},
          {"snapshots", row.keys.size()},
          {"first_replay", row.keys.empty() ? 0 : row.keys.front().replay},
          {"last_replay", row.keys.empty() ? 0 : row.keys.back().replay},
          {"every", slot.every},
          {"in_body", slot.in_body},
          {"lost", row.lost}};
}

Totals TotalsOf(Source& source, const SourceRow& row) {
  Totals totals;
  AddTo(&totals, source, row);
  return totals;
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
    AddTo(&folded.totals, source, *row);
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
