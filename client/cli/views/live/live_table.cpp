#include "client/cli/views/live/live_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "client/cli/views/fold.h"
#include "client/cli/views/tensor/snapshot_text.h"
#include "daemon/core/numerics/format.h"

namespace cgdebug::cli {
namespace {

using source::Slot;

FoldKey FoldKeyOf(const live::Probe& probe) {
  return {probe.session, probe.slot.rank, probe.slot.probe, probe.slot.invocation};
}

std::string VerdictText(const live::Probe& probe, const Style& style) {
  if (!probe.verdict) return "";
  const layout::Verdict& verdict = *probe.verdict;
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

// In how many replays the body of a conditional node ran.
std::string TakenText(const live::Probe& probe) {
  const layout::Counters& counters = probe.counters;
  if (counters.graph_replays == 0) return fmt::format("taken in {} replays", counters.taken);
  return fmt::format("taken in {} of {} replays", counters.taken, counters.graph_replays);
}

std::string LastText(const live::Probe& probe, const Style& style) {
  std::vector<std::string> parts;
  if (probe.slot.in_body && !probe.slot.counts_calls()) parts.push_back(TakenText(probe));
  if (probe.retired) parts.push_back(style.Dim("gone"));
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
  std::string text;
  for (const live::Action action : probe.actions) {
    text += fmt::format("{}{}", text.empty() ? "" : ",", NameOf(action));
  }
  return text.empty() ? "-" : text;
}

using LiveFold = std::vector<const live::Probe*>;

std::string FindingsText(const LiveFold& fold, const Style& style) {
  std::uint64_t bad = 0, failed = 0;
  const live::FirstNonfinite* first = nullptr;
  for (const live::Probe* probe : fold) {
    bad += probe->first_nan || probe->first_inf;
    failed += probe->verdict && probe->verdict->state == layout::VerdictState::kFail;
    for (const auto* one : {&probe->first_nan, &probe->first_inf}) {
      if (!*one) continue;
      if (first == nullptr || (*one)->serial < first->serial) first = &**one;
    }
  }
  std::string text = first == nullptr
                         ? FoldedFindings(0, "", 0, style)
                         : FoldedFindings(bad, first->slot.qualifier, first->replay, style);
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
          probe.replay == 0 ? "0"
                            : source::ReplayText(probe.slot, {.replay = probe.replay,
                                                              .iteration = probe.iteration}),
          LostText(probe.counters.lost(), style),
          LastText(probe, style)};
}

}  // namespace

TextTable LiveTable(const std::vector<live::Probe>& probes, const Style& style, bool with_session,
                    bool is_whole) {
  using Align = TextTable::Align;
  std::vector<TextTable::Column> columns;
  if (with_session) columns.push_back({"SESSION"});
  columns.push_back(TextTable::Name("PROBE"));
  columns.push_back({"TENSOR"});
  // The lane is what one looks for when replays became slow, the graph what one asks about.
  columns.push_back({"DEVICE", Align::kLeft, /*is_optional=*/true});
  columns.push_back({.title = "LANE", .leaves_late = true});
  for (const char* title : {"POLICY", "ACTIONS"}) {
    columns.push_back({title, Align::kLeft, /*is_optional=*/true});
  }
  columns.push_back({.title = "GRAPH", .leaves_late = true});
  columns.push_back({"RING", Align::kRight, /*is_optional=*/true});
  for (const char* title : {"REPLAY", "LOST"}) columns.push_back({title, Align::kCount});
  columns.push_back({"LAST", Align::kLeft, /*is_optional=*/true});
  TextTable table(columns);
  const Folds<live::Probe> folds = FoldsOf(probes, is_whole, FoldKeyOf);
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

}  // namespace cgdebug::cli
