// counters.h: what the daemon counts for a slot, or for all slots of a session.
#pragma once

#include <cstdint>

#include "proto/layout/field.h"

namespace cgdebug::layout {

// produced = consumed + lost_overwritten + lost_damaged + lost_no_memory + lost_released + what is
// still unread.
struct Counters {
  std::uint64_t replays = 0;           // sum over slots of their newest replay
  std::uint64_t produced = 0;          // entries committed
  std::uint64_t consumed = 0;          // entries the daemon copied out whole
  std::uint64_t lost_overwritten = 0;  // overwritten before they were read
  std::uint64_t lost_damaged = 0;      // bytes that are not those the writer summed up
  std::uint64_t lost_no_memory = 0;    // the daemon had no memory to copy them out
  std::uint64_t suppressed = 0;  // replays that the live control kept back: nothing was written
  std::uint64_t kept = 0;        // of those consumed: in the daemon's memory, statistics at least
  std::uint64_t lost_at_death = 0;  // half written when the producer died
  // Given up unread by the job for lack of room. Counted for sessions only.
  std::uint64_t lost_released = 0;
  std::uint64_t overwrote_unread = 0;  // the writer's own count, policy wait
  std::uint64_t waits = 0;
  std::uint64_t wait_ns = 0;
  std::uint64_t bytes = 0;  // payload bytes consumed
  // Slots in the bodies of conditional nodes count the replays in which the body ran (`taken`) and
  // all replays of the graph (`graph_replays`; 0 if that is not known).
  std::uint64_t taken = 0;
  std::uint64_t graph_replays = 0;
  std::uint64_t passed = 0;     // comparisons that passed on the device: nothing was written
  std::uint64_t unchanged = 0;  // of those produced: equal to the one before, and not sent again

  // Numbers and names are those of `Counters` in proto/control.proto. `visit` takes a pointer to
  // the member.
  template <typename Visitor>
  static constexpr void ForEachCounter(Visitor&& visit) {
    visit(Field{1, "replays"}, &Counters::replays);
    visit(Field{2, "produced"}, &Counters::produced);
    visit(Field{3, "consumed"}, &Counters::consumed);
    visit(Field{4, "lost_overwritten"}, &Counters::lost_overwritten);
    visit(Field{5, "lost_damaged"}, &Counters::lost_damaged);
    visit(Field{6, "lost_no_memory"}, &Counters::lost_no_memory);
    visit(Field{7, "suppressed"}, &Counters::suppressed);
    visit(Field{8, "kept"}, &Counters::kept);
    visit(Field{9, "lost_at_death"}, &Counters::lost_at_death);
    visit(Field{10, "lost_released"}, &Counters::lost_released);
    visit(Field{11, "overwrote_unread"}, &Counters::overwrote_unread);
    visit(Field{12, "waits"}, &Counters::waits);
    visit(Field{13, "wait_ns"}, &Counters::wait_ns);
    visit(Field{14, "bytes"}, &Counters::bytes);
    visit(Field{15, "taken"}, &Counters::taken);
    visit(Field{16, "graph_replays"}, &Counters::graph_replays);
    visit(Field{17, "passed"}, &Counters::passed);
    visit(Field{18, "unchanged"}, &Counters::unchanged);
  }
  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    ForEachCounter([&](const Field& field, auto member) { visit(field, self.*member); });
  }

  constexpr void Add(const Counters& other) {
    ForEachCounter([&](const Field&, auto member) { this->*member += other.*member; });
  }
  // Requires: `other` was added.
  constexpr void Subtract(const Counters& other) {
    ForEachCounter([&](const Field&, auto member) { this->*member -= other.*member; });
  }

  // All causes.
  constexpr std::uint64_t lost() const {
    return lost_overwritten + lost_damaged + lost_no_memory + lost_at_death + lost_released;
  }
};

}  // namespace cgdebug::layout
