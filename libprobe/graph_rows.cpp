#include "libprobe/graph_rows.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "daemon/core/words/settings.h"
#include "libprobe/capture/graph/root_graph.h"
#include "libprobe/capture/lane/cuda_lane.h"
#include "libprobe/capture/lane/direct_lane.h"
#include "libprobe/probe_table.h"

namespace cgdebug {
namespace {

// Tensors that wait for their batch cannot be given back to the allocator.
constexpr std::uint64_t kMostPendingMib = 512;

// A replay that hangs is known to stand before one launch and after another. So few rows in each
// say more exactly where, and cost more.
std::size_t RowsOfLaunch() {
  return words::ReadNumber("CGDEBUG_OP_LOG_BATCH").value_or(capture::kMostOpLogTensors);
}

std::uint64_t BytesPending() {
  return words::ReadNumber("CGDEBUG_OP_LOG_MIB").value_or(kMostPendingMib) << 20;
}

void RequireCapture(void* stream, std::uint64_t graph_id, std::size_t rows) {
  const capture::StreamCapture capture = capture::QueryCapture(stream);
  if (capture.capturing && capture.id == graph_id) return;
  throw ProbeError(ErrorKind::kBadArgument, "the capture ended before its op log: " +
                                                std::to_string(rows) + " rows are never seen");
}

CapturedPage NewPage(const ProbeState& log, const GraphRows::Place& place, CapturedGraphs& graphs) {
  CapturedPage page;
  page.graph_id = place.graph_id;
  page.stream = place.stream;
  page.device = place.device;
  page.slot = std::make_unique<capture::ProbeSlot>();
  page.slot->probe_id = log.id;
  page.slot->registration.graph_id = place.graph_id;
  page.slot->counted = graphs.FindCounted(place.graph_id);
  page.slot->buffers = capture::AllocateBuffers(0, page.device, capture::Buffers::Kind::kDirect);
  return page;
}

// A batch has one.
bool HasOtherTail(const CapturedPage& page, const capture::OpLogTensor& tensor) {
  return tensor.tail_start != nullptr &&
         std::ranges::any_of(page.pending, [&](const capture::OpLogTensor& one) {
           return one.tail_start != nullptr && one.tail_start != tensor.tail_start;
         });
}

}  // namespace

GraphRows::GraphRows(ProbeState* log, OpLogPages::NameCounts* names)
    : log_(log), names_(names), rows_of_launch_(RowsOfLaunch()), bytes_pending_(BytesPending()) {}

std::size_t GraphRows::Pending() const {
  std::size_t pending = 0;
  for (const CapturedPage& page : pages_) pending += page.pending.size();
  return pending;
}

std::uint64_t GraphRows::PendingBytes() const {
  std::uint64_t pending = 0;
  for (const CapturedPage& page : pages_) pending += page.pending_bytes;
  return pending;
}

void GraphRows::Add(ProbeTable& table, ring::OpLogRow row, const capture::OpLogTensor& tensor,
                    const Place& place) {
  // A tail lies in memory that counts already.
  const std::uint64_t bytes =
      tensor.tail_start == nullptr ? tensor.count * layout::DtypeBytes(row.dtype) : 0;
  CapturedPage& page = OpenPage(table, place);
  if (nodes_ && nodes_->capture_id() != place.graph_id) StopFollowing();
  if (nodes_) (void)nodes_->Take(place.stream);  // so that whatever comes in front of it is known
  // Each flush for the lack of room is one of all pages: see OpLog::Add().
  if (PendingBytes() + bytes > bytes_pending_ || HasOtherTail(page, tensor)) Flush(table);
  page.position = capture::PositionOf(place.stream);
  page.newest_row = ++row_count_;
  page.pending.push_back(tensor);
  page.pending.back().row = static_cast<std::uint32_t>(page.rows.size());
  page.pending_bytes += bytes;
  page.rows.push_back(std::move(row));
  const bool is_full = page.rows.size() == capture::kOpLogRowsOfPage;
  if (is_full || page.pending.size() >= rows_of_launch_ || PendingBytes() >= bytes_pending_) {
    Flush(table);
  }
  // If nodes are followed, the newest row may still change.
  if (is_full && !nodes_) FinishPage(table, page);
}

CapturedPage& GraphRows::OpenPage(ProbeTable& table, const Place& place) {
  if (capture::PlaceOf(place.stream, place.graph_id, place.device).in_body) {
    throw ProbeError(ErrorKind::kUnsupported,
                     "an op log does not see the body of a conditional node, which runs any number "
                     "of times in a replay. Put probes into the body");
  }
  std::erase_if(pages_, [](const CapturedPage& page) { return page.slot == nullptr; });
  // Left by an earlier capture, which failed or whose log was not ended.
  if (!pages_.empty() && pages_.front().graph_id != place.graph_id) Drop(table);
  const auto open = std::find_if(pages_.begin(), pages_.end(), [&](const CapturedPage& page) {
    return page.stream == place.stream && page.device == place.device;
  });
  if (open != pages_.end()) {
    if (open->rows.size() < capture::kOpLogRowsOfPage) return *open;
    FinishPage(table, *open);
  }
  if (const auto refusal = capture::DirectLane::Refused(place.device)) {
    throw ProbeError(ErrorKind::kUnsupported,
                     "an op log of a graph needs the direct lane: " + refusal->text);
  }
  CapturedPage& page = pages_.emplace_back(NewPage(*log_, place, table.graphs));
  try {
    capture::DirectLane::On(page.device).Begin(page.slot.get(), page.stream);
    page.memory = TakeParts(page, capture::OpLogPageParts());
  } catch (...) {
    DropPage(table, page);
    pages_.pop_back();
    throw;
  }
  return page;
}

std::size_t GraphRows::TakeNodes(void* stream) {
  return Follow(stream) ? NewNodes(stream).size() : 0;
}

std::vector<std::string> GraphRows::TakeUnseen(ProbeTable& table, void* stream) {
  if (!Follow(stream)) return {};
  const std::vector<void*> unseen = NewNodes(stream);
  unseen_.insert(unseen_.end(), unseen.begin(), unseen.end());
  const bool is_elsewhere = std::any_of(
      pages_.begin(), pages_.end(),
      [&](const CapturedPage& page) { return page.stream != stream && !page.pending.empty(); });
  if (!unseen.empty() || is_elsewhere) Flush(table, unseen);
  if (last_batch_) {
    // Memory of rows that are computed is used again, maybe by this stream.
    std::vector<void*>& waiting = last_batch_->waiting;
    if (std::find(waiting.begin(), waiting.end(), stream) == waiting.end()) {
      capture::Join(stream, last_batch_->end);
      waiting.push_back(stream);
    }
  }
  return TakeNames();
}

std::vector<std::string> GraphRows::TakeRest(void* stream) {
  if (!Follow(stream)) return {};
  const std::vector<void*> rest = nodes_->TakeRest(stream);
  unseen_.insert(unseen_.end(), rest.begin(), rest.end());
  return TakeNames();
}

ring::OpLogRow* GraphRows::Newest() {
  const auto newest = std::ranges::max_element(
      pages_, {}, [](const CapturedPage& page) { return page.newest_row; });
  if (newest == pages_.end() || newest->slot == nullptr || newest->rows.empty()) return nullptr;
  return &newest->rows.back();
}

bool GraphRows::Follow(void* stream) {
  if (log_->closed) return false;
  const capture::StreamCapture capture = capture::QueryCapture(stream);
  if (!capture.capturing) return false;
  if (!nodes_) nodes_.emplace(capture.id);
  return nodes_->capture_id() == capture.id;
}

void GraphRows::StopFollowing() {
  nodes_.reset();
  unseen_.clear();
  last_batch_.reset();
}

std::vector<void*> GraphRows::NewNodes(void* stream) {
  std::vector<void*> nodes;
  if (!nodes_) return nodes;
  if (stream != nullptr) nodes = nodes_->Take(stream);
  for (const CapturedPage& page : pages_) {
    if (page.stream == stream || page.slot == nullptr) continue;
    const std::vector<void*> more = nodes_->Take(page.stream);
    nodes.insert(nodes.end(), more.begin(), more.end());
  }
  return nodes;
}

std::vector<std::string> GraphRows::TakeNames() {
  std::vector<std::string> names;
  for (void* node : std::exchange(unseen_, {})) {
    std::string name = capture::NameOfNode(node);
    if (!name.empty()) names.push_back(std::move(name));
  }
  return names;
}

// A node that comes to light now may have run beside any batch so far, and none of them comes after
// it: all that a batch comes after was known then.
void GraphRows::Flush(ProbeTable& table, const std::vector<void*>& unseen) {
  if (last_batch_ && !unseen.empty()) {
    capture::PutBehind(last_batch_->stream, last_batch_->end, unseen);
  }
  std::exception_ptr failure;  // of one page; the others are flushed all the same
  for (CapturedPage& page : pages_) {
    try {
      FlushPage(table, page, unseen);
    } catch (...) {
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

// A row that was not computed would show what its memory held before, so a page without one of its
// kernels is given up.
void GraphRows::FlushPage(ProbeTable& table, CapturedPage& page, const std::vector<void*>& unseen) {
  const std::vector<capture::OpLogTensor> pending = std::exchange(page.pending, {});
  const std::uint64_t bytes = std::exchange(page.pending_bytes, 0);
  if (pending.empty() || page.slot == nullptr) return;
  ++page.launches;
  ++counters_.launches;
  counters_.rows += pending.size();
  counters_.bytes += bytes;
  for (const capture::OpLogTensor& tensor : pending) page.rows[tensor.row].launch = page.launches;
  try {
    const bool is_large = bytes >= capture::kLargeOpLogBatch;
    if (is_large && page.large_parts == nullptr) {
      page.large_parts = TakeParts(page, capture::OpLogLargeParts());
    }
    // Unless nodes are followed, nobody puts later writers behind the rows, so these are computed
    // where the stream stands.
    capture::Position end = capture::ComputeRows(
        page.memory, is_large ? page.large_parts : nullptr, page.slot->buffers.state, pending,
        page.launches, page.device, page.stream,
        nodes_ ? page.position : capture::PositionOf(page.stream));
    if (nodes_) (void)nodes_->Take(page.stream);  // what was added is ours
    capture::PutBehind(page.stream, end, unseen);
    last_batch_ = {.stream = page.stream, .end = std::move(end), .waiting = {page.stream}};
  } catch (const ProbeError& error) {
    const std::string lost = std::to_string(page.rows.size()) + " rows of an op log are lost: ";
    DropPage(table, page);
    throw ProbeError(error.kind(), lost + error.what());
  } catch (...) {
    DropPage(table, page);
    throw;
  }
}

layout::DeviceStats* GraphRows::TakeParts(CapturedPage& page, std::uint64_t count) {
  counters_.device_bytes += count * sizeof(layout::DeviceStats);
  return page.slot->TakeParts(count, page.device);
}

void GraphRows::FinishPage(ProbeTable& table, CapturedPage& page) {
  FlushPage(table, page);
  table.op_logs.Name(&page.rows, names_);
  try {
    table.op_logs.Capture(*log_, page.rows, page.memory, page.device, page.graph_id, page.stream,
                          page.slot);
  } catch (...) {
    DropPage(table, page);
    throw;
  }
}

void GraphRows::End(ProbeTable& table) {
  std::exception_ptr failure;  // of one page; the others are completed all the same
  for (CapturedPage& page : pages_) {
    if (page.slot == nullptr) continue;
    try {
      RequireCapture(page.stream, page.graph_id, page.rows.size());
      FinishPage(table, page);
    } catch (...) {
      DropPage(table, page);
      failure = std::current_exception();
    }
  }
  pages_.clear();
  if (failure) std::rethrow_exception(failure);
  StopFollowing();
}

void GraphRows::DropPage(ProbeTable& table, CapturedPage& page) {
  if (page.slot != nullptr) {
    if (page.launches != 0) {
      capture::DirectLane::On(page.device).HoldWithoutLeaf(page.slot.get(), page.stream);
    }
    table.slots.Discard(std::move(page.slot));
  }
  page.pending.clear();
}

void GraphRows::Drop(ProbeTable& table) {
  for (CapturedPage& page : pages_) DropPage(table, page);
  pages_.clear();
}

}  // namespace cgdebug
