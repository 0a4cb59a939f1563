// where.h: how far each process of a job has come: the last probe or row of an op log that it
// passed, and the one that comes next in graph order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cgdebug::analysis {

// One call of a probe, or one row of an op log, and how often it was passed.
struct Passed {
  std::string name;
  std::uint64_t order = 0;  // in the process
  std::uint64_t graph_id = 0;
  std::string graph;         // the graph's name; empty: eager
  std::uint32_t number = 0;  // of a row in its log, from 1; 0: a probe
  std::uint32_t launch = 0;  // rows with the same one are looked at together; 0: alone
  std::string site = {};
  std::string typed = {};      // what names it on the command line: "blk3.attn@g:bs=8"
  std::uint64_t replay = 0;    // the newest that passed it; 0: none did
  std::uint32_t every = 1;     // it tells of replays 1, 1 + every, ... only
  std::int64_t last_ns = 0;    // CLOCK_REALTIME of the newest sign of it
  std::int64_t inside_ns = 0;  // the same if that replay had not finished by then; else 0
};

// A graph, and how often it was launched.
struct Launches {
  std::uint64_t graph_id = 0;
  std::string graph;
  std::optional<std::uint64_t> count;  // absent: nobody counts
};

// What is known of one process.
struct Trail {
  std::vector<Passed> passed;
  std::vector<Launches> graphs;
};

// The place at which a process stands.
struct Place {
  enum class Kind {
    kNowhere,    // nothing was passed and nothing launched
    kInside,     // a replay passed some of the graph's probes or rows, and not yet others
    kLaunched,   // a replay was launched, and has passed none yet
    kPassed,     // the newest replay passed the last one; nobody counts launches
    kFinished,   // the same, and no replay after it was launched
    kEager,      // not in a graph
    kEagerRuns,  // the same, with an op log; later rows of this call may come
  };
  struct Stop {
    std::string name;
    std::uint32_t number = 0;  // as Passed
    std::string site = {};
    std::string typed = {};  // likewise
  };
  Kind kind = Kind::kNowhere;
  bool has_rows = false;  // `after` and `before` are rows of an op log
  std::uint64_t graph_id = 0;
  std::string graph;
  std::uint64_t replay = 0;
  std::optional<std::uint64_t> launches = {};  // of the graph; absent: nobody counts
  std::optional<Stop> after;                   // the last one that this replay passed
  std::optional<Stop> before;                  // the first one that it did not
  // Rows that are looked at together with `before`: the last of them, if there are others.
  std::optional<Stop> before_last;
  std::size_t count = 0;  // of rows or probes that this replay passed
  std::size_t total = 0;
  std::int64_t moved_ns = 0;  // CLOCK_REALTIME of its last sign of life; 0: unknown
  // Other graphs whose newest launch has not passed their last probe or row.
  std::vector<Launches> also_launched;

  // Whether both stand at the same place, up to the name of the session.
  bool IsSamePlace(const Place& other) const;
};
const char* NameOf(Place::Kind kind);

// Trusts nothing: what a job says about itself may be wrong.
Place FindPlace(const Trail& trail);

// Which of the places (of the ranks of one job) differ from the place of most. If there is no such
// place, those differ that are behind the one that is farthest.
std::vector<bool> FindOdd(const std::vector<Place>& places);

}  // namespace cgdebug::analysis
