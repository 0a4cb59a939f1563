#include "daemon/record/freeze/frozen_rings.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

#include "daemon/core/base/realtime.h"
#include "daemon/log/log.h"
#include "daemon/record/freeze/freeze.h"
#include "daemon/record/job_process.h"

namespace cgdebug::pipeline {
namespace {

constexpr std::size_t kMostNameBytes = 128;
constexpr std::size_t kMostNames = 4;

// How long the rings of other devices may take to stop: some replays. Those that stand still
// meanwhile lose nothing.
constexpr auto kOthersPatience = std::chrono::seconds(2);

// How long to wait for the other probes of the replay that triggered.
constexpr auto kRestPatience = std::chrono::seconds(2);
constexpr auto kLook = std::chrono::milliseconds(10);

layout::ControlTrigger RegisteredTrigger(const SlotRecord& slot) {
  return static_cast<layout::ControlTrigger>(slot.slot->registration.trigger);
}

std::uint32_t DeviceOf(const SlotRecord& slot) {
  return static_cast<std::uint32_t>(slot.slot->registration.device_index);
}

std::string_view WhatHeld(layout::ControlTrigger trigger) {
  switch (trigger) {
    case layout::ControlTrigger::kNonfinite:
      return "NaN or Inf";
    case layout::ControlTrigger::kInf:
      return "Inf";
    case layout::ControlTrigger::kAbsMax:
      return "a value above its limit";
    case layout::ControlTrigger::kChanged:
      return "other values than before";
    case layout::ControlTrigger::kMismatch:
    case layout::ControlTrigger::kNone:
      break;
  }
  return "what its trigger waits for";
}

std::string ProbeText(const SlotIdentity& slot) {
  return slot.probe.empty() ? "a probe that is not known" : "probe '" + slot.probe + "'";
}

// A probe's name as part of a file's name, which has at most 255 bytes.
std::string SafeName(std::string name) {
  std::size_t bytes = std::min(name.size(), kMostNameBytes);
  const auto is_inside_character = [&] {
    return bytes != 0 && bytes < name.size() &&
           (static_cast<unsigned char>(name[bytes]) & 0xc0) == 0x80;
  };
  while (is_inside_character()) --bytes;
  name.resize(bytes);
  std::ranges::replace_if(
      name, [](char c) { return c == '/' || c == ' '; }, '-');
  return name;
}

// "'a', 'b' and others".
std::string FirstNames(const std::set<std::string>& names) {
  std::string text;
  std::size_t count = 0;
  for (const std::string& name : names) {
    if (++count > kMostNames) return text + " and others";
    text += (count == 1 ? "'" : ", '") + name + "'";
  }
  return text;
}

// A directory that is not there yet. An earlier daemon that was stopped before it let the rings go
// on may have left a recording of the same freeze, which lacks values.
std::string NewRecording(const RingFreeze& freeze) {
  const SessionIdentity& session = *freeze.slot->session;
  const std::string probe = freeze.slot->probe.empty() ? "unknown" : SafeName(freeze.slot->probe);
  const std::string name = fmt::format("{}-replay{}-{}", probe, freeze.replay, session.key);
  std::string path = RecordingPath(session, name + ".cgrec");
  std::error_code ignored;
  for (int i = 2; std::filesystem::exists(path, ignored); ++i) {
    path = RecordingPath(session, fmt::format("{}-{}.cgrec", name, i));
  }
  return path;
}

// What a recording of rings lacks, and why; empty if it has all.
std::string LackingText(const FrozenInfo& written) {
  std::string lost;
  const std::uint64_t explained = written.left_out + written.stood_still;
  if (written.lost > explained) {
    lost = fmt::format(" ({} more could not be had)", written.lost - explained);
  }
  if (written.left_out != 0) {
    lost += fmt::format(
        ". {} older one{} left out: {}. More room: --max-disk and --min-free-disk of the daemon, "
        "or CGDEBUG_MAX_DISK and CGDEBUG_MIN_FREE_DISK where it starts",
        written.left_out, written.left_out == 1 ? " was" : "s were", written.why);
  }
  if (written.stood_still != 0) {
    lost += fmt::format(
        ". {} snapshot{} of {} not written, because the rings stood still for part of a replay, "
        "or the probe was turned off. Type: cgdebug-cli info {}",
        written.stood_still, written.stood_still == 1 ? "" : "s",
        FirstNames(written.partial) + (written.stood_still == 1 ? " was" : " were"),
        written.directory);
  }
  return lost;
}

}  // namespace

FrozenRings::FrozenRings(const Daemon& daemon, const recording::WriterOptions& options, Tell tell)
    : daemon_(daemon), options_(options), tell_(std::move(tell)), thread_([this] { Run(); }) {}

FrozenRings::~FrozenRings() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void FrozenRings::Froze(const RingFreeze& freeze) {
  {
    const std::scoped_lock lock(mutex_);
    waiting_.push_back({freeze});
  }
  wake_.notify_all();
}

// One that an earlier daemon found is over.
void FrozenRings::Found(const Finding& finding) {
  if (finding.kind != layout::FindingKind::kMismatch || finding.timestamp_ns == 0) return;
  {
    const std::scoped_lock lock(mutex_);
    waiting_.push_back({{.slot = finding.slot, .replay = finding.replay}, /*is_comparison=*/true});
  }
  wake_.notify_all();
}

void FrozenRings::Run() {
  pthread_setname_np(pthread_self(), "cgdebug-frozen");
  while (true) {
    Cause cause;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (stopping_) return;
      cause = std::move(waiting_.front());
      waiting_.pop_front();
    }
    Deal(cause);
  }
}

void FrozenRings::Deal(const Cause& cause) {
  std::erase_if(comparisons_, [](const auto& one) { return one.first.expired(); });
  std::erase_if(ended_, [](const auto& slot) { return slot.expired(); });
  const SessionPtr job = cause.freeze.slot->session;
  std::vector<SlotRecord> slots = daemon_.registry->Slots(job);
  std::erase_if(slots, [](const SlotRecord& slot) { return !slot.slot->IsOnDevice(); });
  if (!IsWanted(cause, slots)) {
    if (!cause.is_comparison) GoOn({cause.freeze});
    return;
  }
  const Stopped stopped = StopAll(cause, slots);
  AwaitRest(stopped.freezes, &slots);
  const std::string text = Write(cause, stopped, slots);
  // Before the rings go on: a trigger that a client set is over when it has held.
  for (const SlotRecord& slot : slots) {
    if (slot.control.trigger != layout::ControlTrigger::kNone) {
      ended_.insert(slot.slot);
      daemon_.controls->Push({{.slot = slot.slot, .control = {}}});
    }
  }
  GoOn(stopped.freezes);
  Log("sinks")->info("{}", text);
  daemon_.events->Add(job, Frozen{cause.freeze.slot, cause.freeze.replay, text});
  tell_(job, text);
}

bool FrozenRings::IsWanted(const Cause& cause, const std::vector<SlotRecord>& slots) {
  if (cause.is_comparison) {
    std::uint64_t times = 0;
    for (const SlotRecord& slot : slots) {
      if (slot.control.trigger == layout::ControlTrigger::kMismatch) return true;
      if (RegisteredTrigger(slot) != layout::ControlTrigger::kMismatch) continue;
      times = std::max<std::uint64_t>(times, slot.slot->registration.trigger_times);
    }
    std::uint64_t& recorded = comparisons_[cause.freeze.slot->session];
    return recorded < times && ++recorded != 0;
  }
  // A device that stopped after StopAll() gave up waiting for it.
  if (cause.freeze.trigger == layout::ControlTrigger::kNone) return false;
  // The GPU may see the end of a client's trigger one replay after its rings go on, and stop them
  // once more. A trigger that ended by itself, after a count or a time, may have held before.
  const auto own = std::ranges::find_if(
      slots, [&](const SlotRecord& slot) { return slot.slot == cause.freeze.slot; });
  return !cause.freeze.live || own == slots.end() ||
         own->control.trigger != layout::ControlTrigger::kNone || !ended_.contains(own->slot);
}

FrozenRings::Stopped FrozenRings::StopAll(const Cause& cause,
                                          const std::vector<SlotRecord>& slots) {
  const SessionPtr& job = cause.freeze.slot->session;
  Stopped stopped;
  Freezes& freezes = stopped.freezes;
  std::set<std::uint32_t>& running = stopped.running;
  for (const SlotRecord& slot : slots) {
    if (!slot.retired && DeviceOf(slot) < layout::kMaxFreezeDevices) running.insert(DeviceOf(slot));
  }
  if (!cause.is_comparison) {
    freezes.push_back(cause.freeze);
    running.erase(cause.freeze.device);
  }
  const auto number = static_cast<std::uint64_t>(RealtimeNs());
  for (const std::uint32_t device : running) {
    daemon_.controls->Switch({.session = job, .device = device, .stop = number});
  }
  daemon_.reads->Wake();
  const auto all_stopped = [&] {
    std::erase_if(waiting_, [&](const Cause& other) {
      if (other.is_comparison || other.freeze.slot->session != job) return false;
      running.erase(other.freeze.device);
      freezes.push_back(other.freeze);  // also of a device that was not asked: it must go on
      return true;
    });
    return stopping_ || running.empty();
  };
  {
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, kOthersPatience, all_stopped);
  }
  // Cancels the stop request for devices that did not stop. If one stops now anyway, it resumes
  // when its freeze is found.
  for (const std::uint32_t device : running) {
    daemon_.controls->Switch({.session = job, .device = device});
  }
  return stopped;
}

// The replay that stopped the rings of a device goes on, and keeps what its other probes see.
void FrozenRings::AwaitRest(const Freezes& freezes, std::vector<SlotRecord>* slots) {
  const auto deadline = std::chrono::steady_clock::now() + kRestPatience;
  const auto is_behind = [&](const SlotRecord& slot) {
    return std::ranges::any_of(freezes, [&](const RingFreeze& freeze) {
      const layout::SlotFacts& r = slot.slot->registration;
      return !slot.retired && !slot.slot->IsInBody() && r.graph_id != 0 &&
             r.graph_id == freeze.slot->registration.graph_id && DeviceOf(slot) == freeze.device &&
             slot.counters.replays < freeze.replay && WantsReplay(slot, freeze.replay);
    });
  };
  Refresh(slots);
  while (std::ranges::any_of(*slots, is_behind) && std::chrono::steady_clock::now() < deadline) {
    daemon_.reads->Wake();
    {
      std::unique_lock lock(mutex_);
      if (wake_.wait_for(lock, kLook, [this] { return stopping_; })) return;
    }
    Refresh(slots);
  }
}

void FrozenRings::Refresh(std::vector<SlotRecord>* slots) const {
  if (slots->empty()) return;
  std::map<SlotPtr, SlotRecord> now;
  for (SlotRecord& slot : daemon_.registry->Slots(slots->front().slot->session)) {
    now.emplace(slot.slot, std::move(slot));
  }
  for (SlotRecord& slot : *slots) {
    const auto found = now.find(slot.slot);
    if (found != now.end()) {
      slot = std::move(found->second);
    } else {
      slot.retired = true;
    }
  }
}

void FrozenRings::GoOn(const Freezes& freezes) {
  for (const RingFreeze& freeze : freezes) {
    daemon_.controls->Switch(
        {.session = freeze.slot->session, .device = freeze.device, .thawed = freeze.serial});
  }
  daemon_.reads->Wake();
}

// Why the rings stopped, and which others did.
std::string FrozenRings::WhyText(const Cause& cause, const Stopped& stopped) {
  const auto& [freezes, running] = stopped;
  const RingFreeze& first = cause.freeze;
  std::string what = cause.is_comparison
                         ? fmt::format("{} failed its comparison in replay {}",
                                       ProbeText(*first.slot), first.replay)
                         : fmt::format("{} held {} in replay {}", ProbeText(*first.slot),
                                       WhatHeld(first.trigger), first.replay);
  for (const RingFreeze& other : freezes) {
    if (!cause.is_comparison && other.device == first.device) continue;
    const bool held = other.trigger != layout::ControlTrigger::kNone;
    what += fmt::format(", the rings of cuda:{} stopped at replay {} of {}{}", other.device,
                        other.replay, ProbeText(*other.slot),
                        held ? fmt::format(", which held {}", WhatHeld(other.trigger)) : "");
  }
  for (const std::uint32_t device : running) {
    if (freezes.empty()) break;  // then the end of the text says so
    what +=
        fmt::format(", the rings of cuda:{} did not stop in time and may have newer ones", device);
  }
  return what;
}

// Returns what to say about it.
std::string FrozenRings::Write(const Cause& cause, const Stopped& stopped,
                               std::vector<SlotRecord> slots) {
  const auto& [freezes, running] = stopped;
  FreezeRequest request;
  request.device_rings = true;
  request.running = running;
  request.directory = NewRecording(cause.freeze);
  std::set<std::string> probes;
  for (const SlotRecord& slot : slots) probes.insert(slot.slot->probe);
  request.slots = std::move(slots);
  request.sessions = daemon_.registry->Sessions();
  std::erase_if(request.sessions, [&](const SessionRecord& one) {
    return one.session != cause.freeze.slot->session;
  });
  const std::string what = WhyText(cause, stopped);
  const auto written = Freeze(request, options_, *daemon_.store, daemon_.reads);
  if (!written.ok()) {
    return fmt::format("{}, but not all that the device kept could be recorded: {}", what,
                       written.error().message);
  }
  const bool is_one = written->snapshots == 1;
  const bool is_plain = !cause.is_comparison && freezes.size() == 1 && running.empty();
  return fmt::format("{}: {} snapshot{} of {} probe{}, up to {}, {} in {}{}", what,
                     written->snapshots, is_one ? "" : "s", probes.size(),
                     probes.size() == 1 ? "" : "s",
                     is_plain          ? "that replay"
                     : freezes.empty() ? "now: no ring stopped in time"
                                       : "there",
                     is_one ? "is" : "are", written->directory, LackingText(*written));
}

}  // namespace cgdebug::pipeline
