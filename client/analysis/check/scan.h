// scan.h: reads each snapshot of a source once, and keeps what the parts of `check` ask about it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/analysis/check/check.h"
#include "client/analysis/check/finding_list.h"
#include "client/analysis/check/lead_up.h"
#include "client/analysis/check/staleness.h"
#include "client/analysis/ops/masks.h"
#include "client/analysis/verify.h"
#include "client/source/source.h"

namespace cgdebug::analysis {

struct Scanned : SeenProbe {
  std::vector<source::Key> with_hash;  // of the values
  std::string unread;                  // why a snapshot was not looked at: of the first one
  std::vector<Unchanged> unchanged;
  bool ever_changed = false;
  bool is_beside = false;  // it says what lies in padding, or where that is: of another row
  bool is_empty = false;   // also outside the replays to look at
  SeenSlot seen;
  struct Nonfinite {
    source::Key key;
    source::Moment moment;
    std::uint64_t serial = 0;  // as source::Snapshot's
    std::int64_t step = -1;
    std::uint64_t nan = 0;  // elements
    std::uint64_t inf = 0;
  };
  std::vector<Nonfinite> nonfinite;  // its snapshots with NaN or Inf
  bool has_mask = false;             // one of them may be a mask: SortOutNonfinite() sets it
  FindingRun mismatch, near_overflow, largest, zero;
};

class Scan {
 public:
  // Lifetime: both outlive it.
  Scan(source::Source& source, const CheckOptions& options);

  // Fails: a source that cannot be read. Snapshots that cannot be read are missing.
  Result<void> Run();

  std::vector<Scanned>& probes() { return probes_; }  // in graph order
  const std::vector<Scanned>& probes() const { return probes_; }
  // Null if the slot was not looked at.
  const Scanned* Find(std::size_t slot) const;
  const Staleness& staleness() const { return staleness_; }
  std::uint64_t snapshots() const { return snapshots_; }
  // Of any probe; ascending, each once.
  const std::vector<std::uint64_t>& replays() const { return replays_; }
  const std::vector<SnapshotName>& with_hash() const { return with_hash_; }
  // Files of tensors have none, and count no losses either.
  bool has_serials() const { return has_serials_; }
  // Sentences, one per slot, and of how many snapshots.
  const std::vector<std::string>& unread() const { return unread_; }
  std::uint64_t unread_count() const { return unread_count_; }

  // What sorts snapshots of all slots by time.
  source::Moment MomentAt(const source::Slot& slot, std::uint64_t serial,
                          const source::Key& key) const;

 private:
  bool IsOrderedByCalls() const;
  Result<void> Add(std::size_t slot);
  void ReadAll();
  // The snapshot of `scanned` with that number, from 0. `previous`: the one before it.
  void Read(std::size_t number, Scanned* scanned, std::optional<source::Snapshot>* previous);
  void Look(const source::Key& key, const source::Snapshot& snapshot, const numerics::Stats& stats,
            Scanned* scanned);
  void AddUnread(const source::Key& key, const Error& error, Scanned* scanned);

  source::Source& source_;
  const CheckOptions& options_;
  bool by_calls_ = false;
  std::vector<Scanned> probes_;
  std::map<std::size_t, std::size_t> place_of_;  // by slot
  Staleness staleness_;
  std::uint64_t snapshots_ = 0;
  std::vector<std::uint64_t> replays_;
  std::vector<SnapshotName> with_hash_;
  bool has_serials_ = false;
  std::vector<std::string> unread_;
  std::uint64_t unread_count_ = 0;
};

}  // namespace cgdebug::analysis
