#include "client/cli/views/stats_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "client/cli/views/source_rows.h"
#include "daemon/core/numerics/format.h"

namespace cgdebug::cli {
namespace {

using source::Slot;
using source::Source;

constexpr std::size_t kSparkColumns = 16;

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
    case StatsOrder::kMissing:
      return static_cast<double>(lost);
    case StatsOrder::kGraph:
    case StatsOrder::kName:
      break;
  }
  return 0;
}

bool IsShown(const StatsView& view, const Totals& totals) {
  return !view.only_nonfinite || totals.nonfinite_snapshots > 0;
}

// A line of a table, or the JSON of a probe, with its sort key.
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

}  // namespace

Result<TextTable> StatsTable(Source& source, const analysis::Scope& scope, const Style& style,
                             bool is_whole, const StatsView& view) {
  using Align = TextTable::Align;
  const Result<std::vector<SourceRow>> rows = RowsOf(source, scope);
  if (!rows.ok()) return rows.error();
  const OwnerColumns owners(source);
  std::vector<TextTable::Column> columns = owners.Columns();
  columns.insert(columns.end(), {TextTable::Name("PROBE"),
                                 {"TENSOR", Align::kLeft, true},
                                 {"REPLAYS", Align::kCount},
                                 {"MIN", Align::kRight},
                                 {"MAX", Align::kRight},
                                 {"MEAN", Align::kRight, true},
                                 {"NON-FINITE", Align::kCount},
                                 {"ABS MAX OVER REPLAYS", Align::kLeft, true}});
  const Folds<SourceRow> folds = FoldsOf(source, *rows, is_whole);
  std::vector<Ranked<std::vector<std::string>>> lines;
  const auto add = [&](const Slot& slot, const std::vector<std::string>& head, const Totals& totals,
                       std::uint64_t lost, const std::string& last) {
    if (!IsShown(view, totals)) return;
    std::string nonfinite = totals.abs_max.empty() && totals.unread > 0 ? "-" : "0";
    if (totals.nonfinite_snapshots > 0) {
      nonfinite = style.Red(std::to_string(totals.nonfinite_snapshots));
    }
    const bool any = !totals.spark.empty();
    const auto number = [&](double value) { return any ? numerics::FormatNumber(value, 4) : "-"; };
    std::vector<std::string> cells = owners.Cells(slot);
    cells.insert(cells.end(), head.begin(), head.end());
    cells.insert(cells.end(),
                 {number(totals.min), number(totals.max), number(totals.mean()), nonfinite, last});
    lines.push_back({SlotName(slot), RankOf(view.order, totals, lost), std::move(cells)});
  };
  const auto missing_text = [&](std::uint64_t lost) {
    return lost == 0 ? "" : style.Yellow(fmt::format("  {} missing", FormatGrouped(lost)));
  };
  for (const SourceRow& row : *rows) {
    const Slot& slot = source.slots()[row.slot];
    if (const auto fold = folds.find(FoldKeyOf(slot)); fold != folds.end()) {
      if (fold->second.front() != &row) continue;
      const Folded folded = Summarize(source, fold->second);
      add(slot, {Printable(SlotName(slot)), folded.tensor, fmt::format("..{}", folded.last_replay)},
          folded.totals, folded.lost,
          folded.graph + ", " + FindingsText(source, folded, style) + missing_text(folded.lost));
      continue;
    }
    const Totals totals = TotalsOf(source, row);
    std::string last = Sparkline(totals.spark, kSparkColumns) + missing_text(row.lost);
    if (totals.unread > 0) last += style.Red(fmt::format("  {} unread", totals.unread));
    add(slot, {Printable(SlotText(slot)), Printable(TypeText(slot)), ReplaysText(row.keys)}, totals,
        row.lost, last);
  }
  TextTable table(columns);
  for (auto& line : Sorted(view.order, std::move(lines))) table.Add(std::move(line.item));
  return table;
}

Result<Json> StatsJson(Source& source, const analysis::Scope& scope, const StatsView& view) {
  const Result<std::vector<SourceRow>> rows = RowsOf(source, scope);
  if (!rows.ok()) return rows.error();
  std::vector<Ranked<Json>> lines;
  for (const SourceRow& row : *rows) {
    const Slot& slot = source.slots()[row.slot];
    const Totals totals = TotalsOf(source, row);
    if (!IsShown(view, totals)) continue;
    Json json = analysis::TotalsJson(slot, row, totals);
    Json abs_max = Json::array();
    for (const double value : totals.abs_max) abs_max.push_back(JsonNumber(value));
    json["abs_max"] = std::move(abs_max);
    lines.push_back({SlotName(slot), RankOf(view.order, totals, row.lost), std::move(json)});
  }
  Json probes = Json::array();
  for (auto& line : Sorted(view.order, std::move(lines))) probes.push_back(std::move(line.item));
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
