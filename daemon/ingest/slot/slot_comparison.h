// slot_comparison.h: what the snapshots of one slot are compared with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "daemon/core/base/result.h"
#include "daemon/pipeline/sink.h"
#include "libprobe/ring/segment/segment_view.h"
#include "libprobe/ring/slot_ring_reader.h"

namespace cgdebug::ingest {

// A slot with kActionCompare is compared with a tensor that the job gave (TensorCompare), with its
// own first snapshot (kCompareFirst), or with what another slot has of the same replay
// (kCompareProbe). Of any other slot nothing is compared.
//
// Thread: the one that reads the slot, under a SigbusGuard.
class SlotComparison {
 public:
  // All of them outlive this.
  SlotComparison(const pipeline::SlotIdentity* slot, const ring::SlotRingReader* ring,
                 ring::SegmentView* view)
      : slot_(slot), ring_(ring), view_(view) {}

  // Finds what is expected. `consumed`: how many entries earlier daemons consumed.
  void Start(std::uint64_t consumed);
  // Fails: there is no usable expected tensor; the message says why.
  Result<void> CanCompare() const;
  // Compares what was `made` of `entry`. The first entry of a slot may become what is expected.
  // Null if no comparison is wanted or possible.
  pipeline::ComparisonPtr Compare(const ring::Entry& entry, const pipeline::StoredSnapshot& made);

 private:
  bool WithFirst() const { return (slot_->registration.flags & layout::kCompareFirst) != 0; }
  bool WithOther() const { return (slot_->registration.flags & layout::kCompareProbe) != 0; }
  Result<std::vector<std::byte>> ReadExpected() const;
  void FindFirst(std::uint64_t consumed);
  void TakeFirst(const ring::Entry& entry, const pipeline::StoredSnapshot& made);
  void OpenOther();
  pipeline::ComparisonPtr CompareWithOther(const ring::Entry& entry,
                                           std::span<const std::byte> values) const;
  Result<numerics::CompareResult> ByDevice(const ring::Entry& entry) const;

  const pipeline::SlotIdentity* slot_;
  const ring::SlotRingReader* ring_;
  ring::SegmentView* view_;
  // Not set: the first snapshot has not come, and will be this; or another slot has it.
  std::optional<Result<std::vector<std::byte>>> expected_;
  std::optional<ring::SlotRingReader> other_;
};

}  // namespace cgdebug::ingest
