#include "daemon/ingest/slot/shown_counters.h"

#include "proto/layout/op_log_layout.h"

namespace cgdebug::ingest {
namespace {

// `reached_ns` does not count: it changes with `reached`.
bool AreEqual(const ShownCounters::State& a, const ShownCounters::State& b) {
  bool are_equal = a.retired == b.retired && a.last_timestamp_ns == b.last_timestamp_ns &&
                   a.reached == b.reached;
  pipeline::Counters::ForEachCounter([&](const layout::Field&, auto member) {
    are_equal = are_equal && a.counters.*member == b.counters.*member;
  });
  return are_equal;
}

}  // namespace

void ShownCounters::Show(const State& state) {
  if (shows_any_ && AreEqual(state, shown_)) return;
  shows_any_ = true;
  shown_ = state;
  pipeline::Counters counters = state.counters;
  if (are_of_op_log_ && !rows_.empty()) counters.bytes /= rows_.size();
  for (const pipeline::SlotPtr& row : rows_) {
    registry_->SetSlot(row, counters, state.last_timestamp_ns, state.retired, ReachedBy(*row));
  }
}

// The launches of a page tell of the replay after the one that its leaf finished last; anything
// else is about a replay that is over.
pipeline::Reached ShownCounters::ReachedBy(const pipeline::SlotIdentity& row) const {
  if (!are_of_op_log_) return {};
  const std::uint64_t replays = shown_.counters.replays;
  const std::uint32_t launch = layout::ReachedLaunch(shown_.reached);
  const bool is_under_way = layout::ReachedReplay(shown_.reached) == replays + 1;
  if (!is_under_way || row.launch == 0 || row.launch > launch) return {replays, 0};
  return {replays + 1, row.launch == launch ? shown_.reached_ns : 0};
}

}  // namespace cgdebug::ingest
