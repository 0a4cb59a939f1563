// snapshot_store.h: the last values of every slot, as far as the memory limit allows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/model/snapshot.h"

namespace cgdebug::pipeline {

// Keeps as many snapshots of a slot as its ring has entries (at most kMaxHistory). Their payloads
// stay while all of them together fit `max_bytes`. Over the limit the oldest payloads are dropped
// first: those of older snapshots, then those of the newest.
//
// Pinned snapshots, which are those with a finding and the few before them, stay until their slot
// or session is forgotten. Their payloads take at most a quarter of `max_bytes`; above that only
// statistics stay. What a row of an op log means is told by the other rows of its replay or call:
// the first kPinnedRuns of a session in which a row is not finite stay, with all their rows, while
// these are fewer than kPinnedRows.
//
// Thread: any.
class SnapshotStore {
 public:
  static constexpr std::size_t kMaxHistory = 64;
  static constexpr std::size_t kPinnedBefore = 4;  // snapshots before a pinned one
  static constexpr std::size_t kPinnedRuns = 32;
  static constexpr std::size_t kPinnedRows = 100'000;

  explicit SnapshotStore(std::uint64_t max_bytes) : max_bytes_(max_bytes) {}

  void Put(SnapshotPtr snapshot, PayloadPtr payload);
  // Keeps the snapshot of `replay`, if it is there, and kPinnedBefore snapshots before it. If the
  // replay has several iterations of a conditional body, `serial` says which is meant.
  void Pin(const SlotPtr& slot, std::uint64_t replay, std::uint64_t serial = 0);
  // A row of an op log is not finite in that replay: keeps all rows of it, or counts that it does
  // not. 0: an earlier daemon had it, and nothing of it is here.
  void PinRunOf(const SlotPtr& row, std::uint64_t replay, std::uint32_t iteration);
  void ForgetSlot(const SlotPtr& slot);
  void ForgetSession(const SessionPtr& session);

  // Oldest first, including pinned ones; empty for an unknown slot.
  std::vector<StoredSnapshot> History(const SlotPtr& slot) const;
  // The number of snapshots in History(), and the same of all slots of a session.
  std::uint64_t CountOf(const SlotPtr& slot) const;
  std::uint64_t CountOf(const SessionPtr& session) const;
  // How often a row of the session was not finite in a run whose rows do not stay.
  std::uint64_t NotFiniteLetGo(const SessionPtr& session) const;
  // The snapshot of one replay, or nothing if it is not there; `serial` as in Pin().
  std::optional<StoredSnapshot> Find(const SlotPtr& slot, std::uint64_t replay,
                                     std::uint64_t serial = 0) const;
  std::uint64_t bytes() const;
  std::uint64_t max_bytes() const { return max_bytes_; }

 private:
  using Key = std::pair<std::uint32_t, std::uint64_t>;  // index, generation
  struct Kept {
    StoredSnapshot stored;
    std::uint64_t arrival = 0;
  };
  using Pinned = std::map<std::uint64_t, StoredSnapshot>;  // by ordinal
  // A replay of a graph, or an eager call, and the iteration of a conditional body in it.
  using Run = std::tuple<std::uint64_t, std::uint64_t, std::uint32_t>;
  struct Session {
    // Oldest first. A list, because rows of op logs are many and have few snapshots each, and
    // because references to its elements stay valid.
    std::map<Key, std::list<Kept>> slots;
    std::map<Key, Pinned> pinned;
    std::set<Run> runs;           // whose rows stay
    std::size_t pinned_rows = 0;  // of these
    std::uint64_t let_go = 0;     // NotFiniteLetGo()
    std::uint64_t count = 0;      // of its snapshots in both
  };
  static Key KeyOf(const SlotIdentity& slot) { return {slot.index, slot.generation}; }
  // Null if nothing is kept of it.
  const Session* SessionOf(const SlotIdentity& slot) const;
  static std::uint64_t CountOf(const Session& session, const Key& key, const std::list<Kept>& kept);
  // Nothing: it is no row of a log whose rows count the same replays or calls.
  static std::optional<Run> RunOf(const SlotIdentity& row, std::uint64_t replay,
                                  std::uint32_t iteration);
  static std::optional<Run> RunOf(const Snapshot& snapshot) {
    return RunOf(*snapshot.slot, snapshot.replay, snapshot.iteration);
  }
  static void PinRow(Session* session, const Key& slot, const StoredSnapshot& row);
  static void PinRun(Session* session, const Run& run);
  static bool IsMeant(const Snapshot& snapshot, std::uint64_t replay, std::uint64_t serial);
  void Drop(Kept* kept);
  void Trim();
  void Unpin(const Pinned& pinned);

  const std::uint64_t max_bytes_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, Session> sessions_;  // by uuid
  // Snapshots with a payload, by arrival: those with a newer one in their slot, and the newest of
  // each slot.
  std::map<std::uint64_t, Kept*> older_;
  std::map<std::uint64_t, Kept*> newest_;
  std::uint64_t bytes_ = 0;         // of payloads that are not only pinned
  std::uint64_t pinned_bytes_ = 0;  // of payloads that are pinned
  std::uint64_t arrivals_ = 0;
};

}  // namespace cgdebug::pipeline
