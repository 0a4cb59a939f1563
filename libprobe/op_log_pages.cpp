#include "libprobe/op_log_pages.h"

#include <algorithm>
#include <utility>

#include "libprobe/capture/lane/direct_lane.h"

namespace cgdebug {
namespace {

using capture::ProbeSlot;

// A page, described as a tensor of bytes.
TensorRef PageOf(std::size_t rows, DeviceType type, int device, const void* data) {
  TensorRef page;
  page.data = data;
  page.dtype = Dtype::kUint8;
  page.shape = {static_cast<std::int64_t>(rows), sizeof(layout::DeviceStats)};
  page.device_type = type;
  page.device_index = device;
  return page;
}

}  // namespace

void OpLogPages::Name(std::vector<ring::OpLogRow>* rows, NameCounts* seen) {
  for (ring::OpLogRow& row : *rows) {
    const auto [known, is_new] = ids_.try_emplace(row.name, 0);
    if (is_new) known->second = probes_->TakeId();
    row.probe_id = known->second;
    row.invocation = (*seen)[row.name]++;
  }
}

ProbeSlot* OpLogPages::HostSlot(ProbeState& log, std::span<const ring::OpLogRow> rows,
                                std::uint32_t thread) {
  const std::vector<std::byte> table = ring::EncodeOpLog(rows);
  const auto same = std::find_if(log.slots.begin(), log.slots.end(), [&](const ProbeSlot* slot) {
    return !slot->life.held_by_graph() && slot->registration.thread == thread &&
           slot->op_log_table == table;
  });
  if (same != log.slots.end()) {
    store_->Touch(log, **same);
    return *same;
  }
  store_->EvictOldEager(log, 0);
  auto slot = std::make_unique<ProbeSlot>();
  try {
    maker_->CompleteOpLog(log, *slot, PageOf(rows.size(), DeviceType::kCpu, 0, nullptr), table,
                          layout::Lane::kHost, 0, thread);
    slot->op_log_table = table;
    ProbeSlot* const published = store_->Publish(log, slot);
    store_->Touch(log, *published);
    return published;
  } catch (...) {
    store_->Discard(std::move(slot));
    throw;
  }
}

void OpLogPages::Capture(ProbeState& log, std::span<const ring::OpLogRow> rows, const void* memory,
                         int device, std::uint64_t graph_id, void* stream,
                         std::unique_ptr<ProbeSlot>& slot) {
  const TensorRef page = PageOf(rows.size(), DeviceType::kCuda, device, memory);
  maker_->CompleteOpLog(log, *slot, page, ring::EncodeOpLog(rows), layout::Lane::kDirect, graph_id);
  capture::DirectLane::On(device).Capture(slot.get(), *segment_->writer(), page, stream);
  store_->Publish(log, slot);
}

}  // namespace cgdebug
