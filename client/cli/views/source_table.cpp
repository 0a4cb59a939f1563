#include "client/cli/views/source_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "client/cli/views/terminal.h"
#include "daemon/core/numerics/format.h"

namespace cgdebug::cli {
namespace {

using numerics::Stats;
using source::Key;
using source::Slot;
using source::Source;

constexpr std::size_t kSparkColumns = 16;

struct Row {
  std::size_t slot = 0;
  std::vector<Key> keys;
  std::uint64_t lost = 0;
};

Result<std::vector<Row>> Rows(Source& source, const analysis::Scope& scope) {
  std::vector<Row> rows;
  for (std::size_t slot = 0; slot < source.slots().size(); ++slot) {
    if (!scope.Wants(source.slots()[slot])) continue;
    Result<std::vector<Key>> keys = source.Keys(slot);
    if (!keys.ok()) return keys.error();
    std::erase_if(*keys, [&](const Key& key) { return !scope.Wants(key.replay); });
    rows.push_back({.slot = slot, .keys = *std::move(keys)});
  }
  std::stable_sort(rows.begin(), rows.end(), [&](const Row& a, const Row& b) {
    const Slot &x = source.slots()[a.slot], &y = source.slots()[b.slot];
    return std::tie(x.order, x.rank) < std::tie(y.order, y.rank);
  });
  std::map<std::size_t, std::uint64_t> lost;
  for (const source::Gap& gap : source.Gaps()) {
    if (scope.Wants(gap)) lost[gap.slot] += gap.count;
  }
  for (Row& row : rows) {
    if (const auto found = lost.find(row.slot); found != lost.end()) row.lost = found->second;
  }
  return rows;
}

std::string ReplaysText(const std::vector<Key>& keys) {
  if (keys.empty()) return "-";
  if (keys.size() == 1) return std::to_string(keys.front().replay);
  return fmt::format("{}..{}", keys.front().replay, keys.back().replay);
}

Result<Stats> StatsAt(Source& source, std::size_t slot, const Key& key) {
  const Result<source::Snapshot> snapshot = source.Get(slot, key);
  if (!snapshot.ok()) return snapshot.error();
  return source::StatsOf(source, *snapshot);
}

// Over every snapshot of a slot. What cannot be read is counted and told, not left out in silence.
struct Totals {
  std::vector<double> abs_max;  // of the finite elements
  std::vector<double> spark;    // the same; infinite where not every element is finite
  double min = NAN;
  double max = NAN;
  double mean_sum = 0;
  std::uint64_t finite_snapshots = 0;
  std::uint64_t nonfinite_snapshots = 0;
  std::uint64_t unread = 0;
};

Totals TotalsOf(Source& source, const Row& row) {
  Totals totals;
  for (const Key& key : row.keys) {
    const Result<Stats> stats = StatsAt(source, row.slot, key);
    if (!stats.ok()) {
      ++totals.unread;
      continue;
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
  return totals;
}

double MeanOf(const Totals& totals) {
  return totals.finite_snapshots == 0
             ? NAN
             : totals.mean_sum / static_cast<double>(totals.finite_snapshots);
}

Json SlotJson(const Slot& slot, const Row& row) {
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
          {"payload_bytes", slot.payload_bytes},
          {"snapshots", row.keys.size()},
          {"first_replay", row.keys.empty() ? 0 : row.keys.front().replay},
          {"last_replay", row.keys.empty() ? 0 : row.keys.back().replay},
          {"every", slot.every},
          {"lost", row.lost}};
}

std::string LastText(Source& source, const Row& row, const Style& style) {
  if (row.keys.empty()) return "no snapshot";
  const Slot& slot = source.slots()[row.slot];
  const Result<Stats> stats = StatsAt(source, row.slot, row.keys.back());
  if (!stats.ok()) return style.Red("cannot be read");
  return numerics::FormatStats(slot.dtype, slot.shape, *stats, style.enabled());
}

// A file of tensors was not called at all.
std::string GraphText(const Slot& slot) {
  if (slot.graph_id != 0) {
    return slot.graph.empty() ? std::to_string(slot.graph_id) : Printable(slot.graph);
  }
  return slot.device.empty() ? "-" : "eager";
}

bool HasShards(const Source& source) {
  return std::any_of(source.slots().begin(), source.slots().end(),
                     [](const Slot& slot) { return !slot.shard.empty(); });
}

bool HasRanks(const Source& source) {
  return std::any_of(source.slots().begin(), source.slots().end(),
                     [](const Slot& slot) { return slot.rank >= 0; });
}

// Columns that say which job a row belongs to, if the rows differ in that.
class Owners {
 public:
  explicit Owners(const Source& source)
      : has_jobs_(HasSeveralJobs(source)), has_ranks_(HasRanks(source)) {}

  std::vector<TextTable::Column> Columns() const {
    std::vector<TextTable::Column> columns;
    if (has_jobs_) columns.push_back({"SESSION"});
    if (has_ranks_) columns.push_back({"RANK", TextTable::Align::kRight});
    return columns;
  }
  std::vector<std::string> Cells(const Slot& slot) const {
    std::vector<std::string> cells;
    if (has_jobs_) cells.push_back(Printable(slot.session));
    if (has_ranks_) cells.push_back(std::to_string(slot.rank));
    return cells;
  }

 private:
  bool has_jobs_;
  bool has_ranks_;
};

}  // namespace

bool HasSeveralJobs(const Source& source) {
  const std::vector<Slot>& slots = source.slots();
  return std::any_of(slots.begin(), slots.end(), [&](const Slot& slot) {
    return slot.rank == slots.front().rank && slot.session != slots.front().session;
  });
}

Result<TextTable> SlotTable(Source& source, const analysis::Scope& scope, const Style& style) {
  using Align = TextTable::Align;
  const Result<std::vector<Row>> rows = Rows(source, scope);
  if (!rows.ok()) return rows.error();
  const Owners owners(source);
  std::vector<TextTable::Column> columns = owners.Columns();
  // Only where something is thinned out: REPLAYS 1..96 would look whole.
  const bool has_every = std::ranges::any_of(
      *rows, [&](const Row& row) { return source.slots()[row.slot].every > 1; });
  columns.insert(columns.end(), {{"PROBE"},
                                 {"TENSOR"},
                                 {"DEVICE", Align::kLeft, true},
                                 {"GRAPH"},
                                 {"SNAPSHOTS", Align::kRight},
                                 {"REPLAYS", Align::kRight}});
  if (has_every) columns.push_back({"EVERY", Align::kRight});
  columns.push_back({"LOST", Align::kRight});
  const bool has_shards = HasShards(source);
  if (has_shards) columns.push_back({"SHARD", Align::kLeft, true});
  columns.push_back({"LAST"});
  TextTable table(columns);
  for (const Row& row : *rows) {
    const Slot& slot = source.slots()[row.slot];
    std::vector<std::string> cells = owners.Cells(slot);
    cells.insert(cells.end(), {Printable(SlotName(slot)), Printable(TypeText(slot)),
                               slot.device.empty() ? "-" : Printable(slot.device), GraphText(slot),
                               std::to_string(row.keys.size()), ReplaysText(row.keys)});
    if (has_every) cells.push_back(std::to_string(slot.every));
    cells.push_back(row.lost == 0 ? "0" : style.Yellow(std::to_string(row.lost)));
    if (has_shards) cells.push_back(slot.shard.empty() ? "-" : Printable(slot.shard));
    cells.push_back(LastText(source, row, style));
    table.Add(std::move(cells));
  }
  return table;
}

Result<Json> SlotsJson(Source& source, const analysis::Scope& scope) {
  const Result<std::vector<Row>> rows = Rows(source, scope);
  if (!rows.ok()) return rows.error();
  Json probes = Json::array();
  for (const Row& row : *rows) probes.push_back(SlotJson(source.slots()[row.slot], row));
  return probes;
}

Result<TextTable> StatsTable(Source& source, const analysis::Scope& scope, const Style& style) {
  using Align = TextTable::Align;
  const Result<std::vector<Row>> rows = Rows(source, scope);
  if (!rows.ok()) return rows.error();
  const Owners owners(source);
  std::vector<TextTable::Column> columns = owners.Columns();
  columns.insert(columns.end(), {{"PROBE"},
                                 {"TENSOR", Align::kLeft, true},
                                 {"REPLAYS", Align::kRight},
                                 {"MIN", Align::kRight},
                                 {"MAX", Align::kRight},
                                 {"MEAN", Align::kRight, true},
                                 {"NON-FINITE", Align::kRight},
                                 {"ABS MAX OVER REPLAYS"}});
  TextTable table(columns);
  for (const Row& row : *rows) {
    const Slot& slot = source.slots()[row.slot];
    const Totals totals = TotalsOf(source, row);
    std::string nonfinite = "0";
    if (totals.nonfinite_snapshots > 0) {
      nonfinite = style.Red(std::to_string(totals.nonfinite_snapshots));
    }
    std::string spark = Sparkline(totals.spark, kSparkColumns);
    if (row.lost > 0) spark += style.Yellow(fmt::format("  {} lost", row.lost));
    if (totals.unread > 0) spark += style.Red(fmt::format("  {} unread", totals.unread));
    const bool any = !totals.spark.empty();
    const auto number = [&](double value) { return any ? numerics::FormatNumber(value, 4) : "-"; };
    std::vector<std::string> cells = owners.Cells(slot);
    cells.insert(cells.end(), {Printable(SlotText(slot)), Printable(TypeText(slot)),
                               ReplaysText(row.keys), number(totals.min), number(totals.max),
                               number(MeanOf(totals)), nonfinite, spark});
    table.Add(std::move(cells));
  }
  return table;
}

Result<Json> StatsJson(Source& source, const analysis::Scope& scope) {
  const Result<std::vector<Row>> rows = Rows(source, scope);
  if (!rows.ok()) return rows.error();
  Json probes = Json::array();
  for (const Row& row : *rows) {
    const Totals totals = TotalsOf(source, row);
    Json json = SlotJson(source.slots()[row.slot], row);
    Json abs_max = Json::array();
    for (const double value : totals.abs_max) abs_max.push_back(JsonNumber(value));
    json["min"] = JsonNumber(totals.min);
    json["max"] = JsonNumber(totals.max);
    json["mean"] = JsonNumber(MeanOf(totals));
    json["nonfinite_snapshots"] = totals.nonfinite_snapshots;
    json["unread"] = totals.unread;
    json["abs_max"] = std::move(abs_max);
    probes.push_back(std::move(json));
  }
  return probes;
}

std::string Sparkline(const std::vector<double>& values, std::size_t columns) {
  static constexpr const char* kBars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  columns = std::min(columns, values.size());
  std::vector<double> points;
  double low = INFINITY, high = -INFINITY;
  for (std::size_t i = 0; i < columns; ++i) {
    // The largest of its stretch: a spike is what one looks for.
    const std::size_t begin = i * values.size() / columns;
    const std::size_t end = std::max(begin + 1, (i + 1) * values.size() / columns);
    double point = -INFINITY;
    for (std::size_t j = begin; j < end; ++j) {
      point = std::isfinite(values[j]) ? std::max(point, values[j]) : INFINITY;
      if (!std::isfinite(point)) break;
    }
    points.push_back(point);
    if (!std::isfinite(point)) continue;
    low = std::min(low, point);
    high = std::max(high, point);
  }
  std::string text;
  for (const double point : points) {
    if (!std::isfinite(point)) {
      text += "!";
      continue;
    }
    const double share = high > low ? (point - low) / (high - low) : 0;
    text += kBars[static_cast<std::size_t>(share * 7.999)];
  }
  return text;
}

}  // namespace cgdebug::cli
