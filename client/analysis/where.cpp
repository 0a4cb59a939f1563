#include "client/analysis/where.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace cgdebug::analysis {
namespace {

// The probes of one graph, or the rows of its op logs, in graph order.
using Series = std::vector<const Passed*>;

Place::Stop StopAt(const Passed& passed) {
  return {passed.name, passed.number, passed.site, passed.typed};
}

bool Tells(const Passed& passed, std::uint64_t replay) {
  const std::uint64_t every = std::max<std::uint32_t>(passed.every, 1);
  return replay != 0 && (replay - 1) % every == 0;
}

std::uint64_t NewestReplay(const Series& series) {
  std::uint64_t newest = 0;
  for (const Passed* passed : series) newest = std::max(newest, passed->replay);
  return newest;
}

std::int64_t LastSign(const Series& series) {
  std::int64_t last_ns = 0;
  for (const Passed* passed : series) {
    last_ns = std::max({last_ns, passed->last_ns, passed->inside_ns});
  }
  return last_ns;
}

// Probes that show how far the newest replay got: those that reached it and those that still must.
// A probe that also missed the replay before is ignored: it was closed or lost its snapshots.
Series Telling(const Series& series, std::uint64_t newest) {
  Series telling;
  for (const Passed* passed : series) {
    const std::uint64_t period = std::max<std::uint32_t>(passed->every, 1);
    const bool is_active = newest - passed->replay <= period;
    const bool has_passed = newest != 0 && passed->replay == newest;
    if (has_passed || (Tells(*passed, newest) && is_active)) telling.push_back(passed);
  }
  return telling;
}

// The last of those that are looked at together with `first`; nullptr if it is alone.
const Passed* LastTogether(const Series& series, const Passed& first) {
  const Passed* last = nullptr;
  for (const Passed* passed : series) {
    const bool is_together = first.launch != 0 && passed->launch == first.launch;
    if (is_together && passed->replay == first.replay && passed->number > first.number &&
        (last == nullptr || passed->number > last->number)) {
      last = passed;
    }
  }
  return last;
}

Place PlaceIn(const Series& series, std::optional<std::uint64_t> launches) {
  Place place;
  place.graph_id = series.front()->graph_id;
  place.graph = series.front()->graph;
  place.has_rows = series.front()->number != 0;
  place.replay = NewestReplay(series);
  place.launches = launches;
  place.moved_ns = LastSign(series);
  const Series telling = Telling(series, place.replay);
  place.total = place.replay == 0 ? series.size() : telling.size();
  const Passed* after = nullptr;
  const Passed* before = nullptr;
  for (const Passed* passed : telling) {
    if (passed->replay == place.replay) {
      after = passed;
      ++place.count;
    }
  }
  for (const Passed* passed : telling) {
    if (passed->replay == place.replay || before != nullptr) continue;
    if (after != nullptr && passed->order < after->order) continue;
    before = passed;
  }
  if (after != nullptr) place.after = StopAt(*after);
  if (before != nullptr) {
    place.before = StopAt(*before);
    const Passed* last = LastTogether(telling, *before);
    if (last != nullptr) place.before_last = StopAt(*last);
    place.kind = Place::Kind::kInside;
    return place;
  }
  if (launches && *launches > place.replay) {
    place.kind = Place::Kind::kLaunched;
    ++place.replay;
    place.count = 0;
    place.after.reset();
    const Series& coming = telling.empty() ? series : telling;
    place.before = StopAt(*coming.front());
    const Passed* last = LastTogether(coming, *coming.front());
    if (last != nullptr) place.before_last = StopAt(*last);
    return place;
  }
  if (place.replay == 0) return {};
  place.kind = launches ? Place::Kind::kFinished : Place::Kind::kPassed;
  return place;
}

// The probes outside of graphs. Each has its own number of calls, so the one that was called last
// says where the job is.
Place EagerPlace(const Series& series) {
  const auto is_later = [](const Passed* a, const Passed* b) {
    return std::tuple(a->last_ns, a->number, a->order) <
           std::tuple(b->last_ns, b->number, b->order);
  };
  const auto newest = std::max_element(series.begin(), series.end(), is_later);
  Place place;
  if ((*newest)->replay == 0) return place;
  place.has_rows = (*newest)->number != 0;
  place.kind = place.has_rows ? Place::Kind::kEagerRuns : Place::Kind::kEager;
  place.replay = (*newest)->replay;
  place.moved_ns = (*newest)->last_ns;
  place.after = StopAt(**newest);
  place.count = static_cast<std::size_t>(newest - series.begin()) + 1;
  place.total = series.size();
  const auto next = newest + 1 == series.end() ? series.begin() : newest + 1;
  if (next != newest && !place.has_rows) place.before = StopAt(**next);
  return place;
}

// What says most about where a process stands, first: a replay that is under way, one that has been
// launched, then whatever moved last.
std::tuple<int, std::int64_t, bool> Weight(const Place& place) {
  const int weight = place.kind == Place::Kind::kNowhere    ? 0
                     : place.kind == Place::Kind::kInside   ? 3
                     : place.kind == Place::Kind::kLaunched ? 2
                                                            : 1;
  return {weight, place.moved_ns, place.has_rows};
}

}  // namespace

bool Place::IsSamePlace(const Place& other) const {
  const auto name = [](const std::optional<Stop>& stop) {
    return stop ? std::pair(stop->name, stop->number) : std::pair(std::string(), 0u);
  };
  return kind == other.kind && graph == other.graph && replay == other.replay &&
         name(after) == name(other.after) && name(before) == name(other.before);
}

const char* NameOf(Place::Kind kind) {
  switch (kind) {
    case Place::Kind::kNowhere:
      break;
    case Place::Kind::kInside:
      return "inside";
    case Place::Kind::kLaunched:
      return "launched";
    case Place::Kind::kPassed:
      return "passed";
    case Place::Kind::kFinished:
      return "finished";
    case Place::Kind::kEager:
      return "eager";
    case Place::Kind::kEagerRuns:
      return "eager_runs";
  }
  return "nowhere";
}

Place FindPlace(const Trail& trail) {
  // The rows of a graph are a series of their own: a page has its order from when it was complete.
  std::map<std::pair<std::uint64_t, bool>, Series> all;
  for (const Passed& passed : trail.passed) {
    all[{passed.graph_id, passed.number != 0}].push_back(&passed);
  }
  std::map<std::uint64_t, Launches> launches;
  for (const Launches& graph : trail.graphs) launches[graph.graph_id] = graph;
  std::map<std::uint64_t, Place> places;  // the best of each graph
  for (auto& [key, series] : all) {
    std::stable_sort(series.begin(), series.end(),
                     [](const Passed* a, const Passed* b) { return a->order < b->order; });
    const std::uint64_t graph_id = key.first;
    const auto counted = launches.find(graph_id);
    Place place =
        graph_id == 0
            ? EagerPlace(series)
            : PlaceIn(series, counted == launches.end() ? std::nullopt : counted->second.count);
    const auto [known, is_new] = places.try_emplace(graph_id, place);
    if (is_new) continue;
    // Rows say more than probes do about the same replay.
    Place& best = known->second;
    const std::int64_t moved_ns = std::max(best.moved_ns, place.moved_ns);
    if (std::pair(place.replay, Weight(place)) > std::pair(best.replay, Weight(best))) {
      best = std::move(place);
    }
    best.moved_ns = moved_ns;
  }
  Place found;
  std::int64_t moved_ns = 0;
  for (const auto& [graph_id, place] : places) {
    moved_ns = std::max(moved_ns, place.moved_ns);
    if (Weight(place) > Weight(found)) found = place;
  }
  found.moved_ns = moved_ns;
  for (const auto& [graph_id, place] : places) {
    const bool is_open = place.kind == Place::Kind::kInside || place.kind == Place::Kind::kLaunched;
    if (!is_open || (found.kind != Place::Kind::kNowhere && graph_id == found.graph_id)) continue;
    found.also_launched.push_back({graph_id, place.graph, place.replay});
  }
  return found;
}

std::vector<bool> FindOdd(const std::vector<Place>& places) {
  std::vector<std::size_t> alike(places.size(), 0);
  for (std::size_t i = 0; i < places.size(); ++i) {
    for (const Place& other : places) alike[i] += places[i].IsSamePlace(other);
  }
  std::vector<bool> odd(places.size(), false);
  const auto most = std::max_element(alike.begin(), alike.end());
  if (most == alike.end()) return odd;
  std::size_t usual = static_cast<std::size_t>(most - alike.begin());
  if (2 * *most <= places.size()) {
    const auto progress = [&](std::size_t i) {
      return std::tuple(places[i].replay, places[i].count);
    };
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (progress(i) > progress(usual)) usual = i;
    }
  }
  for (std::size_t i = 0; i < places.size(); ++i) odd[i] = !places[i].IsSamePlace(places[usual]);
  return odd;
}

}  // namespace cgdebug::analysis
