// written_slots.h: which sessions and slots a recording has, and how far it has each slot.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "daemon/core/recording/types.h"

namespace cgdebug::recording {

// Thread: one at a time.
class WrittenSlots {
 public:
  // The end of what is written of a slot, losses included.
  struct Position {
    std::uint64_t ordinal = 0;
    std::uint64_t replay = 0;
  };

  const std::vector<Session>& sessions() const { return sessions_; }
  const std::vector<Slot>& slots() const { return slots_; }

  std::optional<std::uint32_t> Find(const Session& session) const {
    for (const Session& known : sessions_) {
      if (known.uuid == session.uuid) return known.id;
    }
    return std::nullopt;
  }
  std::optional<std::uint32_t> Find(const Slot& slot) const {
    const auto found = ids_.find(KeyOf(slot));
    if (found == ids_.end()) return std::nullopt;
    return found->second;
  }
  // Their ids are their places: the next one is as large as the list.
  void Add(Session session) { sessions_.push_back(std::move(session)); }
  void Add(Slot slot) {
    ids_.emplace(KeyOf(slot), slot.id);
    last_.push_back({slot.from_ordinal, 0});
    slots_.push_back(std::move(slot));
  }

  Position last(std::uint32_t slot) const { return slot < last_.size() ? last_[slot] : Position(); }
  // Requires, of these: the slot was added.
  void SetLast(std::uint32_t slot, Position last) { last_[slot] = last; }
  void Advance(const Loss& loss) {
    Position& last = last_[loss.slot];
    last.ordinal = std::max(last.ordinal, loss.last_ordinal);
    if (loss.before_replay != 0) last.replay = std::max(last.replay, loss.before_replay - 1);
  }

 private:
  using Key = std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>;
  static Key KeyOf(const Slot& slot) { return {slot.session, slot.index, slot.generation}; }

  std::vector<Session> sessions_;
  std::vector<Slot> slots_;
  std::map<Key, std::uint32_t> ids_;
  std::vector<Position> last_;  // by id
};

}  // namespace cgdebug::recording
