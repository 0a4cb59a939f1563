// snapshot_store.h: the last values of every slot, for as long as the memory limit lets them stay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "daemon/pipeline/snapshot.h"

namespace cgdebug::pipeline {

// Keeps as many snapshots of a slot as its ring has entries (at most kMaxHistory), payloads
// included while all of them together fit `max_bytes`. Over the limit the oldest payloads go first:
// of older snapshots, and only when those are gone of newest ones.
//
// Thread: any.
class SnapshotStore {
 public:
  static constexpr std::size_t kMaxHistory = 64;

  explicit SnapshotStore(std::uint64_t max_bytes) : max_bytes_(max_bytes) {}

  void Put(SnapshotPtr snapshot, PayloadPtr payload);
  void ForgetSlot(const SlotPtr& slot);
  void ForgetSession(const SessionPtr& session);

  // Oldest first; empty for an unknown slot.
  std::vector<StoredSnapshot> History(const SlotPtr& slot) const;
  std::uint64_t bytes() const;
  std::uint64_t max_bytes() const { return max_bytes_; }

 private:
  using Key = std::tuple<std::string, std::uint32_t, std::uint64_t>;  // uuid, index, generation
  struct Kept {
    StoredSnapshot stored;
    std::uint64_t arrival = 0;
  };
  static Key KeyOf(const SlotIdentity& slot);
  void Drop(Kept* kept);

  const std::uint64_t max_bytes_;
  mutable std::mutex mutex_;
  std::map<Key, std::deque<Kept>> slots_;
  // Those that hold a payload, by arrival: snapshots that have a newer one in their slot, and the
  // newest of each slot. References to elements of a deque stay valid while its ends change.
  std::map<std::uint64_t, Kept*> older_;
  std::map<std::uint64_t, Kept*> newest_;
  std::uint64_t bytes_ = 0;
  std::uint64_t arrivals_ = 0;
};

}  // namespace cgdebug::pipeline
