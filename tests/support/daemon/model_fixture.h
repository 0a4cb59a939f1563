// model_fixture.h: sessions, slots and snapshots without a segment.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "daemon/core/numerics/stats.h"
#include "daemon/core/numerics/tensor_view.h"
#include "daemon/pipeline/sink.h"

namespace cgdebug::test {

inline pipeline::SessionIdentity MakeIdentity(const std::string& uuid_begin,
                                              const std::string& run_id = "run",
                                              std::int64_t created_ns = 1) {
  pipeline::SessionIdentity identity;
  identity.uuid = uuid_begin + std::string(32 - uuid_begin.size(), '0');
  identity.key = uuid_begin;
  identity.run_id = run_id;
  identity.label = run_id;
  identity.pid = 1;
  identity.created_ns = created_ns;
  return identity;
}

inline pipeline::SessionPtr MakeSession(const std::string& uuid_begin) {
  return std::make_shared<const pipeline::SessionIdentity>(MakeIdentity(uuid_begin));
}

// A float32 slot of `elements`.
inline pipeline::SlotIdentity MakeSlotIdentity(pipeline::SessionPtr session,
                                               const std::string& name, std::uint64_t order,
                                               std::uint64_t elements = 2) {
  layout::SlotRegistration registration = {};
  registration.probe_id = order;
  registration.order = order;
  registration.dtype = static_cast<std::uint16_t>(layout::Dtype::kFloat32);
  registration.dims = 1;
  registration.shape[0] = elements;
  registration.payload_bytes = elements * sizeof(float);
  registration.capacity = 2;
  registration.compare_rtol = 1e-5;
  std::strncpy(registration.name, name.c_str(), layout::kMaxNameBytes);
  return pipeline::MakeSlotIdentity(std::move(session), static_cast<std::uint32_t>(order), 1,
                                    registration);
}

inline pipeline::SlotPtr MakeSlot(pipeline::SessionPtr session, const std::string& name,
                                  std::uint64_t order) {
  return std::make_shared<const pipeline::SlotIdentity>(
      MakeSlotIdentity(std::move(session), name, order));
}

inline std::vector<std::byte> Bytes(const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

inline pipeline::Delivery MakeDelivery(const pipeline::SlotPtr& slot, std::uint64_t replay,
                                       const std::vector<float>& values) {
  const auto payload = std::make_shared<const std::vector<std::byte>>(Bytes(values));
  auto snapshot = std::make_shared<pipeline::Snapshot>();
  snapshot->slot = slot;
  snapshot->ordinal = replay;
  snapshot->replay = replay;
  snapshot->timestamp_ns = static_cast<std::int64_t>(replay);
  snapshot->stats =
      numerics::ComputeStats(*numerics::MakeTensorView(slot->dtype, slot->shape, *payload));
  return {std::move(snapshot), payload, false};
}

// What a sink told the producer.
class FakeFeedback final : public pipeline::SlotFeedback {
 public:
  layout::Verdict verdict() override { return shared; }
  void SetVerdict(const layout::Verdict& verdict) override { shared = verdict; }
  Result<void> CanCompare() override {
    if (expected.empty()) return Error{"names an impossible extent"};
    return {};
  }
  std::uint64_t consumed_before() const override { return consumed; }
  std::uint64_t suppressed() const override { return kept_back; }
  void AddPrinted(std::uint64_t lines, std::uint64_t on_terminal) override {
    printed += lines;
    shown += on_terminal;
  }

  layout::Verdict shared;
  std::uint64_t consumed = 0;  // by daemons before this one
  std::vector<std::byte> expected;
  std::uint64_t printed = 0;
  std::uint64_t shown = 0;
  std::uint64_t kept_back = 0;  // by the live control
};

}  // namespace cgdebug::test
