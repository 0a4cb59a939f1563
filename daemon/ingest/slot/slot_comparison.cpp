#include "daemon/ingest/slot/slot_comparison.h"

#include <memory>
#include <new>
#include <string>
#include <utility>

#include "daemon/core/base/terminate.h"
#include "daemon/ingest/sigbus_guard.h"

namespace cgdebug::ingest {

using ring::ReadStatus;

void SlotComparison::Start(std::uint64_t consumed) {
  if (WithOther()) {
    OpenOther();
  } else if (WithFirst()) {
    FindFirst(consumed);
  } else if (slot_->Has(layout::kActionCompare)) {
    expected_ = ReadExpected();
  }
}

Result<std::vector<std::byte>> SlotComparison::ReadExpected() const {
  std::string reason;
  std::optional<std::vector<std::byte>> expected;
  try {
    const MayRunOutOfMemory large;
    expected = view_->ReadExpected(slot_->registration, &reason);
  } catch (const std::bad_alloc&) {
    reason = "the daemon has no memory for it";
  }
  if (SigbusGuard::Hit()) return Error{"its shared memory was cut off"};
  if (!expected) return Error{reason};
  return *std::move(expected);
}

Result<void> SlotComparison::CanCompare() const {
  if (expected_ && !expected_->ok()) return expected_->error();
  return {};
}

// An earlier daemon had it. Its memory is gone, but the ring may have the entry still.
void SlotComparison::FindFirst(std::uint64_t consumed) {
  if (consumed == 0) return;
  ring::Entry entry;
  bool has_values = false;
  try {
    const MayRunOutOfMemory large;
    constexpr std::uint32_t kWithoutValues = layout::kEntryIsStats | layout::kEntryDropValues;
    has_values = ring_->Read(1, &entry) == ReadStatus::kOk && (entry.flags & kWithoutValues) == 0;
  } catch (const std::bad_alloc&) {
  }
  if (has_values && !SigbusGuard::Hit()) {
    expected_ = std::move(entry.payload);
  } else {
    expected_ = Error{
        "the daemon that had its first snapshot, with which the others are compared, "
        "is gone. Capture the graph again"};
  }
}

void SlotComparison::TakeFirst(const ring::Entry& entry, const pipeline::StoredSnapshot& made) {
  if (entry.ordinal != 1) {
    expected_ = Error{
        "its first snapshot, with which the others are compared, was lost before the "
        "daemon could read it. Give the probe more room with "
        "TensorRecord(capacity=...)"};
  } else if (made.payload == nullptr) {
    expected_ = Error{
        "its first snapshot, with which the others are compared, came without its "
        "values: the probe was turned down to statistics (cgdebug-cli set)"};
  } else {
    expected_ = *made.payload;
  }
}

void SlotComparison::OpenOther() {
  const layout::SlotFacts& registration = slot_->registration;
  std::string ignored;
  if (registration.reference_index >= view_->slot_count()) return;
  other_ = view_->OpenSlot(registration.reference_index, &ignored);
  if (other_ && other_->registration().order != registration.reference_order) other_.reset();
}

// The GPU has compared the values with those of the other probe, which may not have left it.
Result<numerics::CompareResult> SlotComparison::ByDevice(const ring::Entry& entry) const {
  const layout::SlotFacts& registration = slot_->registration;
  numerics::CompareResult result;
  result.ok = (entry.flags & layout::kEntryDiffers) == 0;
  if (result.ok) return result;
  const std::optional<layout::SlotFailure> failure = ring_->failure();
  if (!failure || failure->replay != entry.replay) {
    result.text.lines = "The tensor differs from that of the other probe, as in an earlier replay";
    return result;
  }
  const numerics::CompareOptions options = {
      .rtol = registration.compare_rtol,
      .atol = registration.compare_atol,
      .bitwise = (registration.flags & layout::kCompareBitwise) != 0};
  Result<numerics::MismatchText> text =
      numerics::FailureText(slot_->dtype, slot_->shape, options, *failure);
  if (!text.ok()) return text.error();
  result.mismatched = failure->mismatched;
  result.text = *std::move(text);
  return result;
}

pipeline::ComparisonPtr SlotComparison::CompareWithOther(const ring::Entry& entry,
                                                         std::span<const std::byte> values) const {
  using Compared = Result<numerics::CompareResult>;
  if ((slot_->registration.flags & layout::kSlotComparesOnDevice) != 0) {
    return std::make_shared<const Compared>(ByDevice(entry));
  }
  const bool eager = slot_->registration.graph_id == 0;
  ring::Entry others;
  const std::uint64_t ordinal = !other_ ? 0
                                : eager ? entry.reference
                                        : other_->FindReplay(entry.replay, std::nullopt);
  if (ordinal == 0 || other_->Read(ordinal, &others) != ReadStatus::kOk ||
      others.payload.size() != values.size()) {
    return std::make_shared<const Compared>(
        Error{"the probe that it is compared with has no values of replay " +
              std::to_string(entry.replay) +
              ": it did not keep them (every, cgdebug-cli set), is closed, or overwrote them"});
  }
  return pipeline::CompareWithExpected(*slot_, values, others.payload);
}

pipeline::ComparisonPtr SlotComparison::Compare(const ring::Entry& entry,
                                                const pipeline::StoredSnapshot& made) {
  const layout::SlotFacts& registration = slot_->registration;
  if (WithFirst() && !expected_) TakeFirst(entry, made);
  if (!expected_ && !WithOther()) return nullptr;
  if (WithFirst() && entry.ordinal == 1) return nullptr;
  const auto& [snapshot, payload] = made;
  if (payload == nullptr) return nullptr;
  if (!WithOther() && !expected_->ok()) {
    if (!WithFirst()) return nullptr;
    return std::make_shared<const Result<numerics::CompareResult>>(expected_->error());
  }
  if (!snapshot->forced && !layout::Wants(registration.compare_every, snapshot->replay)) {
    return nullptr;
  }
  if (WithOther()) return CompareWithOther(entry, *payload);
  return pipeline::CompareWithExpected(*slot_, *payload, **expected_);
}

}  // namespace cgdebug::ingest
