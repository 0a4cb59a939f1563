// probe_state.h: what a process knows of one probe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cgdebug/probe.h"
#include "libprobe/capture/probe_slot.h"
#include "libprobe/tensor_part.h"

namespace cgdebug {

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
  std::string last_error;
  std::string lane_note;
  std::string trigger_note;     // why a trigger of its captures does nothing
  const void* owner = nullptr;  // the table it belongs to; a forked child has its own
  std::vector<capture::ProbeSlot*> slots;
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
