// snapshot_store.h: the last values of every slot, for as long as the memory limit lets them stay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "daemon/model/snapshot.h"

namespace cgdebug::pipeline {

// Keeps as many snapshots of a slot as its ring has entries (at most kMaxHistory), payloads
// included while all of them together fit `max_bytes`. Over the limit the oldest payloads go first:
// of older snapshots, and only when those are gone of newest ones.
//
// Pinned snapshots, those that something was found in and the few before them, stay until their
// slot or session is forgotten. Their payloads take at most a quarter of `max_bytes`; what is
// pinned above that keeps its statistics.
//
// Thread: any.
class SnapshotStore {
 public:
  static constexpr std::size_t kMaxHistory = 64;
  static constexpr std::size_t kPinnedBefore = 4;  // snapshots before a pinned one

  explicit SnapshotStore(std::uint64_t max_bytes) : max_bytes_(max_bytes) {}

  void Put(SnapshotPtr snapshot, PayloadPtr payload);
  // Keeps replay `sequence` of the slot, when it is there, and kPinnedBefore snapshots before it.
  void Pin(const SlotPtr& slot, std::uint64_t sequence);
  void ForgetSlot(const SlotPtr& slot);
  void ForgetSession(const SessionPtr& session);

  // Oldest first, pinned ones among them; empty for an unknown slot.
  std::vector<StoredSnapshot> History(const SlotPtr& slot) const;
  // How many that is.
  std::uint64_t CountOf(const SlotPtr& slot) const;
  // Of one replay; nothing when it is not there.
  std::optional<StoredSnapshot> Find(const SlotPtr& slot, std::uint64_t sequence) const;
  std::uint64_t bytes() const;
  std::uint64_t max_bytes() const { return max_bytes_; }

 private:
  using Key = std::tuple<std::string, std::uint32_t, std::uint64_t>;  // uuid, index, generation
  struct Kept {
    StoredSnapshot stored;
    std::uint64_t arrival = 0;
  };
  static Key KeyOf(const SlotIdentity& slot);
  using Pinned = std::map<std::uint64_t, StoredSnapshot>;  // by ordinal
  void Drop(Kept* kept);
  void Trim();
  void Unpin(const Pinned& pinned);

  const std::uint64_t max_bytes_;
  mutable std::mutex mutex_;
  std::map<Key, std::deque<Kept>> slots_;
  // Those that hold a payload, by arrival: snapshots that have a newer one in their slot, and the
  // newest of each slot. References to elements of a deque stay valid while its ends change.
  std::map<std::uint64_t, Kept*> older_;
  std::map<std::uint64_t, Kept*> newest_;
  std::map<Key, Pinned> pinned_;
  std::uint64_t bytes_ = 0;         // of payloads that are not only pinned
  std::uint64_t pinned_bytes_ = 0;  // of payloads that are pinned
  std::uint64_t arrivals_ = 0;
};

}  // namespace cgdebug::pipeline
