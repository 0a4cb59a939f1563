#include "daemon/pipeline/snapshot_store.h"

#include <algorithm>
#include <utility>

namespace cgdebug::pipeline {

SnapshotStore::Key SnapshotStore::KeyOf(const SlotIdentity& slot) {
  return {slot.session->uuid, slot.index, slot.generation};
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
  std::deque<Kept>& slot = slots_[KeyOf(*snapshot->slot)];
  if (!slot.empty() && newest_.erase(slot.back().arrival) != 0) {
    older_[slot.back().arrival] = &slot.back();
  }
  while (slot.size() >= history) {
    Drop(&slot.front());
    slot.pop_front();
  }
  slot.push_back({{std::move(snapshot), std::move(payload)}, ++arrivals_});
  if (slot.back().stored.payload != nullptr) {
    bytes_ += slot.back().stored.payload->size();
    newest_[arrivals_] = &slot.back();
  }
  while (bytes_ > max_bytes_) Drop((older_.empty() ? newest_ : older_).begin()->second);
}

void SnapshotStore::ForgetSlot(const SlotPtr& slot) {
  const std::lock_guard lock(mutex_);
  const auto found = slots_.find(KeyOf(*slot));
  if (found == slots_.end()) return;
  for (Kept& kept : found->second) Drop(&kept);
  slots_.erase(found);
}

void SnapshotStore::ForgetSession(const SessionPtr& session) {
  const std::lock_guard lock(mutex_);
  for (auto slot = slots_.begin(); slot != slots_.end();) {
    if (std::get<0>(slot->first) != session->uuid) {
      ++slot;
      continue;
    }
    for (Kept& kept : slot->second) Drop(&kept);
    slot = slots_.erase(slot);
  }
}

std::vector<StoredSnapshot> SnapshotStore::History(const SlotPtr& slot) const {
  std::vector<StoredSnapshot> history;
  const std::lock_guard lock(mutex_);
  const auto found = slots_.find(KeyOf(*slot));
  if (found == slots_.end()) return history;
  for (const Kept& kept : found->second) history.push_back(kept.stored);
  return history;
}

std::uint64_t SnapshotStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace cgdebug::pipeline
