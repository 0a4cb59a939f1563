#include "daemon/core/recording/record_tables.h"

#include <algorithm>
#include <utility>

#include "daemon/core/numerics/tensor_view.h"
#include "daemon/core/recording/meta.h"
#include "proto/layout/ring_layout.h"

namespace cgdebug::recording {

using layout::RecordType;

void RecordTables::Take(const Record& record, std::uint64_t most) {
  switch (record.type()) {
    case RecordType::kSession: {
      auto session = DecodeFields<Session>(record.meta);
      if (!session || session->id >= most) return;
      if (session->id >= sessions.size()) sessions.resize(session->id + 1);
      if (sessions[session->id].uuid.empty()) sessions[session->id] = *std::move(session);
      return;
    }
    case RecordType::kSlot: {
      auto slot = DecodeFields<Slot>(record.meta);
      if (!slot || slot->id >= most || slot->session >= sessions.size()) return;
      if (slot->shape.size() > layout::kMaxDims ||
          numerics::PayloadBytes(slot->dtype, slot->shape) != slot->payload_bytes) {
        return;
      }
      while (slots.size() <= slot->id) {
        const auto id = static_cast<std::uint32_t>(slots.size());
        slots.emplace_back().id = id;
      }
      if (slots[slot->id].probe.empty()) slots[slot->id] = *std::move(slot);
      return;
    }
    case RecordType::kLoss:
      if (auto loss = DecodeFields<Loss>(record.meta); loss && loss->slot < slots.size()) {
        losses.push_back(*loss);
      }
      return;
    case RecordType::kMark:
      if (auto mark = DecodeFields<Mark>(record.meta)) marks.push_back(*std::move(mark));
      return;
    case RecordType::kCommit:
      if (const auto commit = DecodeFields<Commit>(record.meta)) {
        durable_number = std::max(durable_number, commit->number);
      }
      return;
    default:
      return;
  }
}

}  // namespace cgdebug::recording
