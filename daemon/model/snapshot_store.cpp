#include "daemon/model/snapshot_store.h"

#include <algorithm>
#include <iterator>

namespace cgdebug::pipeline {

const SnapshotStore::Session* SnapshotStore::SessionOf(const SlotIdentity& slot) const {
  const auto found = sessions_.find(slot.session->uuid);
  return found == sessions_.end() ? nullptr : &found->second;
}

// Each iteration of a conditional body has a serial of its own, and a replay has several of them.
bool SnapshotStore::IsMeant(const Snapshot& snapshot, std::uint64_t replay, std::uint64_t serial) {
  return snapshot.replay == replay && (serial == 0 || snapshot.serial == serial);
}

void SnapshotStore::Drop(Kept* kept) {
  if (kept->stored.payload == nullptr) return;
  bytes_ -= kept->stored.payload->size();
  kept->stored.payload = nullptr;
  older_.erase(kept->arrival);
  newest_.erase(kept->arrival);
}

void SnapshotStore::Put(SnapshotPtr snapshot, PayloadPtr payload) {
  const std::size_t history =
      std::clamp<std::size_t>(snapshot->slot->registration.capacity, 1, kMaxHistory);
  const std::lock_guard lock(mutex_);
  const SlotIdentity& identity = *snapshot->slot;
  Session& session = sessions_[identity.session->uuid];
  std::list<Kept>& slot = session.slots[KeyOf(identity)];
  if (!session.runs.empty()) {
    const std::optional<Run> run = RunOf(*snapshot);
    if (run && session.runs.contains(*run)) PinRow(&session, KeyOf(identity), {snapshot, nullptr});
  }
  if (!slot.empty() && newest_.erase(slot.back().arrival) != 0) {
    older_[slot.back().arrival] = &slot.back();
  }
  while (slot.size() >= history) {
    const auto pinned = session.pinned.find(KeyOf(identity));
    const std::uint64_t ordinal = slot.front().stored.snapshot->ordinal;
    if (pinned == session.pinned.end() || !pinned->second.contains(ordinal)) --session.count;
    Drop(&slot.front());
    slot.pop_front();
  }
  ++session.count;
  slot.push_back({{std::move(snapshot), std::move(payload)}, ++arrivals_});
  if (slot.back().stored.payload != nullptr) {
    bytes_ += slot.back().stored.payload->size();
    newest_[arrivals_] = &slot.back();
  }
  Trim();
}

void SnapshotStore::Trim() {
  while (bytes_ != 0 && bytes_ + pinned_bytes_ > max_bytes_) {
    Drop((older_.empty() ? newest_ : older_).begin()->second);
  }
}

std::optional<SnapshotStore::Run> SnapshotStore::RunOf(const SlotIdentity& row,
                                                       std::uint64_t replay,
                                                       std::uint32_t iteration) {
  const bool is_row = !row.op.empty() && (row.registration.graph_id != 0 || row.CountsCalls());
  if (!is_row || replay == 0) return std::nullopt;
  return Run{row.registration.graph_id, replay, iteration};
}

void SnapshotStore::PinRow(Session* session, const Key& slot, const StoredSnapshot& row) {
  const auto [place, is_new] = session->pinned[slot].try_emplace(
      row.snapshot->ordinal, StoredSnapshot{row.snapshot, nullptr});
  session->pinned_rows += is_new ? 1 : 0;
}

// Rows that come later find it in Session::runs.
void SnapshotStore::PinRun(Session* session, const Run& run) {
  session->runs.insert(run);
  for (const auto& [slot, kept] : session->slots) {
    for (const Kept& one : kept) {
      if (RunOf(*one.stored.snapshot) == run) PinRow(session, slot, one.stored);
    }
  }
}

void SnapshotStore::Pin(const SlotPtr& slot, std::uint64_t replay, std::uint64_t serial) {
  const std::lock_guard lock(mutex_);
  const auto session = sessions_.find(slot->session->uuid);
  if (session == sessions_.end()) return;
  const auto found = session->second.slots.find(KeyOf(*slot));
  if (found == session->second.slots.end()) return;
  const std::list<Kept>& kept = found->second;
  const auto meant = std::find_if(kept.begin(), kept.end(), [&](const Kept& one) {
    return IsMeant(*one.stored.snapshot, replay, serial);
  });
  if (meant == kept.end()) return;
  const auto first_after = std::next(meant);
  Pinned& pinned = session->second.pinned[found->first];
  // Start at the first finding, which has room for the snapshots before it.
  std::size_t left = kPinnedBefore + 1;
  for (auto one = first_after; one != kept.begin() && left > 0; --left) {
    StoredSnapshot stored = (--one)->stored;
    const std::uint64_t bytes = stored.payload == nullptr ? 0 : stored.payload->size();
    if (pinned_bytes_ + bytes > max_bytes_ / 4) stored.payload = nullptr;
    const auto [place, is_new] = pinned.try_emplace(stored.snapshot->ordinal, stored);
    if (is_new && stored.payload != nullptr) pinned_bytes_ += bytes;
  }
  Trim();
}

void SnapshotStore::PinRunOf(const SlotPtr& row, std::uint64_t replay, std::uint32_t iteration) {
  const std::lock_guard lock(mutex_);
  Session& session = sessions_[row->session->uuid];
  const std::optional<Run> run = RunOf(*row, replay, iteration);
  if (run && session.runs.contains(*run)) return;
  const bool has_room = session.runs.size() < kPinnedRuns && session.pinned_rows < kPinnedRows;
  if (run && has_room) return PinRun(&session, *run);
  ++session.let_go;
}

void SnapshotStore::Unpin(const Pinned& pinned) {
  for (const auto& [ordinal, stored] : pinned) {
    if (stored.payload != nullptr) pinned_bytes_ -= stored.payload->size();
  }
}

void SnapshotStore::ForgetSlot(const SlotPtr& slot) {
  const std::lock_guard lock(mutex_);
  const auto session = sessions_.find(slot->session->uuid);
  if (session == sessions_.end()) return;
  auto& [slots, all_pinned, runs, pinned_rows, let_go, count] = session->second;
  const auto found = slots.find(KeyOf(*slot));
  if (found == slots.end()) return;
  count -= CountOf(session->second, found->first, found->second);
  for (Kept& kept : found->second) Drop(&kept);
  if (const auto pinned = all_pinned.find(found->first); pinned != all_pinned.end()) {
    Unpin(pinned->second);
    all_pinned.erase(pinned);
  }
  slots.erase(found);
}

void SnapshotStore::ForgetSession(const SessionPtr& session) {
  const std::lock_guard lock(mutex_);
  const auto found = sessions_.find(session->uuid);
  if (found == sessions_.end()) return;
  for (auto& [key, slot] : found->second.slots)
    for (Kept& kept : slot) Drop(&kept);
  for (const auto& [key, pinned] : found->second.pinned) Unpin(pinned);
  sessions_.erase(found);
}

std::vector<StoredSnapshot> SnapshotStore::History(const SlotPtr& slot) const {
  std::vector<StoredSnapshot> history;
  const std::lock_guard lock(mutex_);
  const Session* session = SessionOf(*slot);
  if (session == nullptr) return history;
  const auto found = session->slots.find(KeyOf(*slot));
  if (found == session->slots.end()) return history;
  const auto pinned = session->pinned.find(found->first);
  if (pinned != session->pinned.end()) {
    const std::uint64_t oldest =
        found->second.empty() ? UINT64_MAX : found->second.front().stored.snapshot->ordinal;
    for (const auto& [ordinal, stored] : pinned->second) {
      if (ordinal < oldest) history.push_back(stored);
    }
  }
  for (const Kept& kept : found->second) {
    history.push_back(kept.stored);
    if (kept.stored.payload != nullptr || pinned == session->pinned.end()) continue;
    const auto same = pinned->second.find(kept.stored.snapshot->ordinal);
    if (same != pinned->second.end()) history.back() = same->second;
  }
  return history;
}

std::uint64_t SnapshotStore::CountOf(const Session& session, const Key& key,
                                     const std::list<Kept>& kept) {
  const auto pinned = session.pinned.find(key);
  if (pinned == session.pinned.end() || kept.empty()) return kept.size();
  const auto end = pinned->second.lower_bound(kept.front().stored.snapshot->ordinal);
  return kept.size() + static_cast<std::uint64_t>(std::distance(pinned->second.begin(), end));
}

std::uint64_t SnapshotStore::CountOf(const SlotPtr& slot) const {
  const std::lock_guard lock(mutex_);
  const Session* session = SessionOf(*slot);
  if (session == nullptr) return 0;
  const auto found = session->slots.find(KeyOf(*slot));
  return found == session->slots.end() ? 0 : CountOf(*session, found->first, found->second);
}

std::uint64_t SnapshotStore::CountOf(const SessionPtr& session) const {
  const std::lock_guard lock(mutex_);
  const auto found = sessions_.find(session->uuid);
  return found == sessions_.end() ? 0 : found->second.count;
}

std::uint64_t SnapshotStore::NotFiniteLetGo(const SessionPtr& session) const {
  const std::lock_guard lock(mutex_);
  const auto found = sessions_.find(session->uuid);
  return found == sessions_.end() ? 0 : found->second.let_go;
}

std::optional<StoredSnapshot> SnapshotStore::Find(const SlotPtr& slot, std::uint64_t replay,
                                                  std::uint64_t serial) const {
  for (StoredSnapshot& stored : History(slot)) {
    if (IsMeant(*stored.snapshot, replay, serial)) return std::move(stored);
  }
  return std::nullopt;
}

std::uint64_t SnapshotStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_ + pinned_bytes_;
}

}  // namespace cgdebug::pipeline
