// op_log.h: statistics of every tensor that the ops of a capture write, or those of an eager run:
// one row per tensor, one slot per page of rows, one ring entry per replay and page.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cgdebug/probe.h"
#include "libprobe/capture/op_log_lane.h"
#include "libprobe/op_log_pages.h"
#include "libprobe/probe_state.h"
#include "proto/layout/device_stats.h"

namespace cgdebug {

class ProbeTable;

// What a row is called. A name obeys the rules for names of probes; readers see the rows of one
// name as one probe.
struct OpLogText {
  std::string name;
  std::string site;
  std::string op;  // layout::SlotRegistration::op
};

// Thread:   any; calls of one log one at a time.
// Lifetime: may be closed before the graph that it logs is gone, and the other way round.
// Fails:    throws ProbeError.
class OpLog {
 public:
  OpLog();
  ~OpLog();
  OpLog(const OpLog&) = delete;
  OpLog& operator=(const OpLog&) = delete;

  // Adds a row: what `tensor` holds when `stream` (a cudaStream_t, ignored for the CPU) gets here.
  // A tensor on a GPU is looked at by Flush() at the latest, and a full batch is flushed at once.
  // Until then nobody may write the tensor or free it. Returns how many tensors are still to be
  // looked at, this one included.
  // Fails: also if the tensor is on a GPU and `stream` is not capturing.
  std::size_t Add(const OpLogText& text, const TensorRef& tensor, void* stream);
  // Computes the rows that are not computed yet, each in the order of its stream.
  void Flush();
  // The log of this capture, or of this eager run, is complete: what is added later belongs to
  // another one. Eager runs with the same rows are replays of one log. Must be called before the
  // capture ends: pages that are not complete by then are never seen.
  void End();

  bool WaitConsumed(std::chrono::nanoseconds timeout) const;
  void Close();

 private:
  // Rows of one stream that is capturing. They lie in the staging memory of `slot`.
  struct Page {
    std::uint64_t graph_id = 0;
    void* stream = nullptr;
    int device = 0;
    std::unique_ptr<capture::ProbeSlot> slot;
    std::vector<ring::OpLogRow> rows;
    std::vector<capture::OpLogTensor> pending;
    std::uint64_t pending_bytes = 0;
    std::uint32_t launches = 0;  // of batches
  };

  std::size_t AddOnHost(ring::OpLogRow row, const TensorRef& tensor);
  std::size_t AddInGraph(ring::OpLogRow row, const TensorRef& tensor, void* stream);
  Page& OpenPage(ProbeTable& table, std::uint64_t graph_id, const TensorRef& tensor, void* stream);
  std::size_t Pending() const;
  void FlushPage(ProbeTable& table, Page& page);
  void FinishPage(ProbeTable& table, Page& page);
  void EndPages(ProbeTable& table);
  void EndOnHost(ProbeTable& table);
  // Forgets what is not complete; the graph goes on without it.
  void DropPages(ProbeTable& table);
  void DropPage(ProbeTable& table, Page& page);

  std::shared_ptr<ProbeState> state_;
  const std::size_t rows_of_launch_;  // at most
  std::vector<Page> pages_;      // those that are not complete
  OpLogPages::NameCounts seen_;  // since End()
  // The rows on the CPU, since End().
  std::vector<ring::OpLogRow> rows_;
  std::vector<layout::DeviceStats> stats_;
};

}  // namespace cgdebug
