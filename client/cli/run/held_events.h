// held_events.h: what a run did and is not printed yet.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <utility>

#include "client/cli/views/live/event_printer.h"
#include "client/cli/views/live/finding_filter.h"

namespace cgdebug::cli {

// Holds events back, so that snapshots come in the order of their replays: the daemon reads slot by
// slot.
//
// Thread: one at a time.
class HeldEvents {
 public:
  using Clock = std::chrono::steady_clock;
  // `streams`: every event is printed; else only findings. `prints_reach_terminal`: what
  // TensorPrint writes is there already.
  HeldEvents(bool streams, bool prints_reach_terminal, EventPrinter* printer)
      : streams_(streams), prints_reach_terminal_(prints_reach_terminal), printer_(printer) {}

  void Hold(const live::Event& event);
  // Stops at the first that came later.
  void Print(Clock::time_point arrived_before);
  // Findings that were too many to show.
  std::size_t left_out() const { return lines_.left_out(); }

 private:
  struct Held {
    std::pair<std::uint64_t, std::uint64_t> order;  // serial of the replay, place in the graph
    Clock::time_point arrived;
    live::Event event;
  };
  void PrintBehind(const live::Event* next);

  const bool streams_;
  const bool prints_reach_terminal_;
  EventPrinter* const printer_;
  FindingFilter findings_;
  FindingLines lines_;
  std::list<Held> held_;  // in order
};

}  // namespace cgdebug::cli
