#include "client/cli/views/source_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "client/cli/views/snapshot_text.h"
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
  // The first NaN or Inf, and in which slot.
  std::optional<source::Moment> first_bad;
  std::size_t first_bad_slot = 0;
};

void AddTo(Totals* sum, Source& source, const Row& row) {
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

Totals TotalsOf(Source& source, const Row& row) {
  Totals totals;
  AddTo(&totals, source, row);
  return totals;
}

double MeanOf(const Totals& totals) {
  return totals.finite_snapshots == 0
             ? NAN
             : totals.mean_sum / static_cast<double>(totals.finite_snapshots);
}

// What --sort looks at, larger numbers first. A probe without any finite element comes last.
double RankOf(StatsOrder order, const Totals& totals, std::uint64_t lost) {
  switch (order) {
    case StatsOrder::kAbsMax: {
      double most = -1;
      for (const double value : totals.abs_max) most = std::fmax(most, value);
      return most;
    }
    case StatsOrder::kNonfinite:
      return static_cast<double>(totals.nonfinite_snapshots);
    case StatsOrder::kLost:
      return static_cast<double>(lost);
    case StatsOrder::kGraph:
    case StatsOrder::kName:
      break;
  }
  return 0;
}

// A line of a table, or the JSON of a probe, with what it is sorted by.
template <typename Item>
struct Ranked {
  std::string name;
  double rank = 0;
  Item item;
};

template <typename Item>
std::vector<Ranked<Item>> Sorted(StatsOrder order, std::vector<Ranked<Item>> lines) {
  std::ranges::stable_sort(lines, [&](const Ranked<Item>& a, const Ranked<Item>& b) {
    return order == StatsOrder::kName ? a.name < b.name : a.rank > b.rank;
  });
  return lines;
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
          {"op", slot.op},
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

// A file of tensors has no calls.
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

// Calls of one name in several graphs, or with several shapes, by session, rank, name and call.
// `Item` is what a table has a line for: a row of a source, or a probe of a live job.
using FoldKey = std::tuple<std::string, int, std::string, std::uint32_t>;
template <typename Item>
using Folds = std::map<FoldKey, std::vector<const Item*>>;

FoldKey FoldKeyOf(const Slot& slot) {
  return {slot.session, slot.rank, slot.probe, slot.invocation};
}
FoldKey FoldKeyOf(const live::Probe& probe) {
  return {probe.session, probe.slot.rank, probe.slot.probe, probe.slot.invocation};
}

// Leaves out groups that are few enough for a line each.
template <typename Item, typename KeyOf>
Folds<Item> FoldsOf(const std::vector<Item>& items, bool is_whole, const KeyOf& key_of) {
  Folds<Item> folds;
  if (is_whole) return folds;
  for (const Item& item : items) folds[key_of(item)].push_back(&item);
  std::erase_if(folds, [](const auto& fold) { return fold.second.size() <= kMostLinesOfAProbe; });
  return folds;
}
Folds<Row> FoldsOf(const Source& source, const std::vector<Row>& rows, bool is_whole) {
  return FoldsOf(rows, is_whole,
                 [&](const Row& row) { return FoldKeyOf(source.slots()[row.slot]); });
}

// What the slots of a line have in common, or how many different ones they have.
std::string OneOf(const std::set<std::string>& texts, const char* noun) {
  return texts.size() == 1 ? *texts.begin() : fmt::format("{} {}", texts.size(), noun);
}

std::string LostText(std::uint64_t lost, const Style& style) {
  return lost == 0 ? "0" : style.Yellow(std::to_string(lost));
}

// What is to be shown of several slots in one line.
struct Folded {
  std::string tensor;  // their type, or how many
  std::string device;
  std::string graph;
  std::uint64_t snapshots = 0;
  std::uint64_t last_replay = 0;
  std::uint64_t lost = 0;
  std::uint64_t bad = 0;  // slots
  Totals totals = {};
};

Folded Summarize(Source& source, const std::vector<const Row*>& fold) {
  Folded folded;
  std::set<std::string> types, devices, graphs;
  for (const Row* row : fold) {
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

// "3 saw NaN or Inf, first bs=16 @20  -v: each". `bad`: how many graphs or shapes had NaN or Inf,
// the first of them at `replay` in the one with `qualifier`.
std::string FoldedFindings(std::uint64_t bad, const std::string& qualifier, std::uint64_t replay,
                           const Style& style) {
  const std::string each = style.Dim("  -v: each");
  if (bad == 0) return "none saw NaN or Inf" + each;
  const std::string where = qualifier.starts_with("@g:") ? qualifier.substr(3) : qualifier;
  return style.Red(fmt::format("{} saw NaN or Inf, first {} @{}", bad, Printable(where), replay)) +
         each;
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

// --- of live jobs ------------------------------------------------------------------------------

std::string VerdictText(const live::Probe& probe, const Style& style) {
  if (!probe.verdict) return "";
  const live::Verdict& verdict = *probe.verdict;
  switch (verdict.state) {
    case layout::VerdictState::kPass:
      if (verdict.lost > 0) {
        return style.Yellow(fmt::format("compared {}, {} lost", verdict.compared, verdict.lost));
      }
      return style.Green(fmt::format("pass {}", verdict.compared));
    case layout::VerdictState::kFail:
      return style.Red(fmt::format("FAIL @{} ({} of {})", verdict.first_failed_replay,
                                   verdict.mismatched, verdict.compared));
    case layout::VerdictState::kError:
      return style.Red("ERROR: " + Printable(verdict.text));
    default:
      return "";
  }
}

std::string LastText(const live::Probe& probe, const Style& style) {
  std::vector<std::string> parts;
  if (probe.retired) parts.push_back(style.Dim("retired"));
  if (probe.control) parts.push_back(style.Yellow("[" + ControlText(*probe.control) + "]"));
  if (const std::string verdict = VerdictText(probe, style); !verdict.empty()) {
    parts.push_back(verdict);
  }
  if (probe.last_stats) {
    parts.push_back(numerics::FormatStats(probe.slot.dtype, probe.slot.shape, *probe.last_stats,
                                          style.enabled()));
  } else {
    parts.push_back("no snapshot yet");
  }
  return fmt::format("{}", fmt::join(parts, "  "));
}

std::string ActionsText(const live::Probe& probe) {
  return probe.actions.empty() ? "-" : fmt::format("{}", fmt::join(probe.actions, ","));
}

using LiveFold = std::vector<const live::Probe*>;

std::string FindingsText(const LiveFold& fold, const Style& style) {
  std::uint64_t bad = 0, failed = 0;
  const live::FirstNonfinite* first = nullptr;
  for (const live::Probe* probe : fold) {
    bad += probe->first_nan.replay != 0 || probe->first_inf.replay != 0;
    failed += probe->verdict && probe->verdict->state == layout::VerdictState::kFail;
    for (const live::FirstNonfinite* one : {&probe->first_nan, &probe->first_inf}) {
      if (one->replay == 0) continue;
      if (first == nullptr || one->serial < first->serial) first = one;
    }
  }
  std::string text = first == nullptr ? FoldedFindings(0, "", 0, style)
                                      : FoldedFindings(bad, first->qualifier, first->replay, style);
  if (failed > 0) text += style.Red(fmt::format("  {} FAIL", failed));
  return text;
}

// One line for all of them.
std::vector<std::string> CellsOf(const LiveFold& fold, const Style& style) {
  std::set<std::string> types, devices, lanes, policies, actions, graphs;
  std::uint64_t replay = 0, lost = 0;
  for (const live::Probe* probe : fold) {
    types.insert(Printable(TypeText(probe->slot)));
    devices.insert(Printable(probe->slot.device));
    lanes.emplace(NameOf(probe->lane));
    policies.emplace(NameOf(probe->policy));
    actions.insert(ActionsText(*probe));
    graphs.insert(GraphText(probe->slot));
    replay = std::max(replay, probe->replay);
    lost += probe->counters.lost();
  }
  return {Printable(SlotName(fold.front()->slot)),
          OneOf(types, "shapes"),
          OneOf(devices, "devices"),
          OneOf(lanes, "lanes"),
          OneOf(policies, "policies"),
          OneOf(actions, "kinds"),
          OneOf(graphs, "graphs"),
          "-",
          std::to_string(replay),
          LostText(lost, style),
          FindingsText(fold, style)};
}

std::vector<std::string> CellsOf(const live::Probe& probe, const Style& style) {
  const Slot& slot = probe.slot;
  return {Printable(SlotName(slot)),
          Printable(TypeText(slot)),
          Printable(slot.device),
          std::string(NameOf(probe.lane)),
          std::string(NameOf(probe.policy)),
          ActionsText(probe),
          GraphText(slot),
          fmt::format("{}x{}", probe.capacity, numerics::FormatBytes(slot.payload_bytes)),
          std::to_string(probe.replay),
          LostText(probe.counters.lost(), style),
          LastText(probe, style)};
}

}  // namespace

bool HasSeveralJobs(const Source& source) {
  const std::vector<Slot>& slots = source.slots();
  return std::any_of(slots.begin(), slots.end(), [&](const Slot& slot) {
    return slot.rank == slots.front().rank && slot.session != slots.front().session;
  });
}

TextTable LiveTable(const std::vector<live::Probe>& probes, const Style& style, bool with_session,
                    bool is_whole) {
  using Align = TextTable::Align;
  std::vector<TextTable::Column> columns;
  if (with_session) columns.push_back({"SESSION"});
  for (const char* title : {"PROBE", "TENSOR"}) columns.push_back({title});
  for (const char* title : {"DEVICE", "LANE", "POLICY", "ACTIONS"}) {
    columns.push_back({title, Align::kLeft, /*is_optional=*/true});
  }
  columns.push_back({"GRAPH"});
  columns.push_back({"RING", Align::kRight, /*is_optional=*/true});
  for (const char* title : {"REPLAY", "LOST"}) columns.push_back({title, Align::kCount});
  columns.push_back({"LAST"});
  TextTable table(columns);
  const Folds<live::Probe> folds =
      FoldsOf(probes, is_whole, [](const live::Probe& probe) { return FoldKeyOf(probe); });
  for (const live::Probe& probe : probes) {
    const auto fold = folds.find(FoldKeyOf(probe));
    if (fold != folds.end() && fold->second.front() != &probe) continue;
    std::vector<std::string> row;
    if (with_session) row.push_back(Printable(probe.slot.session));
    const std::vector<std::string> cells =
        fold != folds.end() ? CellsOf(fold->second, style) : CellsOf(probe, style);
    row.insert(row.end(), cells.begin(), cells.end());
    table.Add(std::move(row));
  }
  return table;
}

Result<TextTable> SlotTable(Source& source, const analysis::Scope& scope, const Style& style,
                            bool is_whole) {
  using Align = TextTable::Align;
  const Result<std::vector<Row>> rows = Rows(source, scope);
  if (!rows.ok()) return rows.error();
  const Owners owners(source);
  std::vector<TextTable::Column> columns = owners.Columns();
  // Shown only if some probe is thinned out, because REPLAYS 1..96 would look whole.
  const bool has_every = std::ranges::any_of(
      *rows, [&](const Row& row) { return source.slots()[row.slot].every > 1; });
  columns.insert(columns.end(), {{"PROBE"},
                                 {"TENSOR"},
                                 {"DEVICE", Align::kLeft, true},
                                 {"GRAPH"},
                                 {"SNAPSHOTS", Align::kCount},
                                 {"REPLAYS", Align::kCount}});
  if (has_every) columns.push_back({"EVERY", Align::kCount});
  columns.push_back({"LOST", Align::kCount});
  const bool has_shards = HasShards(source);
  if (has_shards) columns.push_back({"SHARD", Align::kLeft, true});
  columns.push_back({"LAST"});
  TextTable table(columns);
  const Folds<Row> folds = FoldsOf(source, *rows, is_whole);
  for (const Row& row : *rows) {
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
  const Result<std::vector<Row>> rows = Rows(source, scope);
  if (!rows.ok()) return rows.error();
  Json probes = Json::array();
  for (const Row& row : *rows) probes.push_back(SlotJson(source.slots()[row.slot], row));
  return probes;
}

Result<TextTable> StatsTable(Source& source, const analysis::Scope& scope, const Style& style,
                             bool is_whole, StatsOrder order) {
  using Align = TextTable::Align;
  const Result<std::vector<Row>> rows = Rows(source, scope);
  if (!rows.ok()) return rows.error();
  const Owners owners(source);
  std::vector<TextTable::Column> columns = owners.Columns();
  columns.insert(columns.end(), {{"PROBE"},
                                 {"TENSOR", Align::kLeft, true},
                                 {"REPLAYS", Align::kCount},
                                 {"MIN", Align::kRight},
                                 {"MAX", Align::kRight},
                                 {"MEAN", Align::kRight, true},
                                 {"NON-FINITE", Align::kCount},
                                 {"ABS MAX OVER REPLAYS"}});
  const Folds<Row> folds = FoldsOf(source, *rows, is_whole);
  std::vector<Ranked<std::vector<std::string>>> lines;
  const auto add = [&](const Slot& slot, const std::vector<std::string>& head, const Totals& totals,
                       std::uint64_t lost, const std::string& last) {
    std::string nonfinite = "0";
    if (totals.nonfinite_snapshots > 0) {
      nonfinite = style.Red(std::to_string(totals.nonfinite_snapshots));
    }
    const bool any = !totals.spark.empty();
    const auto number = [&](double value) { return any ? numerics::FormatNumber(value, 4) : "-"; };
    std::vector<std::string> cells = owners.Cells(slot);
    cells.insert(cells.end(), head.begin(), head.end());
    cells.insert(cells.end(),
                 {number(totals.min), number(totals.max), number(MeanOf(totals)), nonfinite, last});
    lines.push_back({SlotName(slot), RankOf(order, totals, lost), std::move(cells)});
  };
  const auto lost_text = [&](std::uint64_t lost) {
    return lost == 0 ? "" : style.Yellow(fmt::format("  {} lost", FormatGrouped(lost)));
  };
  for (const Row& row : *rows) {
    const Slot& slot = source.slots()[row.slot];
    if (const auto fold = folds.find(FoldKeyOf(slot)); fold != folds.end()) {
      if (fold->second.front() != &row) continue;
      const Folded folded = Summarize(source, fold->second);
      add(slot, {Printable(SlotName(slot)), folded.tensor, fmt::format("..{}", folded.last_replay)},
          folded.totals, folded.lost,
          folded.graph + ", " + FindingsText(source, folded, style) + lost_text(folded.lost));
      continue;
    }
    const Totals totals = TotalsOf(source, row);
    std::string last = Sparkline(totals.spark, kSparkColumns) + lost_text(row.lost);
    if (totals.unread > 0) last += style.Red(fmt::format("  {} unread", totals.unread));
    add(slot, {Printable(SlotText(slot)), Printable(TypeText(slot)), ReplaysText(row.keys)}, totals,
        row.lost, last);
  }
  TextTable table(columns);
  for (auto& line : Sorted(order, std::move(lines))) table.Add(std::move(line.item));
  return table;
}

Result<Json> StatsJson(Source& source, const analysis::Scope& scope, StatsOrder order) {
  const Result<std::vector<Row>> rows = Rows(source, scope);
  if (!rows.ok()) return rows.error();
  std::vector<Ranked<Json>> lines;
  for (const Row& row : *rows) {
    const Slot& slot = source.slots()[row.slot];
    const Totals totals = TotalsOf(source, row);
    Json json = SlotJson(slot, row);
    Json abs_max = Json::array();
    for (const double value : totals.abs_max) abs_max.push_back(JsonNumber(value));
    json["min"] = JsonNumber(totals.min);
    json["max"] = JsonNumber(totals.max);
    json["mean"] = JsonNumber(MeanOf(totals));
    json["nonfinite_snapshots"] = totals.nonfinite_snapshots;
    json["unread"] = totals.unread;
    json["abs_max"] = std::move(abs_max);
    lines.push_back({SlotName(slot), RankOf(order, totals, row.lost), std::move(json)});
  }
  Json probes = Json::array();
  for (auto& line : Sorted(order, std::move(lines))) probes.push_back(std::move(line.item));
  return probes;
}

std::string Sparkline(const std::vector<double>& values, std::size_t columns) {
  static constexpr const char* kBars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  columns = std::min(columns, values.size());
  std::vector<double> points;
  double low = INFINITY, high = -INFINITY;
  for (std::size_t i = 0; i < columns; ++i) {
    // The largest value of the stretch, because users look for spikes.
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
