#include "client/analysis/check/scan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "client/analysis/ops/op_log.h"

namespace cgdebug::analysis {
namespace {

using numerics::Stats;
using source::Key;
using source::Slot;
using source::Snapshot;

constexpr double kNearOverflowShare = 0.5;

std::size_t ElementBytes(const Slot& slot) {
  const layout::DtypeInfo* info = layout::FindDtype(slot.dtype);
  return info == nullptr ? 0 : info->bytes;
}

double ShareOfMaximum(const Slot& slot, const Stats& stats) {
  const layout::DtypeInfo* info = layout::FindDtype(slot.dtype);
  if (info == nullptr || !info->is_floating || !(stats.abs_max > 0)) return 0;
  if (layout::ValuesPerElement(slot.dtype) == 2) return 0;  // their range is used up by design
  return stats.abs_max / info->max_finite;
}

// As that of float32 filled with torch.finfo(torch.bfloat16).min, where autocast is on.
bool HasLowestOfBfloat16(const Stats& stats) {
  return stats.min == -layout::FindDtype(layout::Dtype::kBfloat16)->max_finite;
}

}  // namespace

Scan::Scan(source::Source& source, const CheckOptions& options)
    : source_(source), options_(options), staleness_(source) {}

Result<void> Scan::Run() {
  by_calls_ = IsOrderedByCalls();
  const std::vector<std::size_t> wanted = WantedSlots(source_, options_.scope);
  probes_.reserve(wanted.size());
  for (const std::size_t slot : wanted) {
    if (const Result<void> added = Add(slot); !added.ok()) return added.error();
  }
  for (std::size_t i = 0; i < probes_.size(); ++i) place_of_[probes_[i].slot] = i;
  ReadAll();
  for (const Scanned& scanned : probes_) {
    for (const Key& key : scanned.with_hash) with_hash_.push_back({scanned.slot, key});
    if (!scanned.unread.empty()) unread_.push_back(scanned.unread);
  }
  std::ranges::sort(replays_);
  replays_.erase(std::unique(replays_.begin(), replays_.end()), replays_.end());
  staleness_.Finish();
  return {};
}

const Scanned* Scan::Find(std::size_t slot) const {
  const auto place = place_of_.find(slot);
  return place == place_of_.end() ? nullptr : &probes_[place->second];
}

// What one rank sends to another in a call is there, too, before the clock says so. Between ranks
// the place in the program decides.
bool Scan::IsOrderedByCalls() const {
  std::set<int> ranks;
  for (const std::size_t slot : WantedSlots(source_, options_.scope)) {
    if (!source_.slots()[slot].counts_calls()) return false;
    ranks.insert(source_.slots()[slot].rank);
  }
  return ranks.size() > 1;
}

source::Moment Scan::MomentAt(const Slot& slot, std::uint64_t serial, const Key& key) const {
  if (by_calls_) return {0, key.replay, source::PlaceInCall(slot), key.iteration, slot.rank};
  return {serial, key.replay, source::PlaceInCall(slot), key.iteration, slot.rank};
}

Result<void> Scan::Add(std::size_t index) {
  Result<std::vector<Key>> keys = source_.Keys(index);
  if (!keys.ok()) return keys.error();
  const Slot& slot = source_.slots()[index];
  Scanned scanned;
  scanned.slot = scanned.seen.slot = index;
  scanned.is_empty = keys->empty();
  const OpText* const text = slot.op.row();
  scanned.is_beside = text && (layout::IsPaddingOp(text->op) || IsRowMask(text->op));
  std::erase_if(*keys, [&](const Key& key) { return !options_.scope.Wants(key.replay); });
  scanned.keys = *std::move(keys);
  scanned.abs_max.assign(scanned.keys.size(), NAN);
  probes_.push_back(std::move(scanned));
  return {};
}

// The first snapshot of each slot, then the second of each: so they lie in a recording. To read one
// slot after the other is to jump to each snapshot.
void Scan::ReadAll() {
  std::vector<std::optional<Snapshot>> previous(probes_.size());
  std::vector<std::size_t> left(probes_.size());
  std::iota(left.begin(), left.end(), 0);
  for (std::size_t i = 0; !left.empty(); ++i) {
    std::erase_if(left, [&](std::size_t place) { return i >= probes_[place].keys.size(); });
    for (const std::size_t place : left) Read(i, &probes_[place], &previous[place]);
  }
}

void Scan::Read(std::size_t number, Scanned* scanned, std::optional<Snapshot>* previous) {
  const Slot& slot = source_.slots()[scanned->slot];
  const Key& key = scanned->keys[number];
  Result<Snapshot> snapshot = source_.Get(scanned->slot, key);
  if (!snapshot.ok()) return AddUnread(key, snapshot.error(), scanned);
  const Result<Stats> stats = source::StatsOf(source_, *snapshot);
  if (!stats.ok()) return AddUnread(key, stats.error(), scanned);
  scanned->abs_max[number] = stats->abs_max;
  Look(key, *snapshot, *stats, scanned);
  // What comes before and after an iteration is not what comes before and after a replay.
  if (*previous && (!slot.in_body || slot.counts_calls())) {
    staleness_.Note(**previous, *snapshot, scanned);
  }
  *previous = *std::move(snapshot);
}

void Scan::Look(const Key& key, const Snapshot& snapshot, const Stats& stats, Scanned* scanned) {
  const std::size_t index = scanned->slot;
  const Slot& slot = source_.slots()[index];
  ++snapshots_;
  if (snapshot.has_values && snapshot.hash) scanned->with_hash.push_back(key);
  if (replays_.empty() || replays_.back() != key.replay) replays_.push_back(key.replay);
  has_serials_ = has_serials_ || snapshot.serial != 0;
  if (snapshot.comparison && snapshot.comparison->mismatched > 0) {
    scanned->mismatch.Add(FindingKind::kMismatch, index, key.replay);
  }
  const bool is_row = !slot.op.empty();
  if (is_row) scanned->seen.Note(key, stats);
  if (scanned->is_beside) return;
  if (stats.nonfinite() > 0) {
    scanned->nonfinite.push_back({.key = key,
                                  .moment = MomentAt(slot, snapshot.serial, key),
                                  .serial = snapshot.serial,
                                  .step = snapshot.step,
                                  .nan = stats.nan,
                                  .inf = stats.pos_inf + stats.neg_inf});
  }
  const double share = ShareOfMaximum(slot, stats);
  // What overflows does not stop at the lowest number there is, and stay far from the largest.
  const bool is_lowest = stats.max <= -kNearOverflowShare * stats.min;
  // float8 has its largest number wherever a value was cut off.
  const bool is_largest = ((is_row || is_lowest) && share == 1 && ElementBytes(slot) > 1) ||
                          (is_lowest && share > kNearOverflowShare && HasLowestOfBfloat16(stats));
  if (is_largest) {
    scanned->largest.Add(FindingKind::kLargest, index, key.replay, share);
  } else if (share > kNearOverflowShare) {
    scanned->near_overflow.Add(FindingKind::kNearOverflow, index, key.replay, share);
  }
  if (stats.count > 0 && stats.zero == stats.count) {
    scanned->zero.Add(FindingKind::kZero, index, key.replay);
  }
}

void Scan::AddUnread(const Key& key, const Error& error, Scanned* scanned) {
  ++unread_count_;
  // The first of a slot stands for all.
  if (!scanned->unread.empty()) return;
  const Slot& of = source_.slots()[scanned->slot];
  scanned->unread =
      fmt::format("{}@{} was not looked at: {}", SlotText(of), ReplayText(of, key), error.message);
}

}  // namespace cgdebug::analysis
