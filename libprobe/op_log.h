// op_log.h: statistics of every tensor that the ops of a capture write, or those of an eager run:
// one row per tensor, one slot per page of rows, one ring entry per replay and page.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cgdebug/probe.h"
#include "libprobe/capture/graph/capture_nodes.h"
#include "libprobe/capture/lane/op_log_lane.h"
#include "libprobe/eager_calls.h"
#include "libprobe/op_log_pages.h"
#include "libprobe/slots/probe_state.h"
#include "proto/layout/device_stats.h"

namespace cgdebug {

class ProbeTable;

// A dimension of a tensor on a GPU that has no gaps, but lies in memory in another order.
struct OpLogDimension {
  std::uint64_t size = 0;
  std::uint64_t stride = 0;  // in elements, if the tensor lay in its usual order
};
inline constexpr std::size_t kMaxOpLogDimensions = capture::ElementOrder::kMaxDimensions;

// Counters of a log: its launches, the rows and bytes that they read, and the device memory that
// its pages take.
struct OpLogCounters {
  std::uint64_t launches = 0;  // each computes a batch of rows
  std::uint64_t rows = 0;
  std::uint64_t bytes = 0;
  std::uint64_t device_bytes = 0;  // of device memory, also of pages that are complete
};

// What a row is called. A name obeys the rules for names of probes; readers see the rows of one
// name as one probe.
struct OpLogText {
  std::string name;
  std::string site;
  std::string op;            // layout::SlotRegistration::op
  std::string details = {};  // layout::OpLogRow::details_bytes
};

// Thread:   any; calls of one log one at a time.
// Lifetime: may be closed before the graph that it logs is gone, and the other way round.
// Fails:    throws ProbeError.
class OpLog {
 public:
  // `every`: of a graph, the rows of replays 1, 1 + every, ...: in the others its kernels return at
  // once. Of eager runs, all are logged.
  explicit OpLog(std::uint32_t every = 1);
  ~OpLog();
  OpLog(const OpLog&) = delete;
  OpLog& operator=(const OpLog&) = delete;

  // Adds a row: what `tensor` holds when `stream` (a cudaStream_t, ignored for the CPU) gets here.
  // The row of a tensor on a GPU is pending until Flush() computes it, with others in one launch; a
  // full batch is flushed at once. Until then nobody may free the tensor, and nobody may write it
  // except nodes that TakeUnseen() finds. Returns how many rows are pending: 0, or 1 if that is the
  // new one alone, or one more than before.
  // `order`: the dimensions from the one that changes fastest in memory, at most
  // kMaxOpLogDimensions; empty: the elements lie in their usual order.
  // The row of a tensor on a GPU whose stream is not capturing is one of an eager run, and is never
  // pending: the GPU computes it when the stream gets here.
  std::size_t Add(const OpLogText& text, const TensorRef& tensor, void* stream,
                  const std::vector<OpLogDimension>& order = {});
  // Computes the rows that are pending. What their streams capture from now on comes after them.
  void Flush();
  std::size_t Pending() const;
  OpLogCounters Counters() const;

  // The log follows which nodes a capture gets, and who adds them. A node is a kernel, a copy or
  // whatever else may write memory. Without CUDA there are none.

  // Marks the nodes that `stream` has captured since the last call as explained: an op added them,
  // or something else whose writes are known. Returns their number.
  std::size_t TakeNodes(void* stream);
  // Marks these nodes as unexplained: the log does not know who added them, so they may have
  // written anything. Computes the pending rows in front of them. Returns what the nodes run.
  // Must be called before each op: it also makes `stream` wait for rows that were pending on
  // another stream.
  std::vector<std::string> TakeUnseen(void* stream);
  // Marks the nodes of the graph that no stream comes to as unexplained, and returns what they run.
  // Takes time in proportion to the size of the graph.
  std::vector<std::string> TakeRest(void* stream);
  // Replaces the op and the details of the newest row, if its page is not complete.
  void AmendNewest(const std::string& op, const std::string& details);
  // The log of this capture, or of this eager run, is complete: what is added later belongs to
  // another one. Each eager run is a call. Must be called before the
  // capture ends: pages that are not complete by then are never seen. Returns the number of the
  // eager call that it was; 0: none. Rows that the GPU has not computed by then are never seen, and
  // it throws.
  std::uint64_t End();
  // Waits for the rows of this eager run that a GPU computes. Returns false if time is up and they
  // may still come.
  bool AwaitRows(std::chrono::nanoseconds timeout);
  // Gives up those that it has not computed. Returns their number.
  std::size_t DropAwaited();

  bool WaitConsumed(std::chrono::nanoseconds timeout) const;
  void Close();

 private:
  // Rows of one stream that is capturing.
  struct Page {
    std::uint64_t graph_id = 0;
    void* stream = nullptr;
    int device = 0;
    std::unique_ptr<capture::ProbeSlot> slot;
    layout::DeviceStats* memory = nullptr;  // capture::OpLogPageParts()
    layout::DeviceStats* large_parts =
        nullptr;  // capture::OpLogLargeParts(), if it has needed them
    std::vector<ring::OpLogRow> rows;
    std::vector<capture::OpLogTensor> pending;
    std::uint64_t pending_bytes = 0;
    std::uint32_t launches = 0;  // of batches
    // The place in the capture up to which nothing has overwritten the tensors of the pending rows.
    capture::Position position;
    std::uint64_t newest_row = 0;  // counted over all pages
  };
  // The rows that were computed last.
  struct Batch {
    void* stream = nullptr;
    capture::Position end;
    std::vector<void*> waiting;  // streams whose next node comes after it, `stream` included
  };

  std::size_t AddOnHost(ring::OpLogRow row, const TensorRef& tensor);
  std::size_t AddOnGpu(ring::OpLogRow row, const TensorRef& tensor, void* stream,
                       const std::vector<OpLogDimension>& order);
  // Of an eager run. Requires: the lock.
  void AddEager(ProbeTable& table, ring::OpLogRow row, const layout::DeviceStats& stats,
                const capture::EagerRow& awaited);
  // How many of the rows that no ring has yet have statistics, from the first one on.
  std::size_t TakeComputed();
  std::size_t DropAwaited(ProbeTable& table);
  std::size_t AddInGraph(ring::OpLogRow row, const TensorRef& tensor, void* stream,
                         std::uint64_t graph_id, const std::vector<OpLogDimension>& order);
  Page& OpenPage(ProbeTable& table, std::uint64_t graph_id, const TensorRef& tensor, void* stream);
  // Whether `stream` takes part in the capture that the log follows.
  bool Follow(void* stream);
  // Nodes that `stream`, which may be null, and the streams of pages have captured since the last
  // call of their kind.
  std::vector<void*> NewNodes(void* stream);
  // Computes the rows that are pending, in front of `unseen`.
  void FlushPages(ProbeTable& table, const std::vector<void*>& unseen);
  std::vector<std::string> TakeNames();
  void StopFollowing();
  std::size_t PendingRows() const;
  std::uint64_t PendingBytes() const;
  void FlushPage(ProbeTable& table, Page& page, const std::vector<void*>& unseen = {});
  // Memory of the page's graph for `count` of them.
  layout::DeviceStats* TakeParts(Page& page, std::uint64_t count);
  void FinishPage(ProbeTable& table, Page& page);
  void EndPages(ProbeTable& table);
  // Writes the eager rows that are computed into rings; they are of `call`, and the last ones with
  // `is_end`.
  void SendOnHost(ProbeTable& table, const EagerCall& call, bool is_end);
  std::uint64_t EndOnHost(ProbeTable& table);
  // Sends the rows that came before `limit`. Requires: the lock. What fails, End() raises.
  void SendLate(ProbeTable& table, std::chrono::steady_clock::time_point limit);
  // While rows wait: a call that hangs adds none, and sends the others in no other way.
  static void SendLateRows(ProbeTable* table);
  static void StartToSendLateRows(ProbeTable& table);
  // Forgets what is not complete; the graph goes on without it.
  void DropPages(ProbeTable& table);
  void DropPage(ProbeTable& table, Page& page);

  std::shared_ptr<ProbeState> state_;
  const std::size_t rows_of_launch_;   // at most
  const std::uint64_t bytes_pending_;  // at most, unless one tensor alone is larger
  OpLogCounters counters_;
  std::vector<Page> pages_;  // those that are not complete
  std::uint64_t rows_in_graph_ = 0;
  std::optional<capture::CaptureNodes> nodes_;  // of the capture under way
  std::vector<void*> unseen_;                   // nodes that nobody has asked for yet
  std::optional<Batch> last_batch_;             // each comes after the one before it
  OpLogPages::NameCounts seen_;                 // since End()
  // The eager rows that no ring has yet.
  std::vector<ring::OpLogRow> rows_;
  std::vector<layout::DeviceStats> stats_;
  std::vector<capture::EagerRow> awaited_;  // where the statistics will be; null: they are here
  std::size_t rows_sent_ = 0;               // of the call under way
  EagerCall call_;                          // theirs; none if they only say what is not shown
  std::uint64_t serial_ = 0;                // when it began
  std::chrono::steady_clock::time_point oldest_row_ = {};  // when the first of rows_ came
  std::exception_ptr late_failure_;                        // of SendLate()
};

}  // namespace cgdebug
