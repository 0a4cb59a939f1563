// sink.h: where snapshots go. Every sink sees every snapshot, in order within a slot.
#pragma once

#include <cstdint>

#include "daemon/core/base/result.h"
#include "daemon/model/finding.h"
#include "daemon/model/snapshot.h"
#include "daemon/pipeline/comparison.h"
#include "libprobe/ring/slot_ring_reader.h"
#include "proto/layout/loss_cause.h"
#include "proto/layout/not_seen.h"
#include "proto/layout/slot_control.h"

namespace cgdebug::pipeline {

// What a sink may tell the producer of one slot, and ask it.
//
// Lifetime: valid during the call it is given to.
class SlotFeedback {
 public:
  virtual ~SlotFeedback() = default;
  virtual layout::Verdict verdict() = 0;
  virtual void SetVerdict(const layout::Verdict& verdict) = 0;
  // Whether the slot's snapshots can be compared at all.
  // Fails: there is no usable expected tensor; the message says why.
  virtual Result<void> CanCompare() = 0;
  // The ordinal up to which earlier daemons consumed the slot.
  virtual std::uint64_t consumed_before() const { return 0; }
  // Runs of the slot that an action wanted and the live control kept back.
  virtual std::uint64_t suppressed() const { return 0; }
  virtual void AddPrinted(std::uint64_t lines, std::uint64_t on_terminal) = 0;
};

struct Delivery {
  SnapshotPtr snapshot;
  PayloadPtr payload;
  // An earlier daemon consumed it and it is still in the ring: use it only for the last values.
  bool seen_before = false;
  ComparisonPtr comparison = nullptr;  // null if none was wanted or possible
};

// Snapshots that no sink gets.
struct Gap {
  SlotPtr slot;
  layout::LossCause cause = layout::LossCause::kOverwritten;
  std::uint64_t count = 0;
  std::uint64_t last_ordinal = 0;   // of the gap
  std::uint64_t last_replay = 0;    // no lost snapshot is of a later replay
  std::uint64_t before_replay = 0;  // the replay of the snapshot that came after; 0 = none came. In
                                    // a conditional body, lost ones may be of that replay too
  // Whether the live control asked for that snapshot or for a lost one. If so, lost snapshots may
  // have been wanted, whatever an action's period is.
  bool before_forced = false;
};

// The rings of a job in the memory of one device stopped.
struct RingFreeze {
  SlotPtr slot;              // that stopped them; its probe's name is empty if it is not known
  std::uint64_t serial = 0;  // of the last replay that the rings keep
  std::uint64_t replay = 0;  // of the slot
  layout::ControlTrigger trigger = layout::ControlTrigger::kNone;  // kNone: the daemon asked
  std::uint32_t device = 0;
  bool live = false;  // the trigger is one that a client set
};

// The order of the calls:
// - Calls for one slot come in the order of its ordinals, and calls for one replay in graph order.
// - Verdicts and findings reach shared memory before the credit that covers them: a producer that
//   sees the credit sees the verdict, and a daemon that is killed leaves none of them out.
// - The credit moves after Flush(), when the system has everything that a recording wants.
//
// Thread: the ingest thread.
class Sink {
 public:
  virtual ~Sink() = default;

  // A job was found. Called before its slots are opened.
  virtual void OpenSession(const SessionPtr& /*session*/) {}
  // Called before the slot's first delivery.
  virtual void OpenSlot(const SlotPtr& /*slot*/, SlotFeedback& /*feedback*/) {}
  virtual void Consume(const Delivery& delivery, SlotFeedback& feedback) = 0;
  // Called before what comes after the gap, or before CloseSlot().
  virtual void Lose(const Gap& /*gap*/) {}
  // Called after every sink got that snapshot, or after OpenSlot().
  virtual void Found(const Finding& /*finding*/) {}
  // A row of an op log holds NaN, or Inf that is no mask, in that replay. 0: in one that an earlier
  // daemon read.
  virtual void NotFinite(const SlotPtr& /*row*/, std::uint64_t /*replay*/,
                         std::uint32_t /*iteration*/) {}
  // Called once for each freeze.
  virtual void Froze(const RingFreeze& /*freeze*/) {}
  // Nothing more comes: the producer ended after replay `last_replay`, or gave the slot up.
  virtual void CloseSlot(const SlotPtr& /*slot*/, std::uint64_t /*last_replay*/,
                         SlotFeedback& /*feedback*/) {}
  // What the job wanted to show and nobody sees. Replaces the earlier report of the same kind.
  // Texts hold no control characters.
  virtual void NotSeen(const SessionPtr& /*session*/, const layout::NotSeen& /*not_seen*/) {}
  // The producer is gone; `died` means without a clean exit. Its values stay readable until
  // ForgetSession().
  virtual void EndSession(const SessionPtr& /*session*/, bool /*died*/) {}
  virtual void ForgetSession(const SessionPtr& /*session*/) {}
  // The producer gave the slot up, so its values are no longer wanted.
  virtual void ForgetSlot(const SlotPtr& /*slot*/) {}
  // Called before the producer learns what was consumed.
  virtual void Flush() {}
  // Called some times a second, also while nothing comes.
  virtual void Tick() {}
};

}  // namespace cgdebug::pipeline
