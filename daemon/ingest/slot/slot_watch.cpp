#include "daemon/ingest/slot/slot_watch.h"

#include <algorithm>
#include <utility>

namespace cgdebug::ingest {
namespace {

constexpr std::size_t kAhead = 8;  // heads on their way from memory

}  // namespace

void SlotWatch::SetSlots(const std::vector<SlotConsumer*>& slots) {
  std::vector<Watched> before = std::exchange(watched_, {});
  std::map<std::uint64_t, std::size_t> counts;
  for (auto& [id, graph] : graphs_) {
    counts[id] = graph.slots.size();
    graph.slots.clear();
    graph.has_new = false;
  }
  watched_.reserve(slots.size());
  auto known = before.begin();
  for (SlotConsumer* slot : slots) {
    const pipeline::SlotPtr& identity = slot->slot();
    const layout::SlotFacts& registration = identity->registration;
    while (known != before.end() && known->order < registration.order) ++known;
    Graph& graph = graphs_[registration.graph_id];
    if (known != before.end() && known->identity == identity) {
      watched_.push_back(std::move(*known++));
    } else {
      watched_.push_back({slot, identity, registration.order, &graph, slot->head_watch()});
      graph.has_new = true;
    }
    graph.slots.push_back(watched_.size() - 1);
  }
  std::erase_if(graphs_, [](const auto& one) { return one.second.slots.empty(); });
  resting_ = 0;
  for (auto& [id, graph] : graphs_) {
    graph.rests =
        graph.rests && !graph.has_new && graph.slots.size() == counts[id] && ChooseWatchmen(&graph);
    resting_ += graph.rests ? 1 : 0;
  }
  next_ = 0;
  unseen_ = watched_.size();
}

bool SlotWatch::ChooseWatchmen(Graph* graph) const {
  const auto runs_always = [&](std::size_t place) {
    const Watched& one = watched_[place];
    return !one.slot->slot()->IsInBody() && !one.head.IsDisarmed();
  };
  const auto first = std::ranges::find_if(graph->slots, runs_always);
  if (first == graph->slots.end()) return false;
  graph->first = *first;
  graph->last = *std::find_if(graph->slots.rbegin(), graph->slots.rend(), runs_always);
  return true;
}

void SlotWatch::Look(const Moment& moment, bool all, std::vector<SlotConsumer*>* found) {
  found_.clear();
  ++looks_;
  if (moment.is_active) unseen_ = watched_.size();
  for (auto& [id, graph] : graphs_) {
    const bool is_awake = !graph.rests || all || watched_[graph.first].head.HasMoved() ||
                          watched_[graph.last].head.HasMoved();
    if (!is_awake) continue;
    LookAt(&graph, moment);
    if (id != 0) SetToRest(&graph, moment);
  }
  if (all || resting_ == 0) {
    unseen_ = 0;
  } else {
    LookAtTheNextOnes(moment);
  }
  std::ranges::sort(found_);
  for (const std::size_t place : found_) found->push_back(watched_[place].slot);
}

// A slot without work was looked at together with its graph, so its clock knows when it had none.
void SlotWatch::LookAt(Graph* graph, const Moment& moment) {
  const bool was_looked_at = graph->look == looks_ - 1;
  const std::int64_t absent_ns = was_looked_at ? moment.last_time_ns : graph->looked_ns;
  for (std::size_t i = 0; i < graph->slots.size(); ++i) {
    if (i + kAhead < graph->slots.size()) watched_[graph->slots[i + kAhead]].head.Prefetch();
    Watched& one = watched_[graph->slots[i]];
    const bool has_moved = one.head.Take();
    if (!has_moved && !one.has_work) continue;
    graph->moved = moment.now;
    one.slot->WatchClock(absent_ns);
    one.has_work = one.slot->HasWork();
    if (one.has_work) found_.push_back(graph->slots[i]);
  }
  graph->look = looks_;
  graph->looked_ns = moment.time_ns;
}

void SlotWatch::SetToRest(Graph* graph, const Moment& moment) {
  const bool rests = watched_.size() >= kMany && moment.now - graph->moved > kRestAfter &&
                     (graph->rests || ChooseWatchmen(graph));
  resting_ += rests ? 1 : 0;
  resting_ -= graph->rests ? 1 : 0;
  graph->rests = rests;
}

void SlotWatch::LookAtTheNextOnes(const Moment& moment) {
  const std::size_t count = watched_.size();
  const double rounds = std::chrono::duration<double>(moment.now - turned_) / kRound;
  const std::size_t turns =
      rounds >= 1 ? count : static_cast<std::size_t>(rounds * static_cast<double>(count));
  if (turns == 0) return;
  turned_ = moment.now;
  for (std::size_t turn = 0; turn < turns; ++turn) {
    watched_[(next_ + kAhead) % count].head.Prefetch();
    Watched& one = watched_[next_];
    next_ = next_ + 1 < count ? next_ + 1 : 0;
    if (!one.graph->rests || !one.head.HasMoved()) continue;
    LookAt(one.graph, moment);
    SetToRest(one.graph, moment);
  }
  unseen_ -= std::min(unseen_, turns);
}

}  // namespace cgdebug::ingest
