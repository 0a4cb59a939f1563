// The public face of one probe: its life, its records and its status.
#include "cgdebug/probe.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "libprobe/capture/graph/step_word.h"
#include "libprobe/capture/lane/cuda_lane.h"
#include "libprobe/probe_table.h"
#include "libprobe/session.h"
#include "libprobe/settings.h"
#include "libprobe/slots/daemon_setting.h"
#include "libprobe/slots/registration.h"
#include "libprobe/slots/slot_queries.h"

namespace cgdebug {
namespace {

using capture::ProbeSlot;

// Keeps a slot from being freed.
struct Unpin {
  void operator()(ProbeSlot* slot) const { slot->life.Unpin(); }
};
using Pin = std::unique_ptr<ProbeSlot, Unpin>;

// A job goes on without the daemon that it asked for; what is not printed or compared says so.
void StartDaemonFor(ProbeTable& table, ProbeState& probe) {
  try {
    StartDaemon();
  } catch (const ProbeError& error) {
    const ProbeTable::Lock lock = table.Acquire();
    (void)probe.Refuse(error);
  }
}

}  // namespace

Probe::Probe(std::string name, ProbeOptions options) : state_(std::make_shared<ProbeState>()) {
  TellMalformedSettings();
  CheckProbe(name, options);
  state_->name = std::move(name);
  state_->options = std::move(options);
  if (!state_->options.part.empty())
    state_->part = ParsePart("probe '" + state_->name + "'", state_->options.part);
  const ProbeOptions& wanted = state_->options;
  const bool needs_daemon =
      wanted.print || wanted.compare || wanted.stats ||
      (wanted.record &&
       (wanted.record->to_disk || wanted.record->trigger != layout::ControlTrigger::kNone));
  bool start_daemon = false;
  ProbeTable& table = ProbeTable::Instance();
  {
    const ProbeTable::Lock lock = table.Acquire(*state_);
    if (wanted.compare && wanted.compare->with == CompareAction::With::kProbe) {
      const std::shared_ptr<ProbeState> other = table.probes.Find(wanted.compare->probe);
      if (other == nullptr) {
        throw ProbeError(ErrorKind::kClosed,
                         "probe '" + state_->name + "': the probe to compare it with is closed");
      }
      other->is_reference = true;
      state_->reference = other;
    }
    table.probes.Add(state_);
    if (needs_daemon && !table.asked_for_daemon && DaemonSetting() == "1") {
      start_daemon = table.asked_for_daemon = true;
    }
  }
  if (start_daemon) StartDaemonFor(table, *state_);
}

Probe::~Probe() { Close(); }

void Probe::Close() {
  ProbeTable& table = ProbeTable::Instance();
  const ProbeTable::Trimmer trimmer(table);
  const ProbeTable::Lock lock = table.Acquire(*state_);
  if (std::exchange(state_->closed, true)) return;
  table.probes.Remove(*state_);
  table.slots.LetGoOfAll(*state_);
  table.not_seen.Forget(state_->name);
}

const std::string& Probe::name() const { return state_->name; }
std::uint64_t Probe::id() const { return state_->id; }
const std::string& Probe::site() const { return state_->site; }
const ProbeOptions& Probe::options() const { return state_->options; }

void Probe::Observe(const TensorRef& tensor, void* stream) {
  cgdebug::Observe(*state_, tensor, stream);
}
void Probe::FollowCalls(bool sees_modules) {
  const ProbeTable::Lock lock = ProbeTable::Instance().Acquire(*state_);
  state_->follows_calls = true;
  state_->sees_modules = sees_modules;
}
void Probe::Prepare(const TensorRef& tensor) { cgdebug::Prepare(*state_, tensor); }

std::vector<Record> Probe::Records(int last) const {
  std::vector<std::pair<Pin, std::uint64_t>> slots;  // and where each was cleared
  {
    const ProbeTable::Lock lock = ProbeTable::Instance().Acquire(*state_);
    if (state_->closed) {
      throw ProbeError(ErrorKind::kClosed, "probe '" + state_->name + "' is closed");
    }
    slots.reserve(state_->slots.size());
    for (ProbeSlot* slot : state_->slots) {
      slot->life.Pin();
      slots.emplace_back(Pin(slot), slot->cleared_ordinal);
    }
  }
  const std::size_t limit =
      last < 0 ? std::numeric_limits<std::size_t>::max() : static_cast<std::size_t>(last);
  std::vector<Record> records;  // by slot, so that earlier calls of a replay come first
  for (const auto& [slot, cleared] : slots) AppendRecords(*slot, cleared, limit, &records);
  std::stable_sort(records.begin(), records.end(),
                   [](const Record& a, const Record& b) { return a.serial < b.serial; });
  if (records.size() > limit) records.erase(records.begin(), records.end() - last);
  return records;
}

void Probe::ClearRecords() {
  const ProbeTable::Lock lock = ProbeTable::Instance().Acquire(*state_);
  for (ProbeSlot* slot : state_->slots) slot->cleared_ordinal = slot->reader->accepted();
}

void Probe::ClearRecords(std::uint32_t index, std::uint64_t ordinal) {
  const ProbeTable::Lock lock = ProbeTable::Instance().Acquire(*state_);
  for (ProbeSlot* slot : state_->slots) {
    if (slot->index != index) continue;
    slot->cleared_ordinal =
        std::max(slot->cleared_ordinal, std::min(ordinal, slot->reader->accepted()));
  }
}

bool Probe::WaitConsumed(std::chrono::nanoseconds timeout) const {
  return cgdebug::WaitConsumed(state_.get(), timeout);
}

ProbeStatus Probe::Status() const {
  ProbeTable& table = ProbeTable::Instance();
  const ProbeTable::Lock lock = table.Acquire(*state_);
  table.slots.Sweep(/*force=*/false, /*all=*/true);
  ProbeStatus status;
  status.closed = state_->closed;
  status.last_error = state_->last_error;
  status.lane_note = state_->lane_note;
  status.trigger_note = state_->trigger_note;
  status.daemon_alive = table.segment.DaemonAlive();
  for (const ProbeSlot* slot : state_->slots) status.slots.push_back(StatusOf(*slot));
  status.slots.insert(status.slots.end(), state_->evicted.begin(), state_->evicted.end());
  return status;
}

// --- for bindings ------------------------------------------------------------------------------

std::shared_ptr<ProbeState> FindProbe(std::string_view site) {
  ProbeTable& table = ProbeTable::Instance();
  const ProbeTable::Lock lock = table.Acquire();
  return table.probes.FindSite(site);
}
const ProbeOptions& OptionsOf(const ProbeState& probe) { return probe.options; }
const std::string& NameOf(const ProbeState& probe) { return probe.name; }
bool IsCapturing(void* stream) { return capture::QueryCapture(stream).capturing; }

// --- of the process ----------------------------------------------------------------------------

void SetStep(std::int64_t step) {
  ProbeTable& table = ProbeTable::Instance();
  table.step.Set(step);
  table.calls.SetStep(step);
}
void SetStepInStreamOrder(std::int64_t step, void* stream) {
  capture::SetStepInStreamOrder(step, stream);
}
std::uint64_t BeginCall() {
  ProbeTable& table = ProbeTable::Instance();
  return table.calls.Begin(table.step.get()).number;
}
void EndCall() { ProbeTable::Instance().calls.End(); }
void LeaveCalls() { ProbeTable::Instance().calls.Leave(); }
void SetCallsFollowed(bool are_followed) { ProbeTable::Instance().calls.SetFollowed(are_followed); }
GraphLabel SetGraphLabel(GraphLabel label) {
  CheckGraphLabel(label.text);
  ProbeTable& table = ProbeTable::Instance();
  const ProbeTable::Lock lock = table.Acquire();
  return table.graphs.SetLabel(std::move(label));
}
void SetFallbackAllocator(const DeviceAllocator& allocator) {
  capture::SetFallbackAllocator(allocator);
}
std::string Version() { return CGDEBUG_VERSION; }

}  // namespace cgdebug
