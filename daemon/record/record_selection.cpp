#include "daemon/record/record_selection.h"

#include <algorithm>
#include <numeric>

#include "proto/layout/op_log_layout.h"

namespace cgdebug::pipeline {
namespace {

// The greatest period that divides those of all actions; 0 without one.
std::uint32_t CommonPeriod(const layout::SlotFacts& r) {
  return std::gcd(std::gcd(r.print_every, r.record_every),
                  std::gcd(r.compare_every, r.stats_every));
}

}  // namespace

Result<RecordSelection> RecordSelection::Parse(RecordRequest request, std::int64_t started_ns) {
  auto probes = Selector::Parse(request.probes);
  if (!probes.ok()) return probes.error();
  return RecordSelection(std::move(request), *std::move(probes), started_ns);
}

bool RecordSelection::Wants(const SessionIdentity& session) const {
  if (!request_.sessions.empty() && !request_.sessions.contains(session.uuid)) return false;
  if (!request_.run_id.empty() && session.run_id != request_.run_id) return false;
  return !request_.rank || session.rank == *request_.rank;
}

bool RecordSelection::Wants(const SlotIdentity& slot) const {
  if (request_.to_disk_only && !slot.Has(layout::kActionRecordToDisk)) return false;
  if (!Wants(*slot.session)) return false;
  // A recording of some rows must not hide what the log does not show.
  if (layout::IsNoRow(slot.op)) return true;
  if (!probes_.Matches(slot.probe)) return false;
  const std::uint64_t graph_id = slot.registration.graph_id;
  const bool is_named = request_.graphs.contains({slot.session->uuid, graph_id});
  return request_.which.Matches(graph_id, is_named ? request_.which.graph : slot.graph_label,
                                slot.shape);
}

bool RecordSelection::NeedsAll(const SlotIdentity& slot) const {
  if (request_.to_disk_only || request_.lossless == LosslessJobs::kNone || !Wants(slot)) {
    return false;
  }
  return request_.lossless == LosslessJobs::kEvery || slot.session->created_ns >= started_ns_;
}

bool RecordSelection::AwaitsJobs() const {
  return !request_.to_disk_only && request_.lossless != LosslessJobs::kNone &&
         request_.sessions.empty() && request_.run_id.empty();
}

std::uint32_t RecordSelection::EveryOf(const SlotIdentity& slot) const {
  const layout::SlotFacts& r = slot.registration;
  if (request_.to_disk_only) return std::max(r.record_every, 1u);
  if (NeedsAll(slot)) return 1;
  return std::max(CommonPeriod(r), 1u);
}

std::uint32_t PeriodOf(const SlotIdentity& slot) {
  const layout::SlotFacts& r = slot.registration;
  if (slot.IsInBody() || IsOfOpLog(slot) || (r.flags & layout::kSlotComparesOnDevice) != 0) {
    return 0;
  }
  const std::uint32_t periods[] = {r.print_every, r.record_every, r.compare_every, r.stats_every};
  const std::uint32_t common = CommonPeriod(r);
  return std::ranges::find(periods, common) == std::end(periods) ? 0 : common;
}

}  // namespace cgdebug::pipeline
