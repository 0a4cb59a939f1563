#include "daemon/ingest/segment_slots.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "daemon/ingest/sigbus_guard.h"
#include "daemon/log/log.h"
#include "daemon/model/text.h"

namespace cgdebug::ingest {
namespace {

// Slots of a session whose graph is gone and whose last values are still shown. Without a limit,
// jobs that capture again and again would fill the daemon.
constexpr std::size_t kMaxGivenUp = 256;
// Likewise, of the rows of their op logs, each of which keeps as much as a slot.
constexpr std::size_t kMaxGivenUpRows = 8192;
// A word of the directory takes a nanosecond or two.
constexpr auto kScanPerSlot = std::chrono::nanoseconds(20);

}  // namespace

bool SegmentSlots::ScanIfChanged() {
  if (!is_due_ && view_->host_activity() == scanned_) return true;
  const auto now = SlotWatch::Clock::now();
  if (!is_due_ && now < next_) return false;
  Scan();
  next_ = now;
  if (words_.size() >= SlotWatch::kMany) next_ += kScanPerSlot * static_cast<int>(words_.size());
  return true;
}

void SegmentSlots::Scan() {
  scanned_ = view_->host_activity();  // before the directory is read
  is_due_ = false;
  const std::uint32_t count = view_->slot_count();
  if (count > words_.size()) {
    words_.resize(count);
    slots_.resize(count);
  }
  bool changed = false;
  for (std::uint32_t index = 0; index < words_.size(); ++index) {
    const std::uint64_t word = view_->directory_word(index);
    if (word == words_[index]) continue;
    const bool same_slot =
        layout::DirectoryGeneration(word) == layout::DirectoryGeneration(words_[index]);
    const bool readable = layout::DirectoryState(word) == layout::SlotState::kLive ||
                          layout::DirectoryState(word) == layout::SlotState::kRetired;
    words_[index] = word;
    if (slots_[index] != nullptr && same_slot && readable) {
      slots_[index]->Refresh();
      continue;
    }
    changed = true;
    Close(index);
    if (readable) {
      Open(index, word);
    } else {
      refused_.erase(index);
    }
  }
  if (!changed) return;
  graph_order_.clear();
  for (const auto& slot : slots_) {
    if (slot != nullptr) graph_order_.push_back(slot.get());
  }
  std::stable_sort(graph_order_.begin(), graph_order_.end(), [](const auto* a, const auto* b) {
    return a->slot()->registration.order < b->slot()->registration.order;
  });
  watch_.SetSlots(graph_order_);
}

void SegmentSlots::Open(std::uint32_t index, std::uint64_t word) {
  std::string reason;
  bool may_pass = false;
  auto ring = view_->OpenSlot(index, &reason, &may_pass);
  if (SigbusGuard::Hit()) return;
  if (!ring) {
    if (!reason.empty()) Refuse(index, pipeline::CleanText(reason), may_pass);
    return;
  }
  if (ring->generation() != layout::DirectoryGeneration(word)) {
    words_[index] = 0;  // reassigned again meanwhile: the next scan opens it
    is_due_ = true;
    return;
  }
  std::optional<std::vector<ring::OpLogRow>> rows(std::in_place);
  if ((ring->registration().flags & layout::kSlotHoldsOpLog) != 0) {
    rows = view_->ReadOpLog(ring->registration(), &reason);
    if (SigbusGuard::Hit()) return;
    if (!ring->valid()) {
      words_[index] = 0;
      is_due_ = true;
      return;
    }
    if (!rows) return Refuse(index, pipeline::CleanText(reason), false);
  }
  auto slot = std::make_shared<const pipeline::SlotIdentity>(
      pipeline::MakeSlotIdentity(session_, index, ring->generation(), ring->registration()));
  GpuClock* const clock = ClockOf(*slot);
  slots_[index] = std::make_unique<SlotConsumer>(std::move(slot), *std::move(ring), view_,
                                                 destination_, &masks_, *rows, clock);
  slots_[index]->Start();
  view_->Accept(index);
  if (refused_.erase(index) != 0) {
    Log("ingest")->info("session {}: slot {} can be read now", session_->key, index);
  }
}

GpuClock* SegmentSlots::ClockOf(const pipeline::SlotIdentity& slot) {
  const layout::SlotFacts& registration = slot.registration;
  if (registration.lane != static_cast<std::uint8_t>(layout::Lane::kDirect)) return nullptr;
  return &clocks_.try_emplace(registration.device_index, session_->created_ns).first->second;
}

// Tells the slot's writer not to wait for a credit that never comes.
void SegmentSlots::Refuse(std::uint32_t index, const std::string& reason, bool may_pass) {
  view_->Refuse(index);
  Refused& refused = refused_[index];
  if (refused.reason != reason) {
    Log("ingest")->warn("session {}: slot {} is skipped: {}", session_->key, index, reason);
  }
  refused = {reason, may_pass};
}

bool SegmentSlots::RetryRefused() {
  bool found = false;
  for (const auto& [index, refused] : refused_) {
    if (!refused.may_pass) continue;
    words_[index] = 0;
    found = is_due_ = true;
  }
  return found;
}

void SegmentSlots::Close(std::uint32_t index) {
  if (slots_[index] == nullptr) return;
  slots_[index]->GiveUp();
  given_up_.push_back(slots_[index]->shown_slots());
  given_up_count_ += given_up_.back().size();
  slots_[index] = nullptr;
  while (given_up_.size() > kMaxGivenUp ||
         (given_up_count_ > kMaxGivenUpRows && given_up_.size() > 1)) {
    for (const pipeline::SlotPtr& slot : given_up_.front()) destination_.sink->ForgetSlot(slot);
    given_up_count_ -= given_up_.front().size();
    given_up_.pop_front();
  }
}

void SegmentSlots::Clear() {
  graph_order_.clear();
  watch_.SetSlots({});
  slots_.clear();
}

pipeline::SlotPtr SegmentSlots::WithOrder(std::uint64_t order) const {
  for (const SlotConsumer* slot : graph_order_) {
    if (slot->slot()->registration.order == order) return slot->slot();
  }
  for (const std::vector<pipeline::SlotPtr>& slots : given_up_) {
    for (const pipeline::SlotPtr& slot : slots) {
      if (slot->registration.order == order) return slot;
    }
  }
  auto unknown = std::make_shared<pipeline::SlotIdentity>();
  unknown->session = session_;
  unknown->registration.order = order;
  return unknown;
}

}  // namespace cgdebug::ingest
