// graph_rows.h: the rows of a captured op log, and which nodes the capture gets between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libprobe/capture/graph/capture_nodes.h"
#include "libprobe/capture/lane/op_log_lane.h"
#include "libprobe/op_log_pages.h"
#include "libprobe/slots/probe_state.h"
#include "proto/layout/device_stats.h"

namespace cgdebug {

class ProbeTable;

// Counters of a log: its launches, the rows and bytes that they read, and the device memory that
// its pages take.
struct OpLogCounters {
  std::uint64_t launches = 0;  // each computes a batch of rows
  std::uint64_t rows = 0;
  std::uint64_t bytes = 0;
  std::uint64_t device_bytes = 0;  // of device memory, also of pages that are complete
};

// Rows of one stream that is capturing.
struct CapturedPage {
  std::uint64_t graph_id = 0;
  void* stream = nullptr;
  int device = 0;
  std::unique_ptr<capture::ProbeSlot> slot;
  layout::DeviceStats* memory = nullptr;       // capture::OpLogPageParts()
  layout::DeviceStats* large_parts = nullptr;  // capture::OpLogLargeParts(), if it has needed them
  std::vector<ring::OpLogRow> rows;
  std::vector<capture::OpLogTensor> pending;
  std::uint64_t pending_bytes = 0;
  std::uint32_t launches = 0;  // of batches
  // The place in the capture up to which nothing has overwritten the tensors of the pending rows.
  capture::Position position;
  std::uint64_t newest_row = 0;  // counted over all pages
};

// Requires: the lock of the probe table; a forked child has another table.
// Fails:    throws ProbeError.
class GraphRows {
 public:
  // `names`: how often the log has used each name. Both outlive it.
  GraphRows(ProbeState* log, OpLogPages::NameCounts* names);

  struct Place {
    std::uint64_t graph_id;
    void* stream;
    int device;
  };
  // Adds a row, as OpLog does.
  void Add(ProbeTable& table, ring::OpLogRow row, const capture::OpLogTensor& tensor,
           const Place& place);
  void Flush(ProbeTable& table) { Flush(table, NewNodes(nullptr)); }
  std::size_t Pending() const;
  const OpLogCounters& counters() const { return counters_; }

  // As OpLog's.
  std::size_t TakeNodes(void* stream);
  std::vector<std::string> TakeUnseen(ProbeTable& table, void* stream);
  std::vector<std::string> TakeRest(void* stream);

  // nullptr: there is none, or its page is complete.
  ring::OpLogRow* Newest();
  // Completes the pages.
  void End(ProbeTable& table);
  // Forgets what is not complete; the graph goes on without it.
  void Drop(ProbeTable& table);

 private:
  // The rows that were computed last.
  struct Batch {
    void* stream = nullptr;
    capture::Position end;
    std::vector<void*> waiting;  // streams whose next node comes after it, `stream` included
  };

  CapturedPage& OpenPage(ProbeTable& table, const Place& place);
  // Whether `stream` takes part in the capture that the log follows.
  bool Follow(void* stream);
  void StopFollowing();
  // Nodes that `stream`, which may be null, and the streams of pages have captured since the last
  // call of their kind.
  std::vector<void*> NewNodes(void* stream);
  std::vector<std::string> TakeNames();
  std::uint64_t PendingBytes() const;
  // Computes the rows that are pending, in front of `unseen`.
  void Flush(ProbeTable& table, const std::vector<void*>& unseen);
  void FlushPage(ProbeTable& table, CapturedPage& page, const std::vector<void*>& unseen = {});
  // Memory of the page's graph for `count` of them.
  layout::DeviceStats* TakeParts(CapturedPage& page, std::uint64_t count);
  void FinishPage(ProbeTable& table, CapturedPage& page);
  static void DropPage(ProbeTable& table, CapturedPage& page);

  ProbeState* log_;
  OpLogPages::NameCounts* names_;
  const std::size_t rows_of_launch_;   // at most
  const std::uint64_t bytes_pending_;  // at most, unless one tensor alone is larger
  OpLogCounters counters_;
  std::vector<CapturedPage> pages_;  // those that are not complete
  std::uint64_t row_count_ = 0;
  std::optional<capture::CaptureNodes> nodes_;  // of the capture under way
  std::vector<void*> unseen_;                   // nodes that nobody has asked for yet
  std::optional<Batch> last_batch_;             // each comes after the one before it
};

}  // namespace cgdebug
