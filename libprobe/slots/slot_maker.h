// slot_maker.h: makes slots, up to the moment in which they can be published.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "libprobe/slots/captured_graphs.h"
#include "libprobe/slots/store/slot_store.h"

namespace cgdebug {

// The slot that `slot`, of `probe` with kCompareProbe, is compared with.
// Fails: throws ProbeError if there is none, or none like `tensor`.
capture::ProbeSlot* FindReference(const ProbeState& probe, const capture::ProbeSlot& slot,
                                  const TensorRef& tensor);

// Every call that fails throws ProbeError and leaves nothing behind.
//
// Thread: one at a time (the probe table's lock).
class SlotMaker {
 public:
  // Both outlive the maker.
  SlotMaker(ProcessSegment* segment, SlotStore* store, CapturedGraphs* graphs)
      : segment_(segment), store_(store), graphs_(graphs) {}

  // A slot with a ring that readers do not see yet: one that Prepare() made for such a tensor, or a
  // new one. For a capture: with buffers, and in the direct lane if it is wanted and works.
  std::unique_ptr<capture::ProbeSlot> ForCapture(ProbeState& probe, const TensorRef& tensor);
  // For an eager call: `buffers` are what BuffersForEager() asked for, which is allocated while the
  // lock is free.
  std::unique_ptr<capture::ProbeSlot> ForEager(ProbeState& probe, const TensorRef& tensor,
                                               void* stream, const capture::Buffers& buffers);
  // What an eager call on a GPU needs: pinned memory for the values, or a state in which the
  // kernels count if statistics alone leave the device.
  static capture::Buffers::Kind BuffersForEager(const ProbeState& probe, const TensorRef& tensor);
  // Makes one for a later capture, or for a later call if the tensor is on the CPU.
  void Prepare(ProbeState& probe, const TensorRef& tensor);

  // What only the calling code knows of a slot. graph_id 0: an eager call.
  struct Call {
    capture::CapturePlace place = {};
    std::uint32_t invocation = 0;
    std::string site;
    std::uint64_t orders = 1;  // that the slot takes
    std::uint32_t thread = 0;  // whose calls an eager slot counts; 0: none
  };
  // Fills in the facts of the call and the expected tensor; then the slot can be published.
  void Complete(ProbeState& probe, capture::ProbeSlot& slot, const TensorRef& tensor,
                const Call& call);

  // Turns `slot`, which may have buffers and nothing else, into the slot of a page of an op log,
  // ready to be published. `page`: its rows as a tensor of bytes; `table`: as ring::EncodeOpLog()
  // made it. In the direct lane the slot can be mapped for the page's device.
  void CompleteOpLog(ProbeState& log, capture::ProbeSlot& slot, const TensorRef& page,
                     std::span<const std::byte> table, layout::Lane lane, std::uint64_t graph_id,
                     std::uint32_t thread = 0);

 private:
  using Need = SlotStore::Need;
  std::unique_ptr<capture::ProbeSlot> Make(ProbeState& probe, const TensorRef& tensor,
                                           layout::Lane lane, layout::LaneReason reason, Need need);
  // Registration, ring and a place in the directory.
  void Describe(ProbeState& probe, capture::ProbeSlot& slot, const TensorRef& tensor,
                layout::Lane lane, layout::LaneReason reason, Need need);
  std::unique_ptr<capture::ProbeSlot> MakeForCapture(ProbeState& probe, const TensorRef& tensor,
                                                     Need need);
  static std::unique_ptr<capture::ProbeSlot> TakePrepared(ProbeState& probe,
                                                          const TensorRef& tensor);

  ProcessSegment* segment_;
  SlotStore* store_;
  CapturedGraphs* graphs_;
  std::uint64_t next_order_ = 1;
};

}  // namespace cgdebug
