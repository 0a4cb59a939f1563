#include "libprobe/op_log.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <exception>
#include <iterator>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include "daemon/core/words/settings.h"
#include "libprobe/capture/graph/root_graph.h"
#include "libprobe/capture/lane/cuda_lane.h"
#include "libprobe/capture/lane/direct_lane.h"
#include "libprobe/host_stats.h"
#include "libprobe/page_cut.h"
#include "libprobe/probe_table.h"
#include "libprobe/ring/shared_copy.h"
#include "libprobe/session.h"
#include "libprobe/settings.h"
#include "libprobe/slots/registration.h"
#include "proto/layout/realtime.h"

namespace cgdebug {
namespace {

using capture::ProbeSlot;

// A replay of a large log takes some hundred KiB, so its ring holds fewer replays than a probe's.
constexpr std::uint32_t kCapacity = 16;

// Tensors that wait for their batch cannot be given back to the allocator.
constexpr std::uint64_t kMostPendingMib = 512;

std::uint64_t ElementCount(const ring::OpLogRow& row) {
  std::uint64_t count = 1;
  for (const std::uint64_t size : row.shape) count *= size;
  return count;
}

ring::OpLogRow MakeRow(const OpLogText& text, const TensorRef& tensor) {
  CheckProbe(text.name, {});
  (void)CheckTensor(text.name, tensor);
  ring::OpLogRow row;
  row.name = text.name;
  row.site = text.site;
  row.op = text.op;
  row.details = text.details;
  row.dtype = tensor.dtype;
  row.shape.assign(tensor.shape.begin(), tensor.shape.end());
  return row;
}

// A replay that hangs is known to stand before one launch and after another. So few rows in each
// say more exactly where, and cost more.
std::size_t RowsOfLaunch() {
  return words::ReadNumber("CGDEBUG_OP_LOG_BATCH").value_or(capture::kMostOpLogTensors);
}

std::uint64_t BytesPending() {
  return words::ReadNumber("CGDEBUG_OP_LOG_MIB").value_or(kMostPendingMib) << 20;
}

// Fails: throws ProbeError.
capture::ElementOrder OrderOf(const std::string& name, std::uint64_t count,
                              const std::vector<OpLogDimension>& dimensions) {
  capture::ElementOrder order = {};
  std::fill(std::begin(order.sizes), std::end(order.sizes), 1);
  std::uint64_t product = 1;
  bool is_right = dimensions.size() <= kMaxOpLogDimensions && count <= UINT32_MAX;
  for (std::size_t d = 0; is_right && d < dimensions.size(); ++d) {
    const OpLogDimension& one = dimensions[d];
    is_right = one.size > 0 && one.size <= count && one.stride < count;
    product *= one.size;
    is_right = is_right && product <= count;
    order.sizes[d] = static_cast<std::uint32_t>(one.size);
    order.strides[d] = static_cast<std::uint32_t>(one.stride);
  }
  if (is_right && product == count) return order;
  throw ProbeError(ErrorKind::kBadArgument,
                   "'" + name + "': these dimensions are not those of its elements");
}

// Fails: throws ProbeError.
capture::OpLogTensor SeenOf(const ring::OpLogRow& row, const TensorRef& tensor,
                            const std::vector<OpLogDimension>& order) {
  capture::OpLogTensor seen;
  seen.data = tensor.data;
  seen.dtype = row.dtype;
  seen.count = ElementCount(row);
  if (!order.empty()) seen.order = OrderOf(row.name, seen.count, order);
  return seen;
}

void RequireCapture(void* stream, std::uint64_t graph_id, std::size_t rows) {
  const capture::StreamCapture capture = capture::QueryCapture(stream);
  if (capture.capturing && capture.id == graph_id) return;
  throw ProbeError(ErrorKind::kBadArgument, "the capture ended before its op log: " +
                                                std::to_string(rows) + " rows are never seen");
}

// A process that is killed loses at most what came since.
constexpr std::chrono::seconds kBetweenSends{1};

}  // namespace

OpLog::OpLog(std::uint32_t every)
    : state_(std::make_shared<ProbeState>()),
      rows_of_launch_(RowsOfLaunch()),
      bytes_pending_(BytesPending()) {
  TellMalformedSettings();
  state_->name = "op log";
  state_->options.mode = ProbeMode::kAlways;
  if (every == 0) {
    throw ProbeError(ErrorKind::kBadArgument, "an op log: every must be at least 1, not 0");
  }
  state_->options.record = RecordAction{.capacity = kCapacity, .every = every};
  ProbeTable& table = ProbeTable::Instance();
  const ProbeTable::Lock lock = table.Acquire(*state_);
  table.probes.Add(state_);
}

OpLog::~OpLog() { Close(); }

std::size_t OpLog::Add(const OpLogText& text, const TensorRef& tensor, void* stream,
                       const std::vector<OpLogDimension>& order) {
  ring::OpLogRow row = MakeRow(text, tensor);
  if (tensor.device_type != DeviceType::kCuda) return AddOnHost(std::move(row), tensor);
  const capture::StreamCapture capture = capture::QueryCapture(stream);
  return capture.capturing ? AddInGraph(std::move(row), tensor, stream, capture.id, order)
                           : AddOnGpu(std::move(row), tensor, stream, order);
}

void OpLog::Flush() {
  ProbeTable& table = ProbeTable::Instance();
  const ProbeTable::Lock lock = table.Acquire(*state_);
  FlushPages(table, NewNodes(nullptr));
}

std::size_t OpLog::Pending() const {
  const ProbeTable::Lock lock = ProbeTable::Instance().Acquire(*state_);
  return PendingRows();
}

OpLogCounters OpLog::Counters() const {
  const ProbeTable::Lock lock = ProbeTable::Instance().Acquire(*state_);
  return counters_;
}

std::size_t OpLog::TakeNodes(void* stream) {
  const ProbeTable::Lock lock = ProbeTable::Instance().Acquire(*state_);
  return Follow(stream) ? NewNodes(stream).size() : 0;
}

std::vector<std::string> OpLog::TakeUnseen(void* stream) {
  ProbeTable& table = ProbeTable::Instance();
  const ProbeTable::Lock lock = table.Acquire(*state_);
  if (!Follow(stream)) return {};
  const std::vector<void*> unseen = NewNodes(stream);
  unseen_.insert(unseen_.end(), unseen.begin(), unseen.end());
  const bool is_elsewhere = std::any_of(pages_.begin(), pages_.end(), [&](const Page& page) {
    return page.stream != stream && !page.pending.empty();
  });
  if (!unseen.empty() || is_elsewhere) FlushPages(table, unseen);
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

std::vector<std::string> OpLog::TakeRest(void* stream) {
  const ProbeTable::Lock lock = ProbeTable::Instance().Acquire(*state_);
  if (!Follow(stream)) return {};
  const std::vector<void*> rest = nodes_->TakeRest(stream);
  unseen_.insert(unseen_.end(), rest.begin(), rest.end());
  return TakeNames();
}

void OpLog::AmendNewest(const std::string& op, const std::string& details) {
  const ProbeTable::Lock lock = ProbeTable::Instance().Acquire(*state_);
  if (!rows_.empty()) {
    rows_.back().op = op;
    rows_.back().details = details;
    return;
  }
  const auto newest =
      std::max_element(pages_.begin(), pages_.end(),
                       [](const Page& a, const Page& b) { return a.newest_row < b.newest_row; });
  if (newest == pages_.end() || newest->slot == nullptr || newest->rows.empty()) return;
  newest->rows.back().op = op;
  newest->rows.back().details = details;
}

std::uint64_t OpLog::End() {
  ProbeTable& table = ProbeTable::Instance();
  const ProbeTable::Trimmer trimmer(table);
  const ProbeTable::Lock lock = table.Acquire(*state_);
  if (state_->closed) return 0;
  EndPages(table);
  const std::uint64_t call = EndOnHost(table);
  seen_.clear();
  StopFollowing();
  return call;
}

bool OpLog::WaitConsumed(std::chrono::nanoseconds timeout) const {
  return cgdebug::WaitConsumed(state_.get(), timeout);
}

void OpLog::Close() {
  ProbeTable& table = ProbeTable::Instance();
  const ProbeTable::Trimmer trimmer(table);
  const ProbeTable::Lock lock = table.Acquire(*state_);
  if (std::exchange(state_->closed, true)) return;
  DropPages(table);
  table.logs_with_rows.erase(this);
  table.probes.Remove(*state_);
  table.slots.LetGoOfAll(*state_);
}

// --- the CPU -----------------------------------------------------------------------------------

std::size_t OpLog::AddOnHost(ring::OpLogRow row, const TensorRef& tensor) {
  const layout::DeviceStats stats = ComputeHostStats(tensor.data, row.dtype, ElementCount(row));
  ProbeTable& table = ProbeTable::Instance();
  const ProbeTable::Lock lock = table.Acquire(*state_);
  AddEager(table, std::move(row), stats, {});
  return PendingRows();
}

std::size_t OpLog::AddOnGpu(ring::OpLogRow row, const TensorRef& tensor, void* stream,
                            const std::vector<OpLogDimension>& order) {
  const capture::OpLogTensor seen = SeenOf(row, tensor, order);
  ProbeTable& table = ProbeTable::Instance();
  table.has_gpu_memory.store(true, std::memory_order_relaxed);
  const ProbeTable::Trimmer trimmer(table);
  const ProbeTable::Lock lock = table.Acquire(*state_);
  if (state_->closed) throw ProbeError(ErrorKind::kClosed, "the op log is closed");
  AddEager(table, std::move(row), {}, capture::LaunchEagerRow(seen, tensor.device_index, stream));
  return PendingRows();
}

void OpLog::AddEager(ProbeTable& table, ring::OpLogRow row, const layout::DeviceStats& stats,
                     const capture::EagerRow& awaited) {
  if (call_.number == 0 && !layout::IsNoRow(row.op)) {
    call_ = table.calls.BeginRun(table.step.get());
    serial_ = ring::NextSerial();
  }
  const auto now = std::chrono::steady_clock::now();
  if (rows_.empty()) oldest_row_ = now;
  try {
    stats_.push_back(stats);
    awaited_.push_back(awaited);
    rows_.push_back(std::move(row));
  } catch (...) {
    stats_.resize(rows_.size());
    awaited_.resize(rows_.size());
    throw;
  }
  table.not_seen.CountRow();
  if (table.not_seen.WantsSegment()) {  // so that others know of the row if this process dies
    try {
      (void)table.segment.Get();
    } catch (const ProbeError&) {  // the end of the call tells it
    }
  }
  table.logs_with_rows.insert(this);
  if (now - oldest_row_ >= kBetweenSends) {
    SendOnHost(table, call_, /*is_end=*/false);
  } else if (!table.sends_late_rows) {
    StartToSendLateRows(table);
  }
}

std::size_t OpLog::TakeComputed() {
  std::size_t count = 0;
  for (; count < rows_.size(); ++count) {
    capture::EagerRow& awaited = awaited_[count];
    if (awaited.stats == nullptr) continue;
    if (!capture::IsThere(awaited)) break;
    stats_[count] = *awaited.stats;
    capture::GiveBack(std::exchange(awaited, {}));
  }
  return count;
}

std::size_t OpLog::DropAwaited(ProbeTable& table) {
  const std::size_t computed = TakeComputed();
  const std::size_t lost = rows_.size() - computed;
  const NotSeen::SentRows gone(&table.not_seen, lost);  // the log says so
  rows_.resize(computed);
  stats_.resize(computed);
  awaited_.resize(computed);
  return lost;
}

std::size_t OpLog::DropAwaited() {
  ProbeTable& table = ProbeTable::Instance();
  const ProbeTable::Lock lock = table.Acquire(*state_);
  return DropAwaited(table);
}

bool OpLog::AwaitRows(std::chrono::nanoseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  std::chrono::nanoseconds nap = std::chrono::microseconds(20);
  while (true) {
    int device = 0;
    {
      const ProbeTable::Lock lock = ProbeTable::Instance().Acquire(*state_);
      const std::size_t computed = TakeComputed();
      if (computed == rows_.size()) return true;
      device = awaited_[computed].device;
    }
    if (std::chrono::steady_clock::now() >= end) return capture::HasFailed(device);
    std::this_thread::sleep_for(nap);
    nap = std::min<std::chrono::nanoseconds>(2 * nap, std::chrono::milliseconds(1));
  }
}

void OpLog::SendLate(ProbeTable& table, std::chrono::steady_clock::time_point limit) {
  if (state_->closed || rows_.empty() || oldest_row_ > limit) return;
  try {
    SendOnHost(table, call_, /*is_end=*/false);
  } catch (...) {
    late_failure_ = std::current_exception();
  }
}

void OpLog::SendLateRows(ProbeTable* table) {
  while (true) {
    std::this_thread::sleep_for(kBetweenSends / 2);
    const ProbeTable::Lock lock = table->Acquire();
    if (table->logs_with_rows.empty()) {
      table->sends_late_rows = false;
      return;
    }
    const auto limit = std::chrono::steady_clock::now() - kBetweenSends;
    for (OpLog* const log : std::set<OpLog*>(table->logs_with_rows)) log->SendLate(*table, limit);
  }
}

void OpLog::StartToSendLateRows(ProbeTable& table) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the program's handlers run in its own threads
  try {
    std::thread(&OpLog::SendLateRows, &table).detach();
    table.sends_late_rows = true;
  } catch (const std::system_error&) {  // no more threads: rows go with those that come later
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

std::uint64_t OpLog::EndOnHost(ProbeTable& table) {
  const EagerCall call = std::exchange(call_, {});
  if (call.number != 0) table.calls.EndRun(call);
  SendOnHost(table, call, /*is_end=*/true);
  rows_sent_ = 0;
  if (late_failure_) std::rethrow_exception(std::exchange(late_failure_, nullptr));
  return call.number;
}

void OpLog::SendOnHost(ProbeTable& table, const EagerCall& call, bool is_end) {
  const std::size_t lost = is_end ? DropAwaited(table) : 0;
  if (lost != 0 && !late_failure_) {
    late_failure_ = std::make_exception_ptr(
        ProbeError(ErrorKind::kSystem, std::to_string(lost) + " rows of eager ops are not seen: " +
                                           "the GPU has not computed them"));
  }
  const auto computed = static_cast<std::ptrdiff_t>(TakeComputed());
  std::vector<ring::OpLogRow> rows(std::make_move_iterator(rows_.begin()),
                                   std::make_move_iterator(rows_.begin() + computed));
  const std::vector<layout::DeviceStats> stats(stats_.begin(), stats_.begin() + computed);
  rows_.erase(rows_.begin(), rows_.begin() + computed);
  stats_.erase(stats_.begin(), stats_.begin() + computed);
  awaited_.erase(awaited_.begin(), awaited_.begin() + computed);
  if (rows_.empty()) table.logs_with_rows.erase(this);
  // Also if there is no room for them: then the log says so.
  const NotSeen::SentRows sent(&table.not_seen, rows.size());
  table.op_logs.Name(&rows, &seen_);
  const std::uint64_t serial = call.number == 0 ? ring::NextSerial() : serial_;
  std::size_t count = 0;
  for (std::size_t begin = 0; begin < rows.size(); begin += count) {
    count = RowsOfNextPage(rows_sent_, rows.size() - begin, is_end, layout::kMaxOpLogRows);
    rows_sent_ += count;  // also if there is no room for them
    const auto page = std::span<const ring::OpLogRow>(rows).subspan(begin, count);
    ProbeSlot* const slot = table.op_logs.HostSlot(*state_, page, call.thread);
    ring::SlotRingWriter& writer = *slot->writer;
    if (!(call.number == 0 ? writer.Begin(serial) : writer.BeginInCall(serial, call.number))) {
      continue;
    }
    ring::CopyShared(writer.payload(), stats.data() + begin, writer.payload_bytes());
    writer.Commit(layout::RealtimeNs(), call.number == 0 ? writer.step() : call.step);
  }
}

// --- graphs ------------------------------------------------------------------------------------

std::size_t OpLog::PendingRows() const {
  std::size_t pending = 0;
  for (const Page& page : pages_) pending += page.pending.size();
  return pending;
}

std::uint64_t OpLog::PendingBytes() const {
  std::uint64_t pending = 0;
  for (const Page& page : pages_) pending += page.pending_bytes;
  return pending;
}

std::size_t OpLog::AddInGraph(ring::OpLogRow row, const TensorRef& tensor, void* stream,
                              std::uint64_t graph_id, const std::vector<OpLogDimension>& order) {
  capture::OpLogTensor pending = SeenOf(row, tensor, order);
  const std::uint64_t bytes = pending.count * layout::DtypeBytes(row.dtype);
  ProbeTable& table = ProbeTable::Instance();
  table.has_gpu_memory.store(true, std::memory_order_relaxed);
  const ProbeTable::Trimmer trimmer(table);
  const ProbeTable::Lock lock = table.Acquire(*state_);
  if (state_->closed) throw ProbeError(ErrorKind::kClosed, "the op log is closed");
  Page& page = OpenPage(table, graph_id, tensor, stream);
  if (nodes_ && nodes_->capture_id() != graph_id) StopFollowing();
  if (nodes_) (void)nodes_->Take(stream);  // so that whatever comes in front of the row is known
  // Each flush for the lack of room is one of all pages: see Add().
  if (PendingBytes() + bytes > bytes_pending_) FlushPages(table, NewNodes(nullptr));
  page.position = capture::PositionOf(stream);
  page.newest_row = ++rows_in_graph_;
  pending.row = static_cast<std::uint32_t>(page.rows.size());
  page.pending.push_back(pending);
  page.pending_bytes += bytes;
  page.rows.push_back(std::move(row));
  const bool is_full = page.rows.size() == capture::kOpLogRowsOfPage;
  if (is_full || page.pending.size() >= rows_of_launch_ || PendingBytes() >= bytes_pending_) {
    FlushPages(table, NewNodes(nullptr));
  }
  // If nodes are followed, AmendNewest() may still change the row.
  if (is_full && !nodes_) FinishPage(table, page);
  return PendingRows();
}

OpLog::Page& OpLog::OpenPage(ProbeTable& table, std::uint64_t graph_id, const TensorRef& tensor,
                             void* stream) {
  if (capture::PlaceOf(stream, graph_id, tensor.device_index).in_body) {
    throw ProbeError(ErrorKind::kUnsupported,
                     "an op log does not see the body of a conditional node, which runs any number "
                     "of times in a replay. Put probes into the body");
  }
  std::erase_if(pages_, [](const Page& page) { return page.slot == nullptr; });
  // Left by an earlier capture, which failed or whose log was not ended.
  if (!pages_.empty() && pages_.front().graph_id != graph_id) DropPages(table);
  const auto open = std::find_if(pages_.begin(), pages_.end(), [&](const Page& page) {
    return page.stream == stream && page.device == tensor.device_index;
  });
  if (open != pages_.end()) {
    if (open->rows.size() < capture::kOpLogRowsOfPage) return *open;
    FinishPage(table, *open);
  }
  if (const auto refusal = capture::DirectLaneRefused(tensor.device_index)) {
    throw ProbeError(ErrorKind::kUnsupported,
                     "an op log of a graph needs the direct lane: " + refusal->text);
  }
  Page page;
  page.graph_id = graph_id;
  page.stream = stream;
  page.device = tensor.device_index;
  page.slot = std::make_unique<ProbeSlot>();
  page.slot->probe_id = state_->id;
  page.slot->registration.graph_id = graph_id;
  page.slot->counted = table.graphs.FindCounted(graph_id);
  page.slot->buffers = capture::AllocateBuffers(0, page.device, capture::Buffers::Kind::kDirect);
  pages_.push_back(std::move(page));
  try {
    capture::BeginDirect(pages_.back().slot.get(), tensor.device_index, stream);
    pages_.back().memory = TakeParts(pages_.back(), capture::OpLogPageParts());
  } catch (...) {
    DropPage(table, pages_.back());
    pages_.pop_back();
    throw;
  }
  return pages_.back();
}

bool OpLog::Follow(void* stream) {
  if (state_->closed) return false;
  const capture::StreamCapture capture = capture::QueryCapture(stream);
  if (!capture.capturing) return false;
  if (!nodes_) nodes_.emplace(capture.id);
  return nodes_->capture_id() == capture.id;
}

void OpLog::StopFollowing() {
  nodes_.reset();
  unseen_.clear();
  last_batch_.reset();
}

std::vector<void*> OpLog::NewNodes(void* stream) {
  std::vector<void*> nodes;
  if (!nodes_) return nodes;
  if (stream != nullptr) nodes = nodes_->Take(stream);
  for (const Page& page : pages_) {
    if (page.stream == stream || page.slot == nullptr) continue;
    const std::vector<void*> more = nodes_->Take(page.stream);
    nodes.insert(nodes.end(), more.begin(), more.end());
  }
  return nodes;
}

std::vector<std::string> OpLog::TakeNames() {
  std::vector<std::string> names;
  for (void* node : std::exchange(unseen_, {})) {
    std::string name = capture::NameOfNode(node);
    if (!name.empty()) names.push_back(std::move(name));
  }
  return names;
}

// A node that comes to light now may have run beside any batch so far, and none of them comes after
// it: all that a batch comes after was known then.
void OpLog::FlushPages(ProbeTable& table, const std::vector<void*>& unseen) {
  if (last_batch_ && !unseen.empty()) {
    capture::PutBehind(last_batch_->stream, last_batch_->end, unseen);
  }
  std::exception_ptr failure;  // of one page; the others are flushed all the same
  for (Page& page : pages_) {
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
void OpLog::FlushPage(ProbeTable& table, Page& page, const std::vector<void*>& unseen) {
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

layout::DeviceStats* OpLog::TakeParts(Page& page, std::uint64_t count) {
  counters_.device_bytes += count * sizeof(layout::DeviceStats);
  return page.slot->TakeParts(count, page.device);
}

void OpLog::FinishPage(ProbeTable& table, Page& page) {
  FlushPage(table, page);
  table.op_logs.Name(&page.rows, &seen_);
  try {
    table.op_logs.Capture(*state_, page.rows, page.memory, page.device, page.graph_id, page.stream,
                          page.slot);
  } catch (...) {
    DropPage(table, page);
    throw;
  }
}

void OpLog::EndPages(ProbeTable& table) {
  std::exception_ptr failure;  // of one page; the others are completed all the same
  for (Page& page : pages_) {
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
}

void OpLog::DropPage(ProbeTable& table, Page& page) {
  if (page.slot != nullptr) {
    if (page.launches != 0) capture::HoldWithoutLeaf(page.slot.get(), page.device, page.stream);
    table.slots.Discard(std::move(page.slot));
  }
  page.pending.clear();
}

void OpLog::DropPages(ProbeTable& table) {
  for (Page& page : pages_) DropPage(table, page);
  pages_.clear();
}

}  // namespace cgdebug
