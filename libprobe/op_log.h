// op_log.h: statistics of every tensor that the ops of a capture write, or those of an eager run:
// one row per tensor, one slot per page of rows, one ring entry per replay and page.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cgdebug/probe.h"
#include "libprobe/capture/lane/op_log_lane.h"
#include "libprobe/eager_rows.h"
#include "libprobe/graph_rows.h"
#include "libprobe/slots/probe_state.h"

namespace cgdebug {

// A dimension of a tensor on a GPU that has no gaps, but lies in memory in another order.
struct OpLogDimension {
  std::uint64_t size = 0;
  std::uint64_t stride = 0;  // in elements, if the tensor lay in its usual order
};
inline constexpr std::size_t kMaxOpLogDimensions = capture::ElementOrder::kMaxDimensions;

// Of a tensor on a GPU whose slowest dimension in memory are `rows` rows: those behind the first
// *start, a number in device memory as it is when the row is computed. Below 0 is 0, above `rows`
// is `rows`.
struct OpLogTail {
  const std::int64_t* start = nullptr;  // null: the whole tensor
  std::uint64_t rows = 0;
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
  // `tail`: what of the tensor the row shows. Its first NaN or Inf has its place in the whole.
  // The row of a tensor on a GPU whose stream is not capturing is one of an eager run, and is never
  // pending: the GPU computes it when the stream gets here.
  std::size_t Add(const OpLogText& text, const TensorRef& tensor, void* stream,
                  const std::vector<OpLogDimension>& order = {}, const OpLogTail& tail = {});
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
  std::size_t AddOnHost(ring::OpLogRow row, const TensorRef& tensor);
  std::size_t AddOnGpu(ring::OpLogRow row, const capture::OpLogTensor& seen, int device,
                       void* stream);
  std::unique_lock<std::mutex> Locked() const;
  void RequireOpen() const;

  std::shared_ptr<ProbeState> state_;
  OpLogPages::NameCounts names_;  // since End()
  GraphRows graph_{state_.get(), &names_};
  EagerRows eager_{state_.get(), &names_};
};

}  // namespace cgdebug
