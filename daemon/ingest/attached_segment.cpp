#include "daemon/ingest/attached_segment.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "daemon/core/base/realtime.h"
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

// Credits are settled after this many bytes, so that producers wait no longer than it takes to
// consume them.
constexpr std::uint64_t kSettleBytes = 64u << 10;

// How much backlog one pass reads: some ten milliseconds of work. Nobody waits for the backlog.
constexpr std::uint64_t kBacklogBytes = 128u << 20;

// In a job of this age the GPU's clock can be far off. What such a job has in its rings when it is
// found is read after its first commits, which tell, or after this time.
constexpr auto kMayHaveDrifted = std::chrono::minutes(5);
constexpr auto kLongestAwait = std::chrono::milliseconds(150);

}  // namespace

AttachedSegment::AttachedSegment(std::unique_ptr<ring::SegmentView> view,
                                 const Destination& destination)
    : name_(view->name()),
      view_(std::move(view)),
      destination_(destination),
      session_(destination.registry->AddSession(pipeline::MakeSessionIdentity(
          view_->name(), view_->uuid(), view_->header(), view_->ProducerPid()))) {}

AttachedSegment::~AttachedSegment() {
  if (!alive_ || broken_) return;
  const SigbusGuard guard;
  view_->Leave();
}

Result<std::unique_ptr<AttachedSegment>> AttachedSegment::Adopt(
    std::unique_ptr<ring::SegmentView> view, const std::string& socket,
    const Destination& destination) {
  if (!view->BecomeReader(socket)) {
    const std::string other = pipeline::CleanText(view->ReaderSocket());
    return Error{"another daemon reads it" +
                 (other.empty() ? "" : ". Type: cgdebug-cli --socket '" + other + "' status")};
  }
  std::unique_ptr<AttachedSegment> segment(new AttachedSegment(std::move(view), destination));
  destination.sink->OpenSession(segment->session_);
  Log("ingest")->info("session {} ({}): pid {}, {}", segment->session_->key,
                      segment->session_->label, segment->session_->pid, segment->session_->command);
  segment->ShowToldReplica();
  segment->ScanDirectory();
  segment->Refresh();
  return segment;
}

// An earlier daemon compared replicas that are in no ring any more. NaN, Inf and mismatches are
// told of again by their slots.
void AttachedSegment::ShowToldReplica() {
  const std::string text = pipeline::CleanText(view_->FindingText(layout::FindingKind::kReplica));
  if (text.empty()) return;
  destination_.registry->SetFinding(session_, layout::FindingKind::kReplica, text);
}

std::int64_t AttachedSegment::last_timestamp_ns() const {
  std::int64_t last_ns = std::max(session_->created_ns, released_last_ns_);
  for (const SlotConsumer* slot : graph_order_) {
    last_ns = std::max(last_ns, slot->last_timestamp_ns());
  }
  return last_ns;
}

std::vector<pipeline::SkippedFile> AttachedSegment::skipped_slots() const {
  std::vector<pipeline::SkippedFile> skipped;
  if (broken_) skipped.push_back({ring::ShmPath(name()), "its shared memory was cut off"});
  for (const auto& [index, refused] : refused_) {
    skipped.push_back({ring::ShmPath(name()) + " slot " + std::to_string(index), refused.reason});
  }
  return skipped;
}

void AttachedSegment::ScanDirectory() {
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
    CloseSlot(index);
    if (readable) {
      OpenSlot(index, word);
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
}

void AttachedSegment::OpenSlot(std::uint32_t index, std::uint64_t word) {
  std::string reason;
  bool may_pass = false;
  auto ring = view_->OpenSlot(index, &reason, &may_pass);
  if (SigbusGuard::Hit()) return;
  if (!ring) {
    if (!reason.empty()) RefuseSlot(index, pipeline::CleanText(reason), may_pass);
    return;
  }
  if (ring->generation() != layout::DirectoryGeneration(word)) {
    words_[index] = 0;  // reassigned again meanwhile: the next scan opens it
    return;
  }
  std::optional<std::vector<ring::OpLogRow>> rows(std::in_place);
  if ((ring->registration().flags & layout::kSlotHoldsOpLog) != 0) {
    rows = view_->ReadOpLog(ring->registration(), &reason);
    if (SigbusGuard::Hit()) return;
    if (!ring->valid()) {
      words_[index] = 0;
      return;
    }
    if (!rows) return RefuseSlot(index, pipeline::CleanText(reason), false);
  }
  auto slot = std::make_shared<const pipeline::SlotIdentity>(
      pipeline::MakeSlotIdentity(session_, index, ring->generation(), ring->registration()));
  GpuClock* const clock = ClockOf(*slot);
  slots_[index] = std::make_unique<SlotConsumer>(std::move(slot), *std::move(ring), view_.get(),
                                                 destination_, &masks_, *rows, clock);
  slots_[index]->Start();
  view_->Accept(index);
  if (refused_.erase(index) != 0) {
    Log("ingest")->info("session {}: slot {} can be read now", session_->key, index);
  }
}

GpuClock* AttachedSegment::ClockOf(const pipeline::SlotIdentity& slot) {
  const layout::SlotFacts& registration = slot.registration;
  if (registration.lane != static_cast<std::uint8_t>(layout::Lane::kDirect)) return nullptr;
  return &clocks_.try_emplace(registration.device_index, session_->created_ns).first->second;
}

bool AttachedSegment::AwaitsClock(const SlotConsumer& slot) const {
  return !draining_ && slot.CanAwaitClock() && std::chrono::steady_clock::now() < *await_until_;
}

// Tells the slot's writer not to wait for a credit that never comes.
void AttachedSegment::RefuseSlot(std::uint32_t index, const std::string& reason, bool may_pass) {
  view_->Refuse(index);
  Refused& refused = refused_[index];
  if (refused.reason != reason) {
    Log("ingest")->warn("session {}: slot {} is skipped: {}", session_->key, index, reason);
  }
  refused = {reason, may_pass};
}

void AttachedSegment::RetryRefused() {
  if (!alive_ || broken_) return;
  for (const auto& [index, refused] : refused_) {
    if (!refused.may_pass) continue;
    words_[index] = 0;
    ever_polled_ = false;
  }
}

void AttachedSegment::CloseSlot(std::uint32_t index) {
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

void AttachedSegment::BeginPass(bool thorough, std::vector<SlotConsumer*>* ready) {
  consumed_any_ = coming_ = put_off_ = awaits_clock_ = false;
  if (!alive_ || broken_) return;
  const SigbusGuard guard;
  const std::int64_t looked_ns = std::exchange(looked_ns_, RealtimeNs());
  activity_ = view_->activity();
  if (ever_polled_ && activity_ == seen_activity_ && !thorough && !draining_) return;
  ScanDirectory();
  in_pass_ = true;
  if (!await_until_) {
    const bool may_have_drifted = AgeOf(session_->created_ns) > kMayHaveDrifted;
    await_until_ = std::chrono::steady_clock::now();
    if (may_have_drifted) *await_until_ += kLongestAwait;
  }
  for (auto& [device, clock] : clocks_) clock.BeginLook();
  for (SlotConsumer* slot : graph_order_) slot->WatchClock(looked_ns);
  std::uint64_t backlog_bytes = 0;
  const std::size_t count = graph_order_.size();
  const std::size_t begin = draining_ && count != 0 ? next_slot_ % count : 0;
  for (std::size_t i = 0; i < count; ++i) {
    SlotConsumer* slot = graph_order_[(begin + i) % count];
    if (!slot->HasWork()) continue;
    if (AwaitsClock(*slot)) {
      awaits_clock_ = true;
      continue;
    }
    if (draining_ || slot->IsReadingAgain()) {
      put_off_ |= backlog_bytes >= kBacklogBytes;
      if (put_off_) continue;
      backlog_bytes += slot->bytes_to_read();
      next_slot_ = begin + i + 1;
    }
    ready->push_back(slot);
  }
  broken_ = SigbusGuard::Hit();
}

void AttachedSegment::Commit(SlotConsumer* slot) {
  if (broken_) return;
  const SigbusGuard guard;
  consumed_any_ |= CommitOne(slot);
  broken_ = slot->cut_off() || SigbusGuard::Hit();
}

bool AttachedSegment::CommitOne(SlotConsumer* slot) {
  const SlotConsumer::Step step = slot->Commit();
  coming_ |= step == SlotConsumer::Step::kComing;
  if (step != SlotConsumer::Step::kConsumed) return false;
  if (drain_left_ > 0) --drain_left_;
  unsettled_.push_back(slot);
  unsettled_bytes_ += slot->payload_bytes();
  if (unsettled_bytes_ >= kSettleBytes) Settle();
  return true;
}

// Credits move only after the sinks have written what they gathered from many slots.
void AttachedSegment::Settle() {
  if (unsettled_.empty()) return;
  destination_.sink->Flush();
  for (SlotConsumer* slot : unsettled_) slot->Settle();
  unsettled_.clear();
  unsettled_bytes_ = 0;
}

bool AttachedSegment::EndPass() {
  if (!broken_ && !unsettled_.empty()) {
    const SigbusGuard guard;
    Settle();
    broken_ = SigbusGuard::Hit();
  }
  if (!std::exchange(in_pass_, false)) return false;
  if (draining_ && !broken_) {
    empty_passes_ = consumed_any_ ? 0 : empty_passes_ + 1;
    const bool was_whole = !put_off_ || empty_passes_ > graph_order_.size();
    const SigbusGuard guard;
    if ((was_whole && !consumed_any_) || drain_left_ == 0) EndDrained();
    return true;
  }
  if (consumed_any_ || awaits_clock_) return true;
  // The head of a ring may be visible before the entry that it announces. Look again soon, but only
  // once: a job that never finishes an entry must not keep this thread awake.
  if (coming_ && retried_activity_ != activity_) {
    retried_activity_ = activity_;
    return false;
  }
  seen_activity_ = activity_;
  ever_polled_ = true;
  return false;
}

void AttachedSegment::LookForFreezes() {
  if (!alive_ || broken_) return;
  const SigbusGuard guard;
  for (std::uint32_t device = 0; device < layout::kMaxFreezeDevices; ++device) {
    LookForFreeze(device);
  }
}

void AttachedSegment::LookForFreeze(std::uint32_t device) {
  const ring::SegmentView::Freeze freeze = view_->freeze(device);
  broken_ |= SigbusGuard::Hit();
  if (broken_ || freeze.serial == seen_freezes_[device]) return;
  ScanDirectory();
  seen_freezes_[device] = freeze.serial;
  if (view_->IsThawed(device, freeze.serial)) return;
  destination_.sink->Froze({SlotWithOrder(freeze.order), freeze.serial, freeze.replay,
                            freeze.trigger, device, freeze.live});
}

pipeline::SlotPtr AttachedSegment::SlotWithOrder(std::uint64_t order) const {
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

void AttachedSegment::Switch(const pipeline::RingSwitch& rings) {
  if (view_ == nullptr || broken_ || rings.session != session_) return;
  const SigbusGuard guard;
  if (rings.stop != 0) {
    view_->StopRings(rings.device, rings.stop);
  } else {
    view_->Thaw(rings.device, rings.thawed);
  }
  broken_ = SigbusGuard::Hit();
}

void AttachedSegment::Tell(const pipeline::JobNotice& notice) {
  const pipeline::SlotIdentity& slot = *notice.finding.slot;
  if (view_ == nullptr || broken_ || slot.session != session_) return;
  const SigbusGuard guard;
  view_->SetFinding(static_cast<layout::FindingKind>(notice.finding.kind),
                    {notice.finding.serial, slot.registration.order}, notice.text);
  broken_ = SigbusGuard::Hit();
}

void AttachedSegment::CheckProducer() {
  LookForFreezes();
  if (!alive_ || broken_ || draining_ || view_->ProducerAlive()) return;
  const SigbusGuard guard;
  ScanDirectory();
  draining_ = true;
  // A dead job can have left at most a ring full per slot, plus what is read again. A stray child
  // that goes on writing is not read for ever.
  bool has_work = false;
  for (const SlotConsumer* slot : graph_order_) {
    drain_left_ += 2 * std::uint64_t{slot->slot()->registration.capacity};
    has_work |= slot->HasWork();
  }
  broken_ |= SigbusGuard::Hit();
  if (!has_work && !broken_) EndDrained();
}

void AttachedSegment::EndDrained() {
  for (SlotConsumer* slot : graph_order_) slot->Finish();
  broken_ |= SigbusGuard::Hit();
  if (broken_) return;
  draining_ = false;
  const bool exited = view_->ProducerExitedCleanly();
  End(exited ? pipeline::SessionState::kExited : pipeline::SessionState::kDied);
  if (exited && refused_.empty()) Release();  // what was not read stays for another daemon
}

// Releases the mapping. The sinks have everything in it.
void AttachedSegment::Release() {
  if (view_ == nullptr) return;
  released_last_ns_ = last_timestamp_ns();
  ring::UnlinkSegment(name_);
  graph_order_.clear();
  slots_.clear();
  view_ = nullptr;
}

void AttachedSegment::Abandon() {
  if (!alive_) return;
  Log("ingest")->error(
      "session {} ({}): its shared memory was cut off; what was read of it stays "
      "readable, nothing new is read",
      session_->key, session_->label);
  End(pipeline::SessionState::kDied);
}

void AttachedSegment::ShowSession() {
  destination_.registry->SetSession(session_, view_->shm_bytes(), view_->step(),
                                    view_->released_unread());
  ShowNotSeen();
}

void AttachedSegment::ShowNotSeen() {
  using layout::NotSeen, layout::NotSeenKind;
  std::vector<NotSeen> all;
  if (broken_) {
    all.push_back({.kind = NotSeenKind::kCutOff, .count = 1});
  } else {
    all.push_back(view_->refused_places());
    all.push_back(view_->malformed_settings());
    all.push_back({.kind = NotSeenKind::kGivenUp, .count = view_->released_unread()});
    // While the job lives, it is about to send them.
    if (!alive_) all.push_back({.kind = NotSeenKind::kNeverSent, .count = view_->rows_in_job()});
    if (SigbusGuard::Hit()) return;  // what was read means nothing; Abandon() follows
  }
  NotSeen unreadable{.kind = NotSeenKind::kUnreadable, .count = refused_.size()};
  if (!refused_.empty()) unreadable.reason = refused_.begin()->second.reason;
  all.push_back(std::move(unreadable));
  for (NotSeen& one : all) {
    if (one.count == 0) continue;
    one.name = pipeline::CleanText(one.name);
    one.reason = pipeline::CleanText(one.reason);
    NotSeen& told = told_[one.kind];
    if (told == one) continue;
    told = one;
    destination_.sink->NotSeen(session_, one);
  }
}

void AttachedSegment::ShowGraphs() {
  ring::GraphCensus graphs = view_->Graphs();
  if (!SigbusGuard::Hit()) destination_.registry->SetGraphs(session_, std::move(graphs));
}

void AttachedSegment::End(pipeline::SessionState state) {
  alive_ = false;
  if (broken_) {
    ShowNotSeen();
  } else {
    ShowSession();
    ShowGraphs();
  }
  destination_.sink->EndSession(session_, state == pipeline::SessionState::kDied);
  Log("ingest")->info("session {} ({}) {}", session_->key, session_->label,
                      state == pipeline::SessionState::kExited ? "ended" : "died");
}

void AttachedSegment::Refresh() {
  if (!alive_ || broken_) return;
  const SigbusGuard guard;
  for (SlotConsumer* slot : graph_order_) slot->Refresh();
  ShowSession();
  broken_ = SigbusGuard::Hit();
}

void AttachedSegment::SetControl(const pipeline::ControlChange& change) {
  if (!alive_ || broken_ || change.slot->session != session_) return;
  const SigbusGuard guard;
  for (SlotConsumer* slot : graph_order_) {
    if (slot->Shows(change.slot)) slot->SetControl(change);
  }
  broken_ = SigbusGuard::Hit();
}

void AttachedSegment::Read(const pipeline::RingRequest& request, pipeline::RingContent* content) {
  if (broken_ || request.slot->session != session_) return;
  const SigbusGuard guard;
  const bool producer_alive = alive_ && !draining_;
  for (SlotConsumer* slot : graph_order_) {
    if (slot->Shows(request.slot)) *content = slot->Read(request, producer_alive);
  }
  broken_ = SigbusGuard::Hit();
  if (broken_) *content = {};
}

void AttachedSegment::AddHeads(pipeline::RingHeads* heads) {
  if (!alive_ || broken_) return;
  const SigbusGuard guard;
  ScanDirectory();
  ShowSession();
  ShowGraphs();
  pipeline::RingHeads mine;
  for (SlotConsumer* slot : graph_order_) {
    slot->Refresh();
    pipeline::RingHead head = slot->head();
    for (pipeline::SlotPtr& shown : slot->shown_slots()) {
      head.slot = std::move(shown);
      mine.push_back(head);
    }
  }
  broken_ = SigbusGuard::Hit();
  if (!broken_) heads->insert(heads->end(), mine.begin(), mine.end());
}

bool AttachedSegment::IsRead(const pipeline::RingHead& head) const {
  if (!alive_ || broken_ || head.slot->session != session_) return true;
  if (draining_) return false;  // its job is dead: the session ends when everything is read
  const std::uint32_t index = pipeline::DirectoryIndexOf(*head.slot);
  const SlotConsumer* slot = index < slots_.size() ? slots_[index].get() : nullptr;
  return slot == nullptr || !slot->Shows(head.slot) ||
         (slot->consumed() >= head.ordinal && !slot->IsReadingAgain());
}

std::uint64_t AttachedSegment::RoomWanted() const {
  if (!alive_ || broken_) return 0;
  const SigbusGuard guard;
  const std::uint64_t bytes = view_->RoomWanted();
  return SigbusGuard::Hit() ? 0 : bytes;
}

void AttachedSegment::AnswerRoom() {
  const SigbusGuard guard;
  view_->AnswerRoom();
}

void AttachedSegment::Remove() {
  if (view_ != nullptr && !view_->ProducerAlive()) ring::UnlinkSegment(name_);
  destination_.sink->ForgetSession(session_);
  Log("ingest")->info("session {} ({}) is removed", session_->key, session_->label);
}

}  // namespace cgdebug::ingest
