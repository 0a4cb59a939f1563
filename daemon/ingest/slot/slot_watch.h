// slot_watch.h: which slots of a job have something new, without a look at each in every pass.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "daemon/ingest/slot/slot_consumer.h"
#include "libprobe/ring/head_watch.h"

namespace cgdebug::ingest {

// A job may hold a hundred graphs with tens of thousands of slots, and run one of them. The slots
// of a graph run together. So a graph of which nothing moved for kRestAfter is at rest, if the job
// has many slots: of its slots a look takes the first and the last that every replay runs, and all
// others in turn, each once in kRound. If one has moved, the graph is awake and all of its slots
// are looked at. Eager slots do not rest.
//
// Thread: the ingest thread. Requires of all calls: the caller holds a SigbusGuard.
class SlotWatch {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kMany = 1024;  // jobs with fewer slots have none at rest
  static constexpr auto kRestAfter = std::chrono::milliseconds(20);
  static constexpr auto kRound = std::chrono::milliseconds(100);

  // `slots`: all there are, in graph order. Graphs whose slots stay the same stay as they are.
  // Lifetime: the slots outlive the watch, or the next SetSlots().
  void SetSlots(const std::vector<SlotConsumer*>& slots);

  // When the slots are looked at.
  struct Moment {
    Clock::time_point now;
    std::int64_t time_ns = 0;       // CLOCK_REALTIME
    std::int64_t last_time_ns = 0;  // of the look before, or later if nothing was committed since
    bool is_active = false;         // something was committed since the look before
  };
  // Appends the slots that have work, in graph order, and shows their timestamps to their clocks.
  // `all`: also looks at every slot of the graphs at rest.
  void Look(const Moment& moment, bool all, std::vector<SlotConsumer*>* found);
  // Whether every slot was looked at since something was committed last.
  bool HasSeenAll() const { return unseen_ == 0; }

 private:
  struct Graph {
    std::vector<std::size_t> slots;  // places in `watched_`
    bool rests = false;
    Clock::time_point moved;          // when a slot was last seen to
    std::int64_t looked_ns = 0;       // when all slots were last looked at
    std::uint64_t look = 0;           // which look that was
    std::size_t first = 0, last = 0;  // the two that are looked at while it rests
    bool has_new = false;             // during SetSlots()
  };
  struct Watched {
    SlotConsumer* slot;
    pipeline::SlotPtr identity;  // of `slot`
    std::uint64_t order;         // of registration
    Graph* graph;
    ring::HeadWatch head;
    bool has_work = true;  // at the last look
  };
  // False if no slot surely runs in each replay.
  bool ChooseWatchmen(Graph* graph) const;
  void LookAt(Graph* graph, const Moment& moment);
  void LookAtTheNextOnes(const Moment& moment);
  void SetToRest(Graph* graph, const Moment& moment);

  std::vector<Watched> watched_;           // in graph order
  std::map<std::uint64_t, Graph> graphs_;  // by graph_id; 0: eager
  std::size_t resting_ = 0;                // of graphs_
  std::uint64_t looks_ = 0;
  std::size_t next_ = 0;            // of `watched_`, to be looked at in turn
  std::size_t unseen_ = 0;          // not looked at since something was committed; 0: none
  Clock::time_point turned_;        // when the last one took its turn
  std::vector<std::size_t> found_;  // places in `watched_`
};

}  // namespace cgdebug::ingest
