#include "daemon/record/frozen_rings.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "daemon/log.h"
#include "daemon/record/freeze.h"
#include "daemon/record/job_process.h"

namespace cgdebug::pipeline {
namespace {

constexpr std::size_t kMostNameBytes = 128;

std::string_view WhatHeld(layout::ControlTrigger trigger) {
  switch (trigger) {
    case layout::ControlTrigger::kNonfinite:
      return "NaN or Inf";
    case layout::ControlTrigger::kInf:
      return "Inf";
    case layout::ControlTrigger::kAbsMax:
      return "a value above its limit";
    case layout::ControlTrigger::kNone:
      break;
  }
  return "what its trigger waits for";
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

// A directory that is not there yet. An earlier daemon that was stopped before it let the rings go
// on may have left a recording of the same freeze, which lacks values.
std::string NewRecording(const RingFreeze& freeze) {
  const SessionIdentity& session = *freeze.slot->session;
  const std::string name =
      fmt::format("{}-replay{}-{}", SafeName(freeze.slot->probe), freeze.replay, session.key);
  std::string path = RecordingPath(session, name + ".cgrec");
  std::error_code ignored;
  for (int i = 2; std::filesystem::exists(path, ignored); ++i) {
    path = RecordingPath(session, fmt::format("{}-{}.cgrec", name, i));
  }
  return path;
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
    waiting_.push_back(freeze);
  }
  wake_.notify_all();
}

void FrozenRings::Run() {
  pthread_setname_np(pthread_self(), "cgdebug-frozen");
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    const RingFreeze freeze = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    const std::string text = Write(freeze);
    daemon_.controls->Thaw({freeze.slot->session, freeze.serial});
    daemon_.reads->Wake();
    Log("sinks")->info("{}", text);
    daemon_.events->Add(freeze.slot->session, Frozen{freeze.slot, freeze.replay, text});
    tell_(freeze.slot->session, text);
    lock.lock();
  }
}

// Returns what to say about it.
std::string FrozenRings::Write(const RingFreeze& freeze) {
  FreezeRequest request;
  request.device_rings = true;
  request.directory = NewRecording(freeze);
  std::set<std::string> probes;
  for (SlotRecord& slot : daemon_.registry->Slots(freeze.slot->session)) {
    if (!slot.slot->IsOnDevice()) continue;
    probes.insert(slot.slot->probe);
    request.slots.push_back(std::move(slot));
  }
  const std::string what = fmt::format("probe '{}' held {} in replay {}", freeze.slot->probe,
                                       WhatHeld(freeze.trigger), freeze.replay);
  const auto written = Freeze(request, options_, *daemon_.store, daemon_.reads);
  if (!written.ok()) {
    return fmt::format("{}, but what the device kept could not be recorded: {}", what,
                       written.error().message);
  }
  const std::string lost =
      written->lost == 0 ? "" : fmt::format(" ({} more could not be had)", written->lost);
  const bool is_one = written->snapshots == 1;
  return fmt::format("{}: {} snapshot{} of {} probe{}, up to that replay, {} in {}{}", what,
                     written->snapshots, is_one ? "" : "s", probes.size(),
                     probes.size() == 1 ? "" : "s", is_one ? "is" : "are", written->directory,
                     lost);
}

}  // namespace cgdebug::pipeline
