// probe_registry.h: the open probes of a process, by id and by site.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "libprobe/slots/probe_state.h"

namespace cgdebug {

// Does not own the probes. A forked child makes a copy, which goes on with the same ids and sites.
//
// Thread: one at a time (the probe table's lock).
class ProbeRegistry {
 public:
  // Gives the probe its id and its site.
  void Add(const std::shared_ptr<ProbeState>& probe) {
    probe->id = next_id_++;
    probe->site = std::to_string(++made_[probe->name]) + ":" + probe->name;
    probes_[probe->id] = probe;
    sites_[probe->site] = probe;
  }
  // An id that no probe has or gets.
  std::uint64_t TakeId() { return next_id_++; }
  void Remove(const ProbeState& probe) {
    probes_.erase(probe.id);
    sites_.erase(probe.site);
  }
  // nullptr if the probe is closed or being destroyed.
  std::shared_ptr<ProbeState> Find(std::uint64_t id) const {
    const auto found = probes_.find(id);
    return found == probes_.end() ? nullptr : found->second.lock();
  }
  std::shared_ptr<ProbeState> FindSite(std::string_view site) const {
    const auto found = sites_.find(site);
    return found == sites_.end() ? nullptr : found->second.lock();
  }

 private:
  // Finds a std::string by a std::string_view.
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  std::uint64_t next_id_ = 1;
  std::unordered_map<std::uint64_t, std::weak_ptr<ProbeState>> probes_;
  std::unordered_map<std::string, std::weak_ptr<ProbeState>, Hash, std::equal_to<>> sites_;
  std::unordered_map<std::string, std::uint64_t> made_;  // name -> probes made so far
};

}  // namespace cgdebug
