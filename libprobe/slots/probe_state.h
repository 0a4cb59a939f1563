// probe_state.h: what a process knows of one probe.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cgdebug/probe.h"
#include "libprobe/capture/graph/probe_slot.h"
#include "libprobe/slots/tensor_part.h"

namespace cgdebug {

// The eager calls for which there was no room, by what they wanted to show. None is tried again for
// a while, which doubles with each time: what a call cannot get must not cost it anything.
class Refusals {
 public:
  using Clock = std::chrono::steady_clock;

  // Whether a call with this key is not even tried now. `releases`: how often memory came back by a
  // probe that was closed or a graph that is gone, after which each is tried again.
  bool Holds(std::size_t key, Clock::time_point now, std::uint64_t releases) const {
    const auto found = list_.find(key);
    return found != list_.end() && now < found->second.until && releases == found->second.releases;
  }
  void Add(std::size_t key, Clock::time_point now, std::uint64_t releases) {
    if (list_.size() >= kMost && !list_.contains(key)) list_.clear();
    One& one = list_[key];
    one.pause = std::clamp<Clock::duration>(2 * one.pause, kFirst, kLongest);
    one.until = now + one.pause;
    one.releases = releases;
  }
  void Forget(std::size_t key) { list_.erase(key); }
  void Clear() { list_.clear(); }

 private:
  static constexpr std::size_t kMost = 1024;
  static constexpr Clock::duration kFirst = std::chrono::seconds(1);
  static constexpr Clock::duration kLongest = std::chrono::seconds(60);
  struct One {
    Clock::duration pause{0};
    Clock::time_point until;
    std::uint64_t releases = 0;
  };
  std::unordered_map<std::size_t, One> list_;
};

// The lock of the ProbeTable guards everything but name, options, part, id and site, which never
// change once the probe is registered.
struct ProbeState {
  std::string name;
  ProbeOptions options;
  std::optional<TensorPart> part;  // options.part
  std::uint64_t id = 0;
  std::string site;  // Probe::site()
  bool closed = false;
  std::weak_ptr<ProbeState> reference;  // the probe that this one is compared with
  bool is_reference = false;            // for others
  // What it sees belongs to the call that began last on its thread, and not only while the model
  // runs.
  bool follows_calls = false;
  bool sees_modules = false;  // that are called, and no backward pass
  bool counts_own = false;  // it was called where no call is known, and outside of calls goes on so
  std::string last_error;
  std::string lane_note;
  std::string trigger_note;     // why a trigger of its captures does nothing
  const void* owner = nullptr;  // the table it belongs to; a forked child has its own
  std::vector<capture::ProbeSlot*> slots;
  capture::ProbeSlot* newest_eager = nullptr;  // of the eager ones, the one that was used last
  std::uint64_t eager_uses = 0;                // of all of them
  Refusals refusals;
  std::unordered_map<std::uint64_t, std::uint32_t> invocations;  // capture id -> calls so far
  // In shared memory, by index and whether the part of it was taken.
  std::map<std::pair<std::size_t, bool>, std::shared_ptr<ring::Block>> expected;
  std::vector<std::unique_ptr<capture::ProbeSlot>> prepared;  // not published yet
  std::vector<SlotStatus> evicted;  // slots that compared and were given up, added up by verdict

  // Keeps the error for Status(), and returns it with the name of the probe in its text.
  ProbeError Refuse(const ProbeError& error) {
    const std::string text = error.what();
    const std::string prefix = "probe '" + name + "'";
    last_error = text.rfind(prefix, 0) == 0 ? text : prefix + ": " + text;
    return ProbeError(error.kind(), last_error);
  }
};

}  // namespace cgdebug
