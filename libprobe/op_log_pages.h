// op_log_pages.h: the slots that hold the pages of op logs, and the ids of their rows.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "libprobe/ring/op_log_table.h"
#include "libprobe/slots/slot_maker.h"
#include "libprobe/slots/store/slot_store.h"

namespace cgdebug {

// Thread: one at a time (the probe table's lock).
class OpLogPages {
 public:
  // All of them outlive it.
  OpLogPages(ProbeRegistry* probes, ProcessSegment* segment, SlotStore* store, SlotMaker* maker)
      : probes_(probes), segment_(segment), store_(store), maker_(maker) {}

  using NameCounts = std::unordered_map<std::string, std::uint32_t>;
  // Fills in the ids that belong to the names of the rows, and how often their log used each
  // name before, which *seen counts.
  void Name(std::vector<ring::OpLogRow>* rows, NameCounts* seen);

  // All of these fail with ProbeError.

  // The slot of an eager page with these rows on the CPU: the one of an earlier run, or a new one.
  // thread: that of a run that has a number (eager_calls.h); else 0.
  capture::ProbeSlot* HostSlot(ProbeState& log, std::span<const ring::OpLogRow> rows,
                               std::uint32_t thread);

  // Adds the leaf of a page whose rows lie at `memory`, publishes the slot and takes it. If it
  // fails, the caller keeps the slot, because the graph refers to it.
  void Capture(ProbeState& log, std::span<const ring::OpLogRow> rows, const void* memory,
               int device, std::uint64_t graph_id, void* stream,
               std::unique_ptr<capture::ProbeSlot>& slot);

 private:
  ProbeRegistry* probes_;
  ProcessSegment* segment_;
  SlotStore* store_;
  SlotMaker* maker_;
  std::unordered_map<std::string, std::uint64_t> ids_;  // by name
};

}  // namespace cgdebug
