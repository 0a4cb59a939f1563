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
          view_->name(), view_->uuid(), view_->header(), view_->ProducerPid()))),
      slots_(view_.get(), destination, session_) {}

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
  segment->slots_.Scan();
  segment->Refresh();
  return segment;
}

// An earlier daemon compared replicas that are in no ring any more. NaN, Inf and mismatches are
// told of again by their slots.
void AttachedSegment::ShowToldReplica() {
  const std::string text =
      pipeline::CleanText(view_->findings().Read(layout::FindingKind::kReplica));
  if (text.empty()) return;
  destination_.registry->SetFinding(session_, layout::FindingKind::kReplica, text);
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

bool AttachedSegment::AwaitsClock(const SlotConsumer& slot) const {
  return !drain_.is_on && slot.CanAwaitClock() && std::chrono::steady_clock::now() < *await_until_;
}

void AttachedSegment::RetryRefused() {
  if (alive_ && !broken_ && slots_.RetryRefused()) pass_.ever_polled = false;
}

void AttachedSegment::BeginPass(bool thorough, std::vector<SlotConsumer*>* ready) {
  pass_.Begin();
  if (!alive_ || broken_) return;
  const SigbusGuard guard;
  const std::int64_t looked_ns = std::exchange(pass_.looked_ns, RealtimeNs());
  const std::uint64_t last_activity = std::exchange(pass_.activity, view_->activity());
  if (pass_.ever_polled && pass_.activity == pass_.seen_activity && !thorough && !drain_.is_on)
    return;
  if (thorough || drain_.is_on) {
    slots_.Scan();
  } else {
    pass_.unscanned = !slots_.ScanIfChanged();
  }
  pass_.is_open = true;
  if (!await_until_) {
    const bool may_have_drifted = AgeOf(session_->created_ns) > kMayHaveDrifted;
    await_until_ = std::chrono::steady_clock::now();
    if (may_have_drifted) *await_until_ += kLongestAwait;
  }
  for (auto& [device, clock] : slots_.clocks()) clock.BeginLook();
  std::uint64_t backlog_bytes = 0;
  for (SlotConsumer* slot : FindWork(thorough, looked_ns, pass_.activity != last_activity)) {
    if (AwaitsClock(*slot)) {
      pass_.awaits_clock = true;
      continue;
    }
    if (drain_.is_on || slot->IsReadingAgain()) {
      pass_.put_off |= backlog_bytes >= kBacklogBytes;
      if (pass_.put_off) continue;
      backlog_bytes += slot->bytes_to_read();
      drain_.last_order = slot->slot()->registration.order;
    }
    ready->push_back(slot);
  }
  broken_ = SigbusGuard::Hit();
}

// What a dead job left is read from where the pass before stopped.
const std::vector<SlotConsumer*>& AttachedSegment::FindWork(bool all, std::int64_t looked_ns,
                                                            bool is_active) {
  found_.clear();
  slots_.watch().Look({std::chrono::steady_clock::now(), pass_.looked_ns, looked_ns, is_active},
                      all || drain_.is_on, &found_);
  if (drain_.is_on) {
    const auto is_after = [](std::uint64_t order, const SlotConsumer* slot) {
      return order < slot->slot()->registration.order;
    };
    const auto next = std::upper_bound(found_.begin(), found_.end(), drain_.last_order, is_after);
    std::rotate(found_.begin(), next, found_.end());
  }
  return found_;
}

void AttachedSegment::Commit(SlotConsumer* slot) {
  if (broken_) return;
  const SigbusGuard guard;
  pass_.consumed_any |= CommitOne(slot);
  broken_ = slot->cut_off() || SigbusGuard::Hit();
}

bool AttachedSegment::CommitOne(SlotConsumer* slot) {
  const SlotConsumer::Step step = slot->Commit();
  pass_.coming |= step == SlotConsumer::Step::kComing;
  if (step != SlotConsumer::Step::kConsumed) return false;
  if (drain_.left > 0) --drain_.left;
  unsettled_.slots.push_back(slot);
  unsettled_.bytes += slot->payload_bytes();
  if (unsettled_.bytes >= kSettleBytes) Settle();
  return true;
}

// Credits move only after the sinks have written what they gathered from many slots.
void AttachedSegment::Settle() {
  if (unsettled_.slots.empty()) return;
  destination_.sink->Flush();
  for (SlotConsumer* slot : unsettled_.slots) slot->Settle();
  unsettled_.slots.clear();
  unsettled_.bytes = 0;
}

bool AttachedSegment::EndPass() {
  if (!broken_ && !unsettled_.slots.empty()) {
    const SigbusGuard guard;
    Settle();
    broken_ = SigbusGuard::Hit();
  }
  if (!std::exchange(pass_.is_open, false)) return false;
  if (drain_.is_on && !broken_) {
    drain_.empty_passes = pass_.consumed_any ? 0 : drain_.empty_passes + 1;
    const bool was_whole = !pass_.put_off || drain_.empty_passes > slots_.all().size();
    const SigbusGuard guard;
    if ((was_whole && !pass_.consumed_any) || drain_.left == 0) EndDrained();
    return true;
  }
  if (pass_.consumed_any || pass_.awaits_clock) return true;
  // The head of a ring may be visible before the entry that it announces. Look again soon, but only
  // once: a job that never finishes an entry must not keep this thread awake.
  if (pass_.coming && pass_.retried_activity != pass_.activity) {
    pass_.retried_activity = pass_.activity;
    return false;
  }
  if (pass_.unscanned || !slots_.watch().HasSeenAll()) return false;
  pass_.seen_activity = pass_.activity;
  pass_.ever_polled = true;
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
  const ring::Freeze freeze = view_->freezes().Last(device);
  broken_ |= SigbusGuard::Hit();
  if (broken_ || freeze.serial == seen_freezes_[device]) return;
  slots_.Scan();
  seen_freezes_[device] = freeze.serial;
  if (view_->freezes().IsThawed(device, freeze.serial)) return;
  destination_.sink->Froze({slots_.WithOrder(freeze.order), freeze.serial, freeze.replay,
                            freeze.trigger, device, freeze.live});
}

void AttachedSegment::Switch(const pipeline::RingSwitch& rings) {
  if (view_ == nullptr || broken_ || rings.session != session_) return;
  const SigbusGuard guard;
  if (rings.stop != 0) {
    view_->freezes().Stop(rings.device, rings.stop);
  } else {
    view_->freezes().Thaw(rings.device, rings.thawed);
  }
  broken_ = SigbusGuard::Hit();
}

void AttachedSegment::Tell(const pipeline::JobNotice& notice) {
  const pipeline::SlotIdentity& slot = *notice.finding.slot;
  if (view_ == nullptr || broken_ || slot.session != session_) return;
  const SigbusGuard guard;
  view_->findings().Set(notice.finding.kind, {notice.finding.serial, slot.registration.order},
                        notice.text);
  broken_ = SigbusGuard::Hit();
}

void AttachedSegment::CheckProducer() {
  LookForFreezes();
  if (!alive_ || broken_ || drain_.is_on || view_->ProducerAlive()) return;
  const SigbusGuard guard;
  slots_.Scan();
  drain_.is_on = true;
  // A dead job can have left at most a ring full per slot, plus what is read again. A stray child
  // that goes on writing is not read for ever.
  bool has_work = false;
  for (const SlotConsumer* slot : slots_.all()) {
    drain_.left += 2 * std::uint64_t{slot->slot()->registration.capacity};
    has_work |= slot->HasWork();
  }
  broken_ |= SigbusGuard::Hit();
  if (!has_work && !broken_) EndDrained();
}

void AttachedSegment::EndDrained() {
  for (SlotConsumer* slot : slots_.all()) slot->Finish();
  broken_ |= SigbusGuard::Hit();
  if (broken_) return;
  drain_.is_on = false;
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

void AttachedSegment::ShowSession() {
  destination_.registry->SetSession(session_, {.shm_bytes = view_->shm_bytes(),
                                               .device_bytes = view_->device_bytes(),
                                               .step = view_->step(),
                                               .released_unread = view_->released_unread()});
  ShowNotSeen();
}

void AttachedSegment::ShowNotSeen() {
  using layout::NotSeen, layout::NotSeenKind;
  std::vector<NotSeen> all;
  if (broken_) {
    all.push_back({.kind = NotSeenKind::kCutOff, .count = 1});
  } else {
    all.push_back(view_->account().refused_places());
    all.push_back(view_->account().malformed_settings());
    all.push_back({.kind = NotSeenKind::kGivenUp, .count = view_->released_unread()});
    // While the job lives, it is about to send them.
    if (!alive_)
      all.push_back({.kind = NotSeenKind::kNeverSent, .count = view_->account().rows_in_job()});
    if (SigbusGuard::Hit()) return;  // what was read means nothing; Abandon() follows
  }
  NotSeen unreadable{.kind = NotSeenKind::kUnreadable, .count = slots_.refused().size()};
  if (!slots_.refused().empty()) unreadable.reason = slots_.refused().begin()->second.reason;
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
  for (SlotConsumer* slot : slots_.all()) slot->Refresh();
  ShowSession();
  broken_ = SigbusGuard::Hit();
}

void AttachedSegment::RefreshSome(std::size_t count) {
  if (!alive_ || broken_) return;
  const SigbusGuard guard;
  const std::vector<SlotConsumer*>& slots = slots_.all();
  for (std::size_t left = std::min(count, slots.size()); left > 0; --left) {
    if (next_refresh_ >= slots.size()) next_refresh_ = 0;
    slots[next_refresh_++]->Refresh();
  }
  ShowSession();
  broken_ = SigbusGuard::Hit();
}

void AttachedSegment::SetControl(const pipeline::ControlChange& change) {
  if (!alive_ || broken_ || change.slot->session != session_) return;
  const SigbusGuard guard;
  SlotConsumer* const slot = slots_.At(pipeline::DirectoryIndexOf(*change.slot));
  if (slot != nullptr && slot->Shows(change.slot)) slot->SetControl(change);
  broken_ = SigbusGuard::Hit();
}

void AttachedSegment::Read(const pipeline::RingRequest& request, pipeline::RingContent* content) {
  if (broken_ || request.slot->session != session_) return;
  const SigbusGuard guard;
  const bool producer_alive = alive_ && !drain_.is_on;
  SlotConsumer* const slot = slots_.At(pipeline::DirectoryIndexOf(*request.slot));
  if (slot != nullptr && slot->Shows(request.slot)) *content = slot->Read(request, producer_alive);
  broken_ = SigbusGuard::Hit();
  if (broken_) *content = {};
}

void AttachedSegment::AddHeads(pipeline::RingHeads* heads) {
  if (!alive_ || broken_) return;
  const SigbusGuard guard;
  slots_.Scan();
  ShowSession();
  ShowGraphs();
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
  const std::uint64_t more = drain_.is_on ? 1 : 0;
  const SlotConsumer* slot = slots_.At(pipeline::DirectoryIndexOf(*head.slot));
  if (slot == nullptr || !slot->Shows(head.slot)) return more;
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
