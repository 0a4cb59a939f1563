#include "client/analysis/source_rows.h"

#include <fmt/format.h>

#include <map>
#include <string_view>

#include "client/analysis/ops/op_details.h"

namespace cgdebug::analysis {

using numerics::Stats;
using source::Key;
using source::Slot;
using source::Source;

namespace {

Json NumberJson(double value) { return JsonNumber(value); }
Json NumberJson(std::uint64_t value) { return value; }

}  // namespace

Result<std::vector<SourceRow>> RowsOf(Source& source, const Scope& scope) {
  std::vector<SourceRow> rows;
  for (const std::size_t slot : WantedSlots(source, scope)) {
    Result<std::vector<Key>> keys = WantedKeys(source, slot, scope);
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

void Totals::Add(const Slot& slot, const source::Snapshot& snapshot, const Stats& stats) {
  if (stats.nonfinite() > 0) {
    const source::Moment moment = MomentOf(slot, snapshot);
    if (!first_bad || moment < *first_bad) {
      first_bad = moment;
      first_bad_slot = snapshot.slot;
    }
  }
  abs_max.push_back(stats.abs_max);
  if (stats.count > 0) spark.push_back(stats.nonfinite() > 0 ? INFINITY : stats.abs_max);
  min = std::fmin(min, stats.min);
  max = std::fmax(max, stats.max);
  nonfinite_snapshots += stats.nonfinite() > 0;
  if (std::isfinite(stats.mean)) {
    mean_sum += stats.mean;
    ++finite_snapshots;
  }
}

void AddTo(Totals* totals, Source& source, const SourceRow& row) {
  for (const Key& key : row.keys) {
    const Result<source::Snapshot> snapshot = source.Get(row.slot, key);
    const Result<Stats> stats =
        snapshot.ok() ? source::StatsOf(source, *snapshot) : Result<Stats>(snapshot.error());
    if (stats.ok()) {
      totals->Add(source.slots()[row.slot], *snapshot, *stats);
    } else {
      ++totals->unread;
    }
  }
}

Totals TotalsOf(Source& source, const SourceRow& row) {
  Totals totals;
  AddTo(&totals, source, row);
  return totals;
}

Json StatsJson(const Stats& stats) {
  Json json;
  numerics::Stats::ForEachNumber([&](const layout::Field& field, auto member) {
    json[field.name] = NumberJson(stats.*member);
    if (std::string_view(field.name) != "neg_inf") return;
    json["inf"] = stats.pos_inf + stats.neg_inf;
    json["nonfinite"] = stats.nonfinite();
  });
  json["xor_hash"] = nullptr;
  if (stats.has_hash) json["xor_hash"] = fmt::format("{:016x}", stats.hash);
  json["ordered_hash"] = nullptr;
  if (stats.has_ordered_hash) json["ordered_hash"] = fmt::format("{:08x}", stats.ordered_hash);
  if (stats.has_saturated) json["saturated"] = stats.saturated;
  json["first_nonfinite"] = nullptr;
  if (stats.has_nonfinite) {
    json["first_nonfinite"] = {{"index", stats.first_nonfinite},
                               {"value", JsonNumber(stats.first_nonfinite_value)}};
  }
  json["histogram"] = stats.histogram;
  return json;
}

Json SlotJson(const Slot& slot, const SourceRow& row) {
  Json json = {{"probe", slot.probe},
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
               {"part", slot.part},
               {"op", slot.op.text()},
               {"payload_bytes", slot.payload_bytes},
               {"snapshots", row.keys.size()},
               {"first_replay", row.keys.empty() ? 0 : row.keys.front().replay},
               {"last_replay", row.keys.empty() ? 0 : row.keys.back().replay},
               {"every", slot.every},
               {"in_body", slot.in_body},
               {"thread", slot.thread},
               {"lost", row.lost}};
  if (!slot.op.empty()) json["details"] = OpDetailsJson(slot.details);
  return json;
}

Json TotalsJson(const Slot& slot, const SourceRow& row, const Totals& totals) {
  Json json = SlotJson(slot, row);
  json["min"] = JsonNumber(totals.min);
  json["max"] = JsonNumber(totals.max);
  json["mean"] = JsonNumber(totals.mean());
  json["nonfinite_snapshots"] = totals.nonfinite_snapshots;
  json["unread"] = totals.unread;
  return json;
}

}  // namespace cgdebug::analysis
