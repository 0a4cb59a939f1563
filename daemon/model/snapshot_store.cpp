#include "daemon/model/snapshot_store.h"

#include <algorithm>
#include <utility>

namespace cgdebug::pipeline {

SnapshotStore::Key SnapshotStore::KeyOf(const SlotIdentity& slot) {
  return {slot.session->uuid, slot.index, slot.generation};
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
  Trim();
}

void SnapshotStore::Trim() {
  while (bytes_ != 0 && bytes_ + pinned_bytes_ > max_bytes_) {
    Drop((older_.empty() ? newest_ : older_).begin()->second);
  }
}

void SnapshotStore::Pin(const SlotPtr& slot, std::uint64_t replay, std::uint64_t serial) {
  const std::lock_guard lock(mutex_);
  const auto found = slots_.find(KeyOf(*slot));
  if (found == slots_.end()) return;
  const std::deque<Kept>& kept = found->second;
  const auto meant = std::find_if(kept.begin(), kept.end(), [&](const Kept& one) {
    return IsMeant(*one.stored.snapshot, replay, serial);
  });
  if (meant == kept.end()) return;
  const auto first_after = meant + 1;
  Pinned& pinned = pinned_[found->first];
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

void SnapshotStore::Unpin(const Pinned& pinned) {
  for (const auto& [ordinal, stored] : pinned) {
    if (stored.payload != nullptr) pinned_bytes_ -= stored.payload->size();
  }
}

void SnapshotStore::ForgetSlot(const SlotPtr& slot) {
  const std::lock_guard lock(mutex_);
  const auto found = slots_.find(KeyOf(*slot));
  if (found == slots_.end()) return;
  for (Kept& kept : found->second) Drop(&kept);
  if (const auto pinned = pinned_.find(found->first); pinned != pinned_.end()) {
    Unpin(pinned->second);
    pinned_.erase(pinned);
  }
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
  std::erase_if(pinned_, [&](const auto& pinned) {
    const bool is_meant = std::get<0>(pinned.first) == session->uuid;
    if (is_meant) Unpin(pinned.second);
    return is_meant;
  });
}

std::vector<StoredSnapshot> SnapshotStore::History(const SlotPtr& slot) const {
  std::vector<StoredSnapshot> history;
  const std::lock_guard lock(mutex_);
  const auto found = slots_.find(KeyOf(*slot));
  if (found == slots_.end()) return history;
  const auto pinned = pinned_.find(found->first);
  if (pinned != pinned_.end()) {
    const std::uint64_t oldest =
        found->second.empty() ? UINT64_MAX : found->second.front().stored.snapshot->ordinal;
    for (const auto& [ordinal, stored] : pinned->second) {
      if (ordinal < oldest) history.push_back(stored);
    }
  }
  for (const Kept& kept : found->second) {
    history.push_back(kept.stored);
    if (kept.stored.payload != nullptr || pinned == pinned_.end()) continue;
    const auto same = pinned->second.find(kept.stored.snapshot->ordinal);
    if (same != pinned->second.end()) history.back() = same->second;
  }
  return history;
}

std::uint64_t SnapshotStore::CountOf(const SlotPtr& slot) const {
  const std::lock_guard lock(mutex_);
  const auto found = slots_.find(KeyOf(*slot));
  if (found == slots_.end()) return 0;
  std::uint64_t count = found->second.size();
  const auto pinned = pinned_.find(found->first);
  if (pinned == pinned_.end() || found->second.empty()) return count;
  const std::uint64_t oldest = found->second.front().stored.snapshot->ordinal;
  const auto end = pinned->second.lower_bound(oldest);
  return count + static_cast<std::uint64_t>(std::distance(pinned->second.begin(), end));
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
