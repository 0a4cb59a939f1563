// slot_ring_writer.h: the producer's end of one slot's ring.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "libprobe/ring/reader_gate.h"
#include "libprobe/ring/serial.h"
#include "proto/layout/segment_layout.h"
#include "proto/layout/slot_control.h"

namespace cgdebug::ring {

// Writes snapshots of one fixed size: claim, fill, commit. An entry that is not committed stays
// Filling and is never read.
//
// Begin() and Commit() make no CUDA call (a host callback must not), take no lock, allocate
// nothing, and touch neither Python nor a log. Their only system calls are those of a wait for a
// full ring (ReaderGate).
//
// Thread:   one writer at a time. CUDA orders the replays of one graph, so a slot has one.
// Lifetime: `block`, `producer` and `gate` outlive the writer.
class SlotRingWriter {
 public:
  // Requires: `block` starts with the slot's registration and is as large as its geometry says.
  SlotRingWriter(std::byte* block, layout::ProducerLine* producer, ReaderGate* gate) noexcept;

  // Counts a replay. Returns true if an action or the live control wants it; then fill payload()
  // and call Commit(). With policy kWait it may wait for the reader, at most for the slot's
  // deadline. `serial` is the replay's (serial.h).
  bool Begin(std::uint64_t serial = NextSerial()) noexcept;
  // The same for a slot that counts calls (kSlotInBody, eager): `call` is the number of the call,
  // which is never less than the one before.
  bool BeginInCall(std::uint64_t serial, std::uint64_t call) noexcept;

  // Room for payload_bytes; valid between Begin() and Commit().
  std::byte* payload() const noexcept { return payload_; }

  // Publishes the claimed entry, with the step that the producer's CPU has reached or with `step`.
  void Commit(std::int64_t timestamp_ns) noexcept;
  void Commit(std::int64_t timestamp_ns, std::int64_t step) noexcept;
  std::int64_t step() const noexcept;
  // Says with which entry of another slot the claimed one is compared: see NewestKept().
  void SetReference(std::uint64_t ordinal) noexcept { reference_ = ordinal; }
  // The ordinal of the newest replay's entry; 0 if nothing wanted that replay.
  std::uint64_t NewestKept() const noexcept { return kept_; }

  std::uint64_t payload_bytes() const noexcept { return payload_bytes_; }

 private:
  bool Claim(std::uint64_t serial) noexcept;
  layout::Outcome DecideOutcome(std::uint64_t replay) noexcept;
  void MakeRoom(std::uint64_t ordinal) noexcept;

  layout::ProducerLine* producer_;
  ReaderGate* gate_;
  layout::SlotHead* head_;
  const layout::SlotCredit* credit_;
  layout::EntryHeader* headers_;
  std::byte* payloads_;
  // Copies of the registration: what the daemon could overwrite must not steer the writer.
  std::uint64_t payload_bytes_;
  std::uint64_t payload_stride_bytes_;
  std::uint64_t capacity_;
  std::uint64_t order_;
  layout::Periods periods_;
  layout::SlotControl control_;
  bool waits_;
  bool holds_stats_;
  std::chrono::nanoseconds deadline_;
  std::uint64_t gave_up_ = 0;  // as ReaderGate::WaitFor() left it
  // The entry being filled.
  layout::EntryHeader* claimed_ = nullptr;
  std::byte* payload_ = nullptr;
  std::uint64_t ordinal_ = 0;
  std::uint64_t replay_ = 0;
  std::uint32_t iteration_ = 0;
  std::uint64_t serial_ = 0;
  std::uint32_t flags_ = 0;
  std::uint64_t reference_ = 0;
  std::uint64_t kept_ = 0;
};

}  // namespace cgdebug::ring
