// not_seen.h: what a job wanted to be seen and nobody saw, outside of the slots that have an
// account of their own. The daemon tells clients of it and writes it into recordings; every answer
// uses these words.
//
// A number never changes its meaning, because recordings hold them. New kinds are appended.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "proto/layout/field.h"

namespace cgdebug::layout {

enum class NotSeenKind : std::uint32_t {
  kRefused = 1,      // probes that the job could not watch: no room, a dtype, an exception
  kUnreadable = 2,   // slots that the daemon cannot read
  kGivenUp = 3,      // snapshots that the job gave up unread, to make room
  kCutOff = 4,       // the job's shared memory was cut off
  kNotRecorded = 5,  // a recording that the job asked for cannot be written
  kNeverSent = 6,    // rows of op logs that the job had when it died
  kMalformed = 7,    // variables of the environment that the job goes on without
};

// NotSeen::name of what op logs lack: of what the gap rows of eager ones (IsOpGap) tell as well,
// and of the rest.
inline constexpr std::string_view kToldByGapRows = "op log rows";
inline constexpr std::string_view kOfOpLogs = "op log";

// All of one kind in one process.
struct NotSeen {
  NotSeenKind kind = NotSeenKind::kRefused;
  std::uint64_t count = 0;  // probes, slots, snapshots, recordings, rows or variables
  std::uint64_t of = 0;     // kRefused: all that the job wanted; 0 = unknown
  std::uint64_t calls = 0;  // kRefused: that left no snapshot
  std::string name = {};    // of the first; empty = unknown
  std::string reason = {};  // of the first

  // Of these numbers, what nobody wants any longer: it is missing from what came before it went,
  // and from nothing that began later.
  struct Gone {
    std::uint64_t count = 0;
    std::uint64_t of = 0;
    std::uint64_t calls = 0;
    std::uint64_t order = 0;  // the highest of a slot that there was when the last of them went

    bool operator==(const Gone&) const = default;
  } gone = {};

  // Without what was gone already. A job writes these numbers one after the other.
  NotSeen Without(const Gone& before) const {
    NotSeen rest = *this;
    rest.count -= before.count < count ? before.count : count;
    rest.of -= before.of < of ? before.of : of;
    rest.calls -= before.calls < calls ? before.calls : calls;
    rest.gone = {};
    return rest;
  }

  bool operator==(const NotSeen&) const = default;

  // Numbers and names are those of `NotSeen` in proto/tensor.proto.
  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    visit(Field{1, "kind"}, self.kind);
    visit(Field{2, "count"}, self.count);
    visit(Field{3, "of"}, self.of);
    visit(Field{4, "calls"}, self.calls);
    visit(Field{5, "name"}, self.name);
    visit(Field{6, "reason"}, self.reason);
    visit(Field{7, "gone_count"}, self.gone.count);
    visit(Field{8, "gone_of"}, self.gone.of);
    visit(Field{9, "gone_calls"}, self.gone.calls);
    visit(Field{10, "gone_order"}, self.gone.order);
  }
};

// "216 of 258 probes are not watched, the first fwd/layers.3 (648 calls): /dev/shm is too small"
inline std::string ToText(const NotSeen& not_seen) {
  const bool is_one = not_seen.count == 1;
  const std::string count = std::to_string(not_seen.count);
  std::string why = not_seen.reason.empty() ? "" : ": " + not_seen.reason;
  while (why.ends_with('.')) why.pop_back();
  switch (not_seen.kind) {
    case NotSeenKind::kRefused: {
      if (is_one && (not_seen.name == kToldByGapRows || not_seen.name == kOfOpLogs)) {
        return "not all ops are logged" + why;
      }
      std::string text = count;
      if (not_seen.of > not_seen.count) text += " of " + std::to_string(not_seen.of);
      text += not_seen.of > 1 || !is_one ? " probes" : " probe";
      text += is_one ? " is not watched" : " are not watched";
      if (!not_seen.name.empty()) text += (is_one ? ", " : ", the first ") + not_seen.name;
      text += " (" + std::to_string(not_seen.calls) + (not_seen.calls == 1 ? " call)" : " calls)");
      return text + why;
    }
    case NotSeenKind::kUnreadable:
      return count + (is_one ? " slot" : " slots") + " of the job cannot be read by the daemon" +
             why;
    case NotSeenKind::kGivenUp:
      return count + (is_one ? " snapshot was" : " snapshots were") +
             " given up unread by the job, to make room. Give /dev/shm more (docker run "
             "--shm-size=8g), or watch less";
    case NotSeenKind::kCutOff:
      return "the job's shared memory was cut off: what was not read of it is lost";
    case NotSeenKind::kNeverSent:
      return count + (is_one ? " row" : " rows") +
             " of op logs never left the job: it died before it could send them";
    case NotSeenKind::kMalformed:
      return "the job goes on without " + count +
             (is_one ? " variable of its environment that is"
                     : " variables of its environment that are") +
             " malformed" + (is_one ? "" : ", the first") + why;
    case NotSeenKind::kNotRecorded:
      return "a recording that the job asked for is not whole" + why;
  }
  return count + " of a kind that this version does not know" + why;
}

}  // namespace cgdebug::layout
