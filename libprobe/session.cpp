// The public face of the process's session: waiting for the daemon, and the end.
#include "libprobe/session.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <thread>

#include "libprobe/capture/lane/cuda_lane.h"
#include "libprobe/capture/memory/device_ring.h"
#include "libprobe/probe_table.h"
#include "libprobe/ring/segment/shared_mark.h"
#include "libprobe/ring/shared_copy.h"
#include "libprobe/slots/daemon_setting.h"
#include "libprobe/slots/slot_queries.h"
#include "proto/layout/not_seen.h"

namespace cgdebug {
namespace {

using Clock = std::chrono::steady_clock;

// If no daemon came in this time, none will: it was started before the first replay.
constexpr auto kDaemonGrace = std::chrono::seconds(3);
constexpr auto kPoll = std::chrono::microseconds(200);

// A daemon that runs writes down in microseconds what it found.
constexpr auto kTornAfter = std::chrono::milliseconds(50);

// How long the end of the process waits until a device is idle.
constexpr auto kDevicePatience = std::chrono::seconds(2);
// How long it waits, while rings are frozen, until the daemon asks for the next value. Before the
// first one the daemon waits 2 s for the rings of other devices, which nothing replays any more.
constexpr auto kNextValue = std::chrono::seconds(4);
// How long it waits until all values are sent.
constexpr auto kAllValues = std::chrono::seconds(60);

// Whether the rings of a device stand still and the daemon has not dealt with it.
bool IsFrozen(const ring::SegmentWriter& segment) {
  const std::byte* control = segment.mapping(0).data;
  const auto* freezes =
      reinterpret_cast<const layout::FreezeLine*>(control + layout::kFreezeLineOffset);
  const auto* thaws = reinterpret_cast<const layout::ThawLine*>(control + layout::kThawLineOffset);
  for (std::uint32_t device = 0; device < layout::kMaxFreezeDevices; ++device) {
    const std::uint64_t serial = ring::LoadAcquire(freezes[device].serial);
    if (serial != ring::LoadAcquire(thaws[device].serial)) return true;
  }
  return false;
}

// Sends the values that the daemon asks for: no replay does it any more.
bool ServeWindows(ProbeTable& table) {
  bool any = false;
  for (capture::ProbeSlot* slot : OnDevice(table.slots.slots())) any |= capture::ServeWindow(slot);
  return any;
}

// Values on the device go with the process, so what was asked for is sent before.
void SendLastValues(ProbeTable& table) {
  std::set<int> devices;
  {
    const ProbeTable::Lock lock = table.Acquire();
    if (!table.segment.DaemonAlive()) return;
    for (const capture::ProbeSlot* slot : OnDevice(table.slots.slots())) {
      devices.insert(slot->buffers.device);
    }
  }
  for (const int device : devices) {
    if (!capture::AwaitIdle(device, kDevicePatience)) return;
  }
  const auto start = Clock::now();
  auto last_sent = start;
  while (!devices.empty()) {
    {
      const ProbeTable::Lock lock = table.Acquire();
      const auto now = Clock::now();
      const bool frozen = IsFrozen(*table.segment.writer());
      if (ServeWindows(table)) {
        last_sent = now;
      } else if (!frozen || now - last_sent >= kNextValue || !table.segment.DaemonAlive()) {
        return;
      }
      if (now - start >= kAllValues) return;
    }
    std::this_thread::sleep_for(kPoll);
  }
}

}  // namespace

bool DaemonAlive() {
  ProbeTable& table = ProbeTable::Instance();
  const ProbeTable::Lock lock = table.Acquire();
  return table.segment.DaemonAlive();
}

namespace {

bool AwaitsMismatch(const capture::ProbeSlot& slot, int device) {
  constexpr auto kMismatch = layout::ControlTrigger::kMismatch;
  const layout::SlotRegistration& r = slot.registration;
  return slot.reader && capture::IsOnDevice(slot) && r.device_index == device &&
         (r.trigger == static_cast<std::uint8_t>(kMismatch) ||
          slot.reader->control().trigger == kMismatch);
}

// The daemon asked the rings of the device to stop: if a comparison was waited for and one has
// failed, because of that. Thread: with the probe table's lock.
std::optional<HeldTrigger> ComparisonThatFailed(const ProbeTable& table, int device,
                                                std::uint64_t serial) {
  // By device. Each replay asks, and slots are many; each fails once.
  struct Known {
    std::optional<HeldTrigger> held;
    std::set<std::uint64_t> told;  // orders of slots
  };
  static std::array<Known, layout::kMaxFreezeDevices> of_device;
  auto& [held, told] = of_device[static_cast<std::size_t>(device)];
  if (held && held->serial == serial) return held;
  const auto& slots = table.slots.slots();
  const auto awaits = [&](const auto& slot) { return AwaitsMismatch(*slot, device); };
  if (std::ranges::none_of(slots, awaits)) return {};
  for (const auto& slot : slots) {
    if (!slot->reader || told.contains(slot->registration.order)) continue;
    const layout::Verdict verdict = StatusOf(*slot).verdict;
    if (verdict.state != layout::VerdictState::kFail) continue;
    told.insert(slot->registration.order);
    held = HeldTrigger{.serial = serial,
                       .replay = verdict.first_failed_replay,
                       .graph_id = slot->registration.graph_id,
                       .probe = slot->registration.name,
                       .is_comparison = true};
    return held;
  }
  return {};
}

}  // namespace

std::optional<HeldTrigger> TriggerThatHeld(int device) noexcept {
  if (device < 0 || static_cast<std::uint32_t>(device) >= layout::kMaxFreezeDevices) return {};
  try {
    ProbeTable& table = ProbeTable::Instance();
    const ProbeTable::Lock lock = table.Acquire();
    const ring::SegmentWriter* const segment = table.segment.writer();
    if (segment == nullptr) return {};
    const auto& line = reinterpret_cast<const layout::FreezeLine*>(
        segment->mapping(0).data + layout::kFreezeLineOffset)[device];
    HeldTrigger held;
    held.serial = ring::LoadAcquire(line.serial);  // T2, pairs with T1
    constexpr auto kAsked = static_cast<std::uint64_t>(layout::ControlTrigger::kNone);
    if (held.serial == 0) return {};
    if (ring::LoadRelaxed(line.trigger) == kAsked) {
      return ComparisonThatFailed(table, device, held.serial);
    }
    held.replay = ring::LoadRelaxed(line.replay);
    const std::uint64_t order = ring::LoadRelaxed(line.order);
    for (const auto& slot : table.slots.slots()) {
      if (slot->registration.order != order) continue;
      held.graph_id = slot->registration.graph_id;
      held.probe = slot->registration.name;
    }
    return held;
  } catch (const std::exception&) {
    return {};
  }
}

void AwaitDaemon(std::chrono::nanoseconds timeout) {
  ProbeTable& table = ProbeTable::Instance();
  const auto deadline = Clock::now() + timeout;
  while (Clock::now() < deadline) {
    {
      const ProbeTable::Lock lock = table.Acquire();
      try {
        if (table.segment.Get().gate()->ReaderAlive()) return;
      } catch (const ring::SharedMemoryError& error) {
        throw ProbeError(error.no_space() ? ErrorKind::kNoSpace : ErrorKind::kSystem, error.what());
      }
    }
    std::this_thread::sleep_for(kPoll);
  }
}

namespace {

// Waits until `is_done` of the slots, at most for `timeout`, and not when no daemon comes.
template <typename IsDone>
bool WaitForDaemon(std::chrono::nanoseconds timeout, IsDone is_done) {
  ProbeTable& table = ProbeTable::Instance();
  const auto start = Clock::now();
  auto last_alive = start;
  while (true) {
    {
      const ProbeTable::Lock lock = table.Acquire();
      if (is_done(table.slots)) return true;
      const auto now = Clock::now();
      if (table.segment.DaemonAlive()) last_alive = now;
      if (now - start >= timeout || now - last_alive >= kDaemonGrace) return false;
      if (DaemonForbidden() && last_alive != now) return false;
    }
    std::this_thread::sleep_for(kPoll);
  }
}

}  // namespace

bool WaitConsumed(const ProbeState* probe, std::chrono::nanoseconds timeout) {
  return WaitForDaemon(timeout,
                       [&](const SlotStore& slots) { return AllDrained(slots.slots(), probe); });
}

ReadState AwaitRead(std::chrono::nanoseconds timeout) {
  const bool all =
      WaitForDaemon(timeout, [](const SlotStore& slots) { return AllRead(slots.slots()); });
  ProbeTable& table = ProbeTable::Instance();
  const ProbeTable::Lock lock = table.Acquire();
  ReadState state = table.slots.Gaps();
  state.all = all;
  return state;
}

std::optional<FirstFinding> FindFirst(layout::FindingKind kind) {
  ProbeTable& table = ProbeTable::Instance();
  const ProbeTable::Lock lock = table.Acquire();
  const ring::SegmentWriter* segment = table.segment.writer();
  if (segment == nullptr) return std::nullopt;
  const auto& shared = reinterpret_cast<const layout::FindingText*>(
      segment->mapping(0).data + layout::kFindingTextOffset)[static_cast<std::size_t>(kind)];
  const auto deadline = Clock::now() + kTornAfter;
  while (true) {
    const std::uint64_t version = ring::LoadAcquire(shared.version);
    if (version == 0) return std::nullopt;
    std::string text(std::min<std::size_t>(ring::LoadRelaxed(shared.bytes), sizeof(shared.text)),
                     '\0');
    ring::CopyShared(text.data(), shared.text, text.size());
    FirstFinding found = {.text = std::move(text),
                          .is_of_row = ring::LoadRelaxed(shared.is_of_row) != 0,
                          .order = ring::LoadRelaxed(shared.order),
                          .serial = ring::LoadRelaxed(shared.serial)};
    std::atomic_thread_fence(std::memory_order_acquire);
    if (version % 2 == 0 && ring::LoadRelaxed(shared.version) == version) {
      return found;
    }
    // A daemon that was killed or stopped in between leaves it half written.
    if (!table.segment.DaemonAlive() || Clock::now() >= deadline) {
      return FirstFinding{
          "something was found, but the daemon that found it was stopped before it could say "
          "what. Type: cgdebug-cli status"};
    }
    std::this_thread::sleep_for(kPoll);
  }
}

std::optional<SessionInfo> CurrentSession() {
  ProbeTable& table = ProbeTable::Instance();
  const ProbeTable::Lock lock = table.Acquire();
  const ring::SegmentWriter* segment = table.segment.writer();
  if (segment == nullptr) return std::nullopt;
  SessionInfo info;
  info.name = segment->name();
  info.shm_bytes = segment->shm_bytes();
  info.released_unread = ring::LoadRelaxed(segment->producer()->released_unread);
  info.slots = table.slots.held().published();
  info.device_bytes = capture::DeviceBytes();
  return info;
}

std::string Finish(std::chrono::nanoseconds timeout) {
  ProbeTable& table = ProbeTable::Instance();
  {
    const ProbeTable::Lock lock = table.Acquire();
    if (table.segment.writer() == nullptr) {
      // Nobody else can say it: without a segment no daemon knows this process.
      const std::string text = NotSeenText();
      return text.empty() ? text : "cgdebug: " + text;
    }
    if (!table.slots.Finish()) return {};
  }
  try {
    SendLastValues(table);
  } catch (const ProbeError&) {  // the daemon says which values did not come
  }
  const bool drained = WaitConsumed(nullptr, timeout);
  const ProbeTable::Lock lock = table.Acquire();
  ring::SegmentWriter* segment = table.segment.writer();
  const bool daemon = table.segment.DaemonAlive();
  // A daemon that runs may not have found this segment yet. If none runs, one may still come for
  // snapshots to print or compare, but not for the rest.
  const bool may_be_read =
      daemon || (!DaemonForbidden() && (!drained || ring::IsMarked(ring::MarkKind::kReader)));
  segment->Close(/*unlink=*/!may_be_read);
  const std::string key = segment->name().substr(segment->name().rfind('-') + 1, 8);
  if (!drained && !DaemonForbidden()) {
    return "cgdebug: the daemon has not printed or compared everything this job wrote. It stays in "
           "shared memory; type: cgdebug-cli tail -s " +
           key;
  }
  const layout::ConsumerLine& consumer = *segment->consumer();
  const std::uint64_t printed = ring::LoadRelaxed(consumer.printed_lines);
  const std::uint64_t shown = std::min(printed, ring::LoadRelaxed(consumer.terminal_lines));
  if (shown == printed) return {};
  return "cgdebug: " + std::to_string(printed) + (printed == 1 ? " line" : " lines") +
         " of TensorPrint, " + std::to_string(shown) +
         " of them in this terminal. To see them, type: cgdebug-cli tail -n 1000 -s " + key;
}

}  // namespace cgdebug
