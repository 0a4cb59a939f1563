#include "libprobe/op_log.h"

#include <algorithm>
#include <iterator>
#include <thread>
#include <utility>

#include "libprobe/capture/lane/cuda_lane.h"
#include "libprobe/host_stats.h"
#include "libprobe/probe_table.h"
#include "libprobe/session.h"
#include "libprobe/settings.h"
#include "libprobe/slots/registration.h"

namespace cgdebug {
namespace {

// A replay of a large log takes some hundred KiB, so its ring holds fewer replays than a probe's.
constexpr std::uint32_t kCapacity = 16;

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
                            const std::vector<OpLogDimension>& order, const OpLogTail& tail) {
  capture::OpLogTensor seen;
  seen.data = tensor.data;
  seen.dtype = row.dtype;
  seen.count = ElementCount(row);
  if (!order.empty()) seen.order = OrderOf(row.name, seen.count, order);
  if (tail.start != nullptr) {
    const std::uint64_t elements = tail.rows == 0 ? 0 : seen.count / tail.rows;
    if (elements == 0 || elements > UINT32_MAX || elements * tail.rows != seen.count) {
      throw ProbeError(ErrorKind::kBadArgument, "'" + row.name + "': it does not have " +
                                                    std::to_string(tail.rows) + " rows");
    }
    seen.tail_start = tail.start;
    seen.elements_of_row = static_cast<std::uint32_t>(elements);
  }
  return seen;
}

}  // namespace

OpLog::OpLog(std::uint32_t every) : state_(std::make_shared<ProbeState>()) {
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
                       const std::vector<OpLogDimension>& order, const OpLogTail& tail) {
  ring::OpLogRow row = MakeRow(text, tensor);
  if (tensor.device_type != DeviceType::kCuda) return AddOnHost(std::move(row), tensor);
  const capture::OpLogTensor seen = SeenOf(row, tensor, order, tail);
  return AddOnGpu(std::move(row), seen, tensor.device_index, stream);
}

std::size_t OpLog::AddOnHost(ring::OpLogRow row, const TensorRef& tensor) {
  const layout::DeviceStats stats = ComputeHostStats(tensor.data, row.dtype, ElementCount(row));
  ProbeTable& table = ProbeTable::Instance();
  const ProbeTable::Lock lock = Locked();
  RequireOpen();
  eager_.Add(table, std::move(row), stats, {});
  return graph_.Pending();
}

std::size_t OpLog::AddOnGpu(ring::OpLogRow row, const capture::OpLogTensor& seen, int device,
                            void* stream) {
  const capture::StreamCapture capture = capture::QueryCapture(stream);
  ProbeTable& table = ProbeTable::Instance();
  table.has_gpu_memory.store(true, std::memory_order_relaxed);
  const ProbeTable::Trimmer trimmer(table);
  const ProbeTable::Lock lock = Locked();
  RequireOpen();
  if (capture.capturing) {
    graph_.Add(table, std::move(row), seen, {capture.id, stream, device});
  } else {
    eager_.Add(table, std::move(row), {}, capture::LaunchEagerRow(seen, device, stream));
  }
  return graph_.Pending();
}

ProbeTable::Lock OpLog::Locked() const { return ProbeTable::Instance().Acquire(*state_); }

void OpLog::RequireOpen() const {
  if (state_->closed) throw ProbeError(ErrorKind::kClosed, "the op log is closed");
}

void OpLog::Flush() {
  const ProbeTable::Lock lock = Locked();
  graph_.Flush(ProbeTable::Instance());
}

std::size_t OpLog::Pending() const {
  const ProbeTable::Lock lock = Locked();
  return graph_.Pending();
}

OpLogCounters OpLog::Counters() const {
  const ProbeTable::Lock lock = Locked();
  return graph_.counters();
}

std::size_t OpLog::TakeNodes(void* stream) {
  const ProbeTable::Lock lock = Locked();
  return graph_.TakeNodes(stream);
}

std::vector<std::string> OpLog::TakeUnseen(void* stream) {
  const ProbeTable::Lock lock = Locked();
  return graph_.TakeUnseen(ProbeTable::Instance(), stream);
}

std::vector<std::string> OpLog::TakeRest(void* stream) {
  const ProbeTable::Lock lock = Locked();
  return graph_.TakeRest(stream);
}

void OpLog::AmendNewest(const std::string& op, const std::string& details) {
  const ProbeTable::Lock lock = Locked();
  ring::OpLogRow* const eager = eager_.Newest();
  ring::OpLogRow* const newest = eager != nullptr ? eager : graph_.Newest();
  if (newest == nullptr) return;
  newest->op = op;
  newest->details = details;
}

std::uint64_t OpLog::End() {
  ProbeTable& table = ProbeTable::Instance();
  const ProbeTable::Trimmer trimmer(table);
  const ProbeTable::Lock lock = table.Acquire(*state_);
  if (state_->closed) return 0;
  graph_.End(table);
  const std::uint64_t call = eager_.End(table);
  names_.clear();
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
  graph_.Drop(table);
  eager_.Forget(table);
  table.probes.Remove(*state_);
  table.slots.LetGoOfAll(*state_);
}

std::size_t OpLog::DropAwaited() {
  const ProbeTable::Lock lock = Locked();
  return eager_.DropAwaited(ProbeTable::Instance());
}

bool OpLog::AwaitRows(std::chrono::nanoseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  std::chrono::nanoseconds nap = std::chrono::microseconds(20);
  while (true) {
    std::optional<int> device;
    {
      const ProbeTable::Lock lock = Locked();
      device = eager_.AwaitedDevice();
    }
    if (!device) return true;
    if (std::chrono::steady_clock::now() >= end) return capture::HasFailed(*device);
    std::this_thread::sleep_for(nap);
    nap = std::min<std::chrono::nanoseconds>(2 * nap, std::chrono::milliseconds(1));
  }
}

}  // namespace cgdebug
