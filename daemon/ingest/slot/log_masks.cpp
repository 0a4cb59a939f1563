#include "daemon/ingest/slot/log_masks.h"

#include <algorithm>

namespace cgdebug::ingest {
namespace {

constexpr std::size_t kRuns = 16;

}  // namespace

bool LogMasks::IsMask(const pipeline::Snapshot& snapshot, const ops::NonfiniteRow& row) {
  const pipeline::SlotIdentity& slot = *snapshot.slot;
  const layout::SlotFacts& registration = slot.registration;
  const bool has_page = pipeline::IsOpLogRow(slot) || registration.graph_id != 0;
  const Run run = has_page
                      ? Run{snapshot.serial, registration.graph_id, snapshot.iteration}
                      : Run{snapshot.replay, registration.order - row.number, snapshot.iteration};
  auto found = std::ranges::find(runs_, run, [](const auto& one) { return one.first; });
  if (found == runs_.end()) {
    if (runs_.size() == kRuns) runs_.pop_front();
    runs_.emplace_back(run, ops::MaskFinder());
    found = runs_.end() - 1;
  }
  return found->second.IsMask(row);
}

}  // namespace cgdebug::ingest
