#include "daemon/model/registry.h"

#include <algorithm>
#include <cstdlib>

#include "daemon/model/text.h"
#include "proto/layout/op_log_layout.h"
#include "proto/layout/slot_control.h"

namespace cgdebug::pipeline {
namespace {

constexpr std::size_t kKeyDigits = 8;

void Consider(const SlotPtr& slot, const ring::FirstNonfinite& seen, FirstNonfinite* first) {
  if (seen.replay == 0) return;
  if (first->slot != nullptr) {
    const std::pair known(first->seen.serial, first->slot->registration.order);
    if (known <= std::pair(seen.serial, slot->registration.order)) return;
  }
  *first = {slot, seen};
}

std::pair<std::uint8_t, std::uint8_t> LaneOf(const SlotIdentity& slot) {
  return {slot.registration.lane, slot.registration.lane_reason};
}

}  // namespace

std::vector<Finding> FindingsOf(const SlotRecord& record) {
  std::vector<Finding> findings;
  const auto add = [&](layout::FindingKind kind, const ring::FirstNonfinite& first) {
    if (first.replay == 0) return;
    findings.push_back({.slot = record.slot,
                        .kind = kind,
                        .replay = first.replay,
                        .serial = first.serial,
                        .step = first.step,
                        .count = first.count});
  };
  add(layout::FindingKind::kNan, record.firsts.nan);
  add(layout::FindingKind::kInf, record.firsts.inf);
  if (record.verdict.state == layout::VerdictState::kFail) {
    findings.push_back({.slot = record.slot,
                        .kind = layout::FindingKind::kMismatch,
                        .replay = record.verdict.first_failed_replay,
                        .text = record.verdict.text});
  }
  return findings;
}

SlotRecord* KnownSession::Find(const SlotIdentity& slot) {
  const auto found = slots.find({slot.index, slot.generation});
  return found == slots.end() ? nullptr : &found->second;
}

void KnownSession::AddToIndexes(const SlotPtr& slot) {
  names.Add(slot);
  by_order.insert({slot->registration.order, {slot->index, slot->generation}});
  if (layout::IsNoRow(slot->op)) return;
  ++record.slot_count;
  ++record.lanes[LaneOf(*slot)];
  ++slots_of_probe[slot->registration.probe_id];
  record.probes.all = slots_of_probe.size();
}

void KnownSession::RemoveFromIndexes(const SlotPtr& slot) {
  names.Remove(slot);
  by_order.erase({slot->registration.order, {slot->index, slot->generation}});
  if (layout::IsNoRow(slot->op)) return;
  --record.slot_count;
  const auto lane = record.lanes.find(LaneOf(*slot));
  if (--lane->second == 0) record.lanes.erase(lane);
  const auto probe = slots_of_probe.find(slot->registration.probe_id);
  if (--probe->second == 0) slots_of_probe.erase(probe);
  record.probes.all = slots_of_probe.size();
}

template <typename Visitor>
void KnownSession::Visit(const SlotRange& range, const Visitor& visit) const {
  for (auto one = by_order.lower_bound({range.first, {0, 0}});
       one != by_order.end() && one->first <= range.last; ++one) {
    const SlotRecord& shown = slots.at(one->second);
    const SlotIdentity& slot = *shown.slot;
    if (range.probe && slot.probe != *range.probe) continue;
    if (range.rows_of) {
      if (!IsOfOpLog(slot) || slot.registration.graph_id != *range.rows_of) continue;
    }
    if (!visit(shown)) return;
  }
}

// Eager calls that have numbers are one log. Within others the row numbers ascend; a number that
// does not ascend begins the next log.
std::vector<OpLogRecord> KnownSession::OpLogs() {
  std::vector<OpLogRecord> logs;
  std::map<std::uint64_t, std::size_t> newest;  // by graph: of `logs`
  std::uint64_t last_eager = 0;
  Visit({}, [&](const SlotRecord& row) {
    const SlotIdentity& slot = *row.slot;
    if (!IsOfOpLog(slot)) return true;
    const std::uint64_t graph_id = slot.registration.graph_id;
    auto [log, is_new] = newest.try_emplace(graph_id, logs.size());
    if (graph_id == 0 && !slot.CountsCalls()) {
      const std::uint64_t number = std::strtoull(slot.op.c_str(), nullptr, 10);
      if (number <= std::exchange(last_eager, number) && !is_new) {
        is_new = true;
        log->second = logs.size();
      }
    }
    if (is_new) {
      logs.push_back({.graph_id = graph_id,
                      .graph = names.LabelOf(graph_id),
                      .first_order = slot.registration.order});
    }
    logs[log->second].last_order = slot.registration.order;
    ++logs[log->second].rows;
    std::int64_t& last_ns = logs[log->second].last_timestamp_ns;
    last_ns = std::max(last_ns, row.last_timestamp_ns);
    return true;
  });
  return logs;
}

KnownSession* Registry::Find(const SessionPtr& session) {
  const auto found = sessions_.find(session->uuid);
  return found == sessions_.end() ? nullptr : &found->second;
}

SlotRecord* Registry::FindSlot(const SlotPtr& slot) {
  KnownSession* session = Find(slot->session);
  return session == nullptr ? nullptr : session->Find(*slot);
}

SessionPtr Registry::AddSession(SessionIdentity identity) {
  const std::lock_guard lock(mutex_);
  std::size_t digits = kKeyDigits;
  const auto taken = [&](const std::string& key) {
    return std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& other) {
      return other.first != identity.uuid && other.second.record.session->key == key;
    });
  };
  while (digits < identity.uuid.size() && taken(identity.uuid.substr(0, digits))) ++digits;
  identity.key = identity.uuid.substr(0, digits);
  auto session = std::make_shared<const SessionIdentity>(std::move(identity));
  KnownSession& entry = sessions_[session->uuid];
  entry = {};
  entry.record.session = session;
  return session;
}

void Registry::SetSession(const SessionPtr& session, const SessionFacts& facts) {
  const std::lock_guard lock(mutex_);
  if (KnownSession* entry = Find(session)) {
    entry->record.facts = facts;
    Counters& sums = entry->record.counters;
    sums.produced += facts.released_unread - sums.lost_released;
    sums.lost_released = facts.released_unread;
  }
}

void Registry::SetFinding(const SessionPtr& session, layout::FindingKind kind,
                          const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (KnownSession* entry = Find(session)) {
    entry->record.findings.at(static_cast<std::size_t>(kind)) = text;
  }
}

void Registry::SetNotSeen(const SessionPtr& session, const layout::NotSeen& not_seen) {
  const std::lock_guard lock(mutex_);
  KnownSession* entry = Find(session);
  if (entry == nullptr) return;
  std::vector<layout::NotSeen>& known = entry->record.not_seen;
  const auto same = std::ranges::find(known, not_seen.kind, &layout::NotSeen::kind);
  if (same == known.end()) {
    known.push_back(not_seen);
  } else {
    *same = not_seen;
  }
}

void Registry::SetReplicas(const SessionPtr& session, const ReplicaCounts& counts) {
  const std::lock_guard lock(mutex_);
  if (KnownSession* entry = Find(session)) entry->record.replicas = counts;
}

void Registry::EndSession(const SessionPtr& session, SessionState state, std::int64_t ended_ns) {
  const std::lock_guard lock(mutex_);
  if (KnownSession* entry = Find(session)) {
    entry->record.state = state;
    entry->record.ended_ns = ended_ns;
  }
}

void Registry::ForgetSession(const SessionPtr& session) {
  const std::lock_guard lock(mutex_);
  sessions_.erase(session->uuid);
}

void Registry::SetSlot(const SlotPtr& slot, const Counters& counters,
                       std::int64_t last_timestamp_ns, bool retired, const Reached& reached) {
  const std::lock_guard lock(mutex_);
  KnownSession* session = Find(slot->session);
  if (session == nullptr) return;
  SlotRecord& record = session->slots[{slot->index, slot->generation}];
  SessionRecord& sums = session->record;
  sums.counters.Subtract(record.counters);
  sums.counters.Add(counters);
  sums.replay = std::max(sums.replay, counters.replays);
  sums.moved_ns = std::max(sums.moved_ns, last_timestamp_ns);
  if (slot->CountsCalls()) sums.calls = std::max(sums.calls, counters.replays);
  if (record.slot != slot) {
    if (record.slot != nullptr) session->RemoveFromIndexes(record.slot);
    session->AddToIndexes(slot);
  }
  record.slot = slot;
  record.counters = counters;
  record.reached = reached;
  record.last_timestamp_ns = last_timestamp_ns;
  record.retired = retired;
}

void Registry::NoteUnseen(const SlotPtr& slot) {
  const std::lock_guard lock(mutex_);
  KnownSession* session = Find(slot->session);
  if (session == nullptr || !session->unseen_probes.insert(slot->probe).second) return;
  ProbeCounts& counts = session->record.probes;
  if (++counts.unseen <= kUnseenNames) counts.unseen_names.push_back(slot->probe);
}

void Registry::SetVerdict(const SlotPtr& slot, const layout::Verdict& verdict) {
  const std::lock_guard lock(mutex_);
  SlotRecord* record = FindSlot(slot);
  if (record == nullptr) return;
  record->verdict = verdict;
  if (verdict.state == layout::VerdictState::kFail) {
    KnownSession* session = Find(slot->session);
    session->failed_probes.insert(slot->probe);
    session->record.probes.failed = session->failed_probes.size();
  }
}

void Registry::SetControl(const SlotPtr& slot, const layout::SlotControl& control) {
  const std::lock_guard lock(mutex_);
  SlotRecord* record = FindSlot(slot);
  if (record != nullptr) record->control = control;
}

void Registry::SetLast(const SnapshotPtr& snapshot) {
  const std::lock_guard lock(mutex_);
  SlotRecord* record = FindSlot(snapshot->slot);
  if (record == nullptr) return;
  record->last = snapshot;
}

void Registry::SetFirsts(const SlotPtr& slot, const ring::FirstNonfinites& firsts) {
  if (firsts.nan.replay == 0 && firsts.inf.replay == 0) return;
  const std::lock_guard lock(mutex_);
  KnownSession* session = Find(slot->session);
  if (session == nullptr) return;
  if (SlotRecord* record = FindSlot(slot)) record->firsts = firsts;
  session->nonfinite_probes.insert(slot->probe);
  session->record.probes.nonfinite = session->nonfinite_probes.size();
  Consider(slot, firsts.nan, &session->record.first_nan);
  Consider(slot, firsts.inf, &session->record.first_inf);
}

void Registry::SetMask(const SlotPtr& slot) {
  const std::lock_guard lock(mutex_);
  KnownSession* session = Find(slot->session);
  if (session == nullptr || !session->mask_probes.insert(slot->probe).second) return;
  ProbeCounts& counts = session->record.probes;
  if (counts.masks++ == 0) counts.first_mask = slot->probe;
}

void Registry::ForgetSlot(const SlotPtr& slot) {
  const std::lock_guard lock(mutex_);
  KnownSession* session = Find(slot->session);
  if (session == nullptr) return;
  const auto found = session->slots.find({slot->index, slot->generation});
  if (found == session->slots.end()) return;
  session->RemoveFromIndexes(found->second.slot);
  session->slots.erase(found);
}

void Registry::SetGraphs(const SessionPtr& session, ring::GraphCensus graphs) {
  for (ring::GraphFacts& graph : graphs.graphs) {
    graph.label = CleanText(graph.label);
    graph.stack = CleanText(graph.stack);
  }
  const std::lock_guard lock(mutex_);
  if (KnownSession* entry = Find(session)) entry->census = std::move(graphs);
}

ring::GraphCensus Registry::Graphs(const SessionPtr& session) const {
  const std::lock_guard lock(mutex_);
  const auto found = sessions_.find(session->uuid);
  if (found == sessions_.end()) return {};
  ring::GraphCensus census = found->second.census;
  for (ring::GraphFacts& graph : census.graphs) {
    const std::string name = found->second.names.LabelOf(graph.graph_id);
    if (!name.empty()) graph.label = name;
  }
  return census;
}

void Registry::SetSkipped(std::vector<SkippedFile> skipped) {
  const std::lock_guard lock(mutex_);
  skipped_ = std::move(skipped);
}

std::vector<SessionRecord> Registry::Sessions() const {
  std::vector<SessionRecord> records;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [uuid, session] : sessions_) records.push_back(session.record);
  }
  std::stable_sort(records.begin(), records.end(), [](const auto& a, const auto& b) {
    return a.session->created_ns < b.session->created_ns;
  });
  return records;
}

std::vector<SlotRecord> Registry::Slots(const SessionPtr& session, const SlotRange& range,
                                        std::size_t count) const {
  std::vector<SlotRecord> records;
  const std::lock_guard lock(mutex_);
  const auto found = sessions_.find(session->uuid);
  if (found == sessions_.end() || count == 0) return records;
  found->second.Visit(range, [&](const SlotRecord& record) {
    records.push_back(record);
    return records.size() < count;
  });
  return records;
}

std::vector<SlotPtr> Registry::SlotPtrs(const std::string& session_key, const SlotRange& range,
                                        std::size_t count) const {
  std::vector<SlotPtr> slots;
  const std::lock_guard lock(mutex_);
  for (const auto& [uuid, session] : sessions_) {
    if (session.record.session->key != session_key) continue;
    session.Visit(range, [&](const SlotRecord& record) {
      slots.push_back(record.slot);
      return slots.size() < count;
    });
  }
  return slots;
}

std::vector<OpLogRecord> Registry::OpLogs(const SessionPtr& session) const {
  const std::lock_guard lock(mutex_);
  const auto found = sessions_.find(session->uuid);
  return found == sessions_.end() ? std::vector<OpLogRecord>() : found->second.OpLogs();
}

SlotPlace Registry::PlaceOf(const SlotIdentity& slot) const {
  const std::lock_guard lock(mutex_);
  const auto found = sessions_.find(slot.session->uuid);
  if (found == sessions_.end()) return {slot.graph_label, ""};
  KnownSession& session = found->second;
  const SlotRecord* shown = session.Find(slot);
  return {session.names.LabelOf(slot.registration.graph_id),
          shown == nullptr ? "" : session.names.QualifierOf(*shown->slot)};
}

std::vector<SkippedFile> Registry::Skipped() const {
  const std::lock_guard lock(mutex_);
  return skipped_;
}

std::size_t Registry::AliveCount() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(std::count_if(
      sessions_.begin(), sessions_.end(),
      [](const auto& session) { return session.second.record.state == SessionState::kAlive; }));
}

}  // namespace cgdebug::pipeline
