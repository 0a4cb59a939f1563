#include "client/analysis/check/check.h"

#include <fmt/format.h>

#include <set>
#include <tuple>
#include <utility>

#include "client/analysis/check/completeness.h"
#include "client/analysis/check/finding_list.h"
#include "client/analysis/check/lead_up.h"
#include "client/analysis/check/nonfinite.h"
#include "client/analysis/check/scan.h"
#include "client/analysis/check/told.h"
#include "client/analysis/gaps.h"
#include "client/analysis/ops/between_calls.h"
#include "client/analysis/ops/op_log.h"
#include "client/analysis/verify.h"
#include "proto/layout/dtype.h"

namespace cgdebug::analysis {
namespace {

using source::Slot;
using source::Source;

bool IsAlwaysZero(const Scanned& scanned) {
  return scanned.zero.finding && scanned.zero.finding->count == scanned.keys.size();
}

// A probe has a slot for each shape, and an eager row may have one for each call.
using ProbeName = std::tuple<std::string, std::string, std::uint32_t, std::uint64_t>;
ProbeName NameOf(const Slot& slot) {
  return {slot.session, slot.probe, slot.invocation, slot.graph_id};
}

// Whether zeros say nothing: of an op that makes them, as aten.zeros_like.default, or that makes
// flags or places, as aten.lt.Tensor.
bool MayBeZeros(const Slot& slot) {
  const OpText* const text = slot.op.row();
  if (!text) return false;
  const layout::DtypeInfo* dtype = layout::FindDtype(slot.dtype);
  return text->op.starts_with("aten.zero") || text->op.starts_with("aten.new_zeros") ||
         (dtype != nullptr && !dtype->is_floating);
}

void AddScanned(const Source& source, const Scan& scan, FindingList* findings, Check* check) {
  std::set<ProbeName> not_zero;
  for (const Scanned& scanned : scan.probes()) {
    const bool is_other = scanned.keys.empty() || IsAlwaysZero(scanned);
    if (!is_other) not_zero.insert(NameOf(source.slots()[scanned.slot]));
  }
  for (const Scanned& scanned : scan.probes()) {
    findings->Add(scanned.mismatch);
    findings->Add(scanned.largest);
    const Slot& slot = source.slots()[scanned.slot];
    if (IsAlwaysZero(scanned) && !not_zero.contains(NameOf(slot)) && !MayBeZeros(slot)) {
      findings->Add(scanned.zero);
    }
    if (scanned.keys.empty()) continue;
    check->last_replay = std::max(check->last_replay, scanned.keys.back().replay);
  }
}

// Kernels that run between the rows of op logs.
void CountUnseen(const Source& source, const Scope& scope, Check* check) {
  for (const std::size_t index : WantedSlots(source, scope)) {
    const Slot& slot = source.slots()[index];
    const OpText* const text = slot.op.row();
    if (!text) continue;
    for (const auto& [nodes, word] :
         {std::pair(&text->unseen_before, "before"), std::pair(&text->unseen_after, "after")}) {
      if (!*nodes) continue;
      check->unseen_kernels.count += (*nodes)->count;
      if (!check->unseen_kernels.first.empty()) continue;
      check->unseen_kernels.first = fmt::format("{}, {} {}", (*nodes)->names, word, SlotText(slot));
    }
  }
}

// Returns whether there are any.
bool AddOpGaps(Source& source, const Scope& scope, const Scan& scan, Check* check) {
  const bool has_rows = std::ranges::any_of(scan.probes(), [&](const Scanned& scanned) {
    return source.slots()[scanned.slot].op.row() != nullptr;
  });
  const bool wants_jobs = has_rows || scope.probes.selects_everything();
  const auto ran_in_scope = [&](std::size_t slot) { return RanIn(source, scope, slot); };
  std::vector<std::string> gaps = OpGapsOf(
      source, [&](const Slot& slot) { return scope.Wants(slot); },
      [&](const Slot& slot) { return wants_jobs && scope.WantsRank(slot); }, ran_in_scope);
  for (std::string& gap : gaps) {
    ++check->missing_count;
    check->missing.push_back("not logged: " + std::move(gap));
  }
  return !gaps.empty();
}

void AddDamaged(const Source& source, const std::vector<SnapshotName>& snapshots, Check* check) {
  for (const DamagedSnapshot& one : FindDamaged(source, snapshots)) {
    const auto& [slot, key] = snapshots[one.place];
    ++check->missing_count;
    check->missing.push_back(fmt::format("{}@{}: {}", SlotText(source.slots()[slot]),
                                         ReplayText(source.slots()[slot], key), one.why));
  }
}

// Where the first bad snapshot stands in its graph, and what led to it.
void DescribeFirst(Source& source, const Scan& scan, std::size_t max_frames, FirstBad* first) {
  const GraphKey graph = GraphOf(source.slots()[first->slot]);
  std::vector<const SeenProbe*> of_graph;
  for (const Scanned& scanned : scan.probes()) {
    if (GraphOf(source.slots()[scanned.slot]) != graph) continue;
    of_graph.push_back(&scanned);
    if (scanned.slot == first->slot) first->place = of_graph.size();
  }
  first->place_count = of_graph.size();
  DescribeLeadUp(source, of_graph, max_frames, first);
}

// Rows that the program made between two calls.
void FindNextCalls(Source& source, Check* check) {
  if (check->first) {
    FirstBad& first = *check->first;
    first.next_call = NextCallOf(source, first.slot, first.snapshot.key.replay);
  }
  for (FirstsOfKind* const firsts : {&check->first_nan, &check->first_inf}) {
    for (auto& [uuid, one] : *firsts) one.next_call = NextCallOf(source, one.slot, one.replay);
  }
}

}  // namespace

void TakeIfFirst(const Slot& slot, const FirstOfKind& one, FirstsOfKind* firsts) {
  const auto [known, is_new] = firsts->try_emplace(slot.uuid, one);
  if (!is_new && one.moment < known->second.moment) known->second = one;
}

Result<Check> RunCheck(Source& source, const CheckOptions& options) {
  Scan scan(source, options);
  if (const Result<void> done = scan.Run(); !done.ok()) return done.error();
  Check check;
  check.snapshots = scan.snapshots();
  check.slots = scan.probes().size();
  check.values_read = !options.trusts_hashes;
  check.missing = scan.unread();
  check.missing_count = scan.unread_count();
  check.replays = scan.replays();
  check.in_part = static_cast<std::size_t>(std::ranges::count_if(
      scan.probes(), [&](const Scanned& one) { return !source.slots()[one.slot].part.empty(); }));
  FindingList findings;
  AddScanned(source, scan, &findings, &check);
  Excuses excuses;
  Result<std::optional<EarliestBad>> first =
      SortOutNonfinite(source, &scan, &findings, &excuses, &check);
  if (!first.ok()) return first.error();
  std::optional<source::Moment> first_moment;
  if (*first) {
    first_moment = (*first)->moment;
    check.first = std::move((*first)->bad);
  }
  SortOutNearOverflow(source, scan, &findings);
  if (!options.trusts_hashes) AddDamaged(source, scan.with_hash(), &check);
  check.first_told = AddTold(source, options.scope, scan, excuses, first_moment, &findings, &check);
  FindNextCalls(source, &check);
  scan.staleness().Find(scan.probes(), &findings);
  Completeness completeness(source, scan);
  completeness.FindNeverWritten(&findings);
  if (check.first) DescribeFirst(source, scan, options.frames, &*check.first);
  completeness.Count(&check);
  CountUnseen(source, options.scope, &check);
  const bool has_op_gaps = AddOpGaps(source, options.scope, scan, &check);
  const GapSummary gaps = has_op_gaps ? SummarizeOtherGaps(source, options.scope)
                                      : SummarizeGaps(source, options.scope);
  check.missing.insert(check.missing.end(), gaps.sentences.begin(), gaps.sentences.end());
  check.missing_count += gaps.count;
  check.goes_on = !gaps.goes_on.empty();
  check.account = gaps.account;
  const Scope& scope = options.scope;
  if (scope.probes.selects_everything() && scope.has_all_replays()) {
    for (const auto& [uuid, times] : source.Describe().not_finite_let_go) check.let_go += times;
  }
  check.seen_finite = SeenFinite(source, options.scope, scan, check);
  check.findings = findings.Take();
  for (const Scanned& scanned : scan.probes()) check.ranks[source.slots()[scanned.slot].rank];
  for (const Finding& finding : check.findings) {
    if (finding.is_bad()) check.ranks[source.slots()[finding.slot].rank] = true;
  }
  return check;
}

}  // namespace cgdebug::analysis
