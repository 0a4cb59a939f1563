// registration.h: from a tensor and a probe's options to what the daemon is told about a slot.
#pragma once

#include "cgdebug/probe.h"
#include "proto/layout/ring_layout.h"

namespace cgdebug {

// Bytes of the tensor.
// Fails: throws Error: unsupported dtype, too many dimensions, negative or overflowing sizes.
std::uint64_t CheckTensor(const std::string& probe, const TensorRef& tensor);

// Checks name, actions and tolerances.
// Fails: throws Error kBadArgument.
void CheckProbe(const std::string& name, const ProbeOptions& options);

// A label as the user wrote it; empty: none.
// Fails: throws Error kBadArgument.
void CheckGraphLabel(const std::string& label);

// The expected tensor of invocation `invocation`.
// Fails: throws Error kBadArgument when there is none, or its dtype or shape differs.
std::size_t ExpectedIndex(const std::string& probe, const CompareAction& compare,
                          const TensorRef& tensor, std::uint32_t invocation);

// Geometry, actions and policy; the fields that only the table knows stay zero. A probe that wants
// statistics alone gets a ring of statistics in the direct lane, of values in the others.
layout::SlotRegistration MakeRegistration(const std::string& name, const ProbeOptions& options,
                                          const TensorRef& tensor, std::uint64_t tensor_bytes,
                                          layout::Lane lane);

// How long a writer waits for room in a full ring: CGDEBUG_WAIT_MS.
std::uint32_t WaitDeadlineMs();

// Whether a slot made for the one takes the other.
bool SameTensor(const layout::SlotRegistration& registration, const TensorRef& tensor);

std::string ShapeText(const std::vector<std::int64_t>& shape);

}  // namespace cgdebug
