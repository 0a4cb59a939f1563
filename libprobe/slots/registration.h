// registration.h: turns a tensor and a probe's options into what the daemon learns about a slot.
#pragma once

#include "cgdebug/probe.h"
#include "proto/layout/ring_layout.h"

namespace cgdebug {

// The size of the tensor in bytes.
// Fails: throws ProbeError: unsupported dtype, too many dimensions, negative or overflowing sizes.
std::uint64_t CheckTensor(const std::string& probe, const TensorRef& tensor);

// Checks name, actions and tolerances.
// Fails: throws ProbeError kBadArgument.
void CheckProbe(const std::string& name, const ProbeOptions& options);

// Checks a label as the user wrote it; empty means none.
// Fails: throws ProbeError kBadArgument.
void CheckGraphLabel(const std::string& label);

// The index of the expected tensor of call `invocation`.
// Fails: throws ProbeError kBadArgument if there is none, or its dtype or shape differs.
std::size_t ExpectedIndex(const std::string& probe, const CompareAction& compare,
                          const TensorRef& tensor, std::uint32_t invocation);

// Capacity of a slot that the daemon compares others with: it may read an entry some replays late.
inline constexpr std::uint32_t kReferenceCapacity = 16;

// Whether statistics are all that the probe wants.
bool StatsAlone(const ProbeOptions& options);

// Fills in where the parts of the ring lie, from its payload and capacity.
void SetGeometry(layout::SlotRegistration* registration);

// Fills in geometry, actions and policy; the fields that only the table knows stay zero. A probe
// that wants only statistics gets a ring of statistics in the host's and the direct lane, and of
// values in the callback lane. `device_room`: how many bytes a ring in device memory may take if it
// is bounded.
layout::SlotRegistration MakeRegistration(const std::string& name, const ProbeOptions& options,
                                          const TensorRef& tensor, std::uint64_t tensor_bytes,
                                          layout::Lane lane,
                                          std::uint64_t device_room = UINT64_MAX);

// CGDEBUG_DEVICE_MIB in bytes; 0 = it is not set.
std::uint64_t DeviceRingLimit();

// CGDEBUG_WAIT_MS: how long a writer waits for room in a full ring.
std::uint32_t WaitDeadlineMs();

// Whether a slot with this registration can hold `tensor`.
bool SameTensor(const layout::SlotRegistration& registration, const TensorRef& tensor);

std::string ShapeText(const std::vector<std::int64_t>& shape);

// Why the trigger that the probe was given does nothing in this captured call; empty: it works, or
// the call is eager.
std::string WhyNoTrigger(const ProbeOptions& options, const layout::SlotRegistration& registration);

}  // namespace cgdebug
