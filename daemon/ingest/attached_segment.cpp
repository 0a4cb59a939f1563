#include "daemon/ingest/attached_segment.h"

#include <algorithm>
#include <utility>

#include "daemon/ingest/sigbus_guard.h"
#include "daemon/log/log.h"
#include "daemon/model/text.h"

namespace cgdebug::ingest {

AttachedSegment::AttachedSegment(std::unique_ptr<ring::SegmentView> view,
                                 const Destination& destination)
    : name_(view->name()),
      view_(std::move(view)),
      destination_(destination),
      session_(destination.registry->AddSession(pipeline::MakeSessionIdentity(
          view_->name(), view_->uuid(), view_->header(), view_->ProducerPid()))),
      slots_(view_.get(), destination, session_),
      passes_(view_.get(), &slots_, destination.sink, session_->created_ns),
      shown_(view_.get(), &slots_, destination, session_) {}

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
  segment->shown_.ShowToldReplica();
  segment->slots_.Scan();
  segment->Refresh();
  return segment;
}

std::int64_t AttachedSegment::last_timestamp_ns() const {
  std::int64_t last_ns = std::max(session_->created_ns, released_last_ns_);
  for (const SlotConsumer* slot : slots_.all()) {
    last_ns = std::max(last_ns, slot->last_timestamp_ns());
  }
  return last_ns;
}

std::vector<pipeline::SkippedFile> AttachedSegment::skipped_slots() const {
  std::vector<pipeline::SkippedFile> skipped;
  if (broken_) skipped.push_back({ring::ShmPath(name()), "its shared memory was cut off"});
  for (const auto& [index, refused] : slots_.refused()) {
    skipped.push_back({ring::ShmPath(name()) + " slot " + std::to_string(index), refused.reason});
  }
  return skipped;
}

void AttachedSegment::RetryRefused() {
  if (alive_ && !broken_ && slots_.RetryRefused()) passes_.LookAgain();
}

void AttachedSegment::BeginPass(bool thorough, std::vector<SlotConsumer*>* ready) {
  if (!alive_ || broken_) return;
  const SigbusGuard guard(&broken_);
  passes_.Begin(thorough, ready);
}

void AttachedSegment::Commit(SlotConsumer* slot) {
  if (broken_) return;
  const SigbusGuard guard(&broken_);
  passes_.Commit(slot);
  broken_ = slot->cut_off();
}

bool AttachedSegment::EndPass() {
  if (!broken_) {
    const SigbusGuard guard(&broken_);
    passes_.Settle();
  }
  const bool any = passes_.End();
  if (passes_.drained() && !broken_) {
    const SigbusGuard guard;
    EndDrained();
  }
  return any;
}

void AttachedSegment::LookForFreezes() {
  if (!alive_ || broken_) return;
  const SigbusGuard guard;
  for (std::uint32_t device = 0; device < layout::kMaxFreezeDevices; ++device) {
    const ring::Freeze freeze = view_->freezes().Last(device);
    broken_ |= SigbusGuard::Hit();
    if (broken_ || freeze.serial == seen_freezes_[device]) continue;
    slots_.Scan();
    seen_freezes_[device] = freeze.serial;
    if (view_->freezes().IsThawed(device, freeze.serial)) continue;
    destination_.sink->Froze({slots_.WithOrder(freeze.order), freeze.serial, freeze.replay,
                              freeze.trigger, device, freeze.live});
  }
}

void AttachedSegment::Switch(const pipeline::RingSwitch& rings) {
  if (view_ == nullptr || broken_ || rings.session != session_) return;
  const SigbusGuard guard(&broken_);
  if (rings.stop != 0) {
    view_->freezes().Stop(rings.device, rings.stop);
  } else {
    view_->freezes().Thaw(rings.device, rings.thawed);
  }
}

void AttachedSegment::Tell(const pipeline::JobNotice& notice) {
  const pipeline::SlotIdentity& slot = *notice.finding.slot;
  if (view_ == nullptr || broken_ || slot.session != session_) return;
  const SigbusGuard guard(&broken_);
  view_->findings().Set(notice.finding.kind, {notice.finding.serial, slot.registration.order},
                        notice.text);
}

void AttachedSegment::CheckProducer() {
  LookForFreezes();
  if (!alive_ || broken_ || draining() || view_->ProducerAlive()) return;
  const SigbusGuard guard;
  const bool has_work = passes_.BeginDrain();
  broken_ |= SigbusGuard::Hit();
  if (!has_work && !broken_) EndDrained();
}

void AttachedSegment::EndDrained() {
  for (SlotConsumer* slot : slots_.all()) slot->Finish();
  broken_ |= SigbusGuard::Hit();
  if (broken_) return;
  passes_.EndDrain();
  const bool exited = view_->ProducerExitedCleanly();
  End(exited ? pipeline::SessionState::kExited : pipeline::SessionState::kDied);
  if (exited && slots_.refused().empty()) Release();  // what was not read stays for another daemon
}

// Releases the mapping. The sinks have everything in it.
void AttachedSegment::Release() {
  if (view_ == nullptr) return;
  released_last_ns_ = last_timestamp_ns();
  ring::UnlinkSegment(name_);
  slots_.Clear();
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

void AttachedSegment::End(pipeline::SessionState state) {
  alive_ = false;
  if (broken_) {
    shown_.ShowCutOff();
  } else {
    shown_.Show(alive_);
    shown_.ShowGraphs();
  }
  destination_.sink->EndSession(session_, state == pipeline::SessionState::kDied);
  Log("ingest")->info("session {} ({}) {}", session_->key, session_->label,
                      state == pipeline::SessionState::kExited ? "ended" : "died");
}

void AttachedSegment::Refresh(std::size_t count) {
  if (!alive_ || broken_) return;
  const SigbusGuard guard(&broken_);
  const std::vector<SlotConsumer*>& slots = slots_.all();
  for (std::size_t left = std::min(count, slots.size()); left > 0; --left) {
    if (next_refresh_ >= slots.size()) next_refresh_ = 0;
    slots[next_refresh_++]->Refresh();
  }
  shown_.Show(alive_);
}

void AttachedSegment::SetControl(const pipeline::ControlChange& change) {
  if (!alive_ || broken_ || change.slot->session != session_) return;
  const SigbusGuard guard(&broken_);
  if (SlotConsumer* const slot = slots_.ThatShows(change.slot)) slot->SetControl(change);
}

void AttachedSegment::Read(const pipeline::RingRequest& request, pipeline::RingContent* content) {
  if (broken_ || request.slot->session != session_) return;
  const SigbusGuard guard;
  const bool producer_alive = alive_ && !draining();
  SlotConsumer* const slot = slots_.ThatShows(request.slot);
  if (slot != nullptr) *content = slot->Read(request, producer_alive);
  broken_ = SigbusGuard::Hit();
  if (broken_) *content = {};
}

void AttachedSegment::AddHeads(pipeline::RingHeads* heads) {
  if (!alive_ || broken_) return;
  const SigbusGuard guard;
  slots_.Scan();
  shown_.Show(alive_);
  shown_.ShowGraphs();
  pipeline::RingHeads mine;
  for (SlotConsumer* slot : slots_.all()) {
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

std::uint64_t AttachedSegment::Unread(const pipeline::RingHead& head) const {
  if (!alive_ || broken_ || head.slot->session != session_) return 0;
  const std::uint64_t more = draining() ? 1 : 0;
  const SlotConsumer* slot = slots_.ThatShows(head.slot);
  if (slot == nullptr) return more;
  const std::uint64_t consumed = std::min(slot->consumed(), head.ordinal);
  return more + head.ordinal - consumed + (slot->IsReadingAgain() ? 1 : 0);
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
