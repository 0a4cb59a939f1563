#include "daemon/ingest/ingest_loop.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "daemon/core/base/realtime.h"
#include "daemon/core/endpoint/daemon_mark.h"
#include "daemon/ingest/sigbus_guard.h"
#include "daemon/log/log.h"

namespace cgdebug::ingest {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr auto kSpin = microseconds(20);
constexpr nanoseconds kFirstNap = microseconds(50);
constexpr nanoseconds kLongestNap = milliseconds(1);
constexpr nanoseconds kLongestQuietNap = milliseconds(20);
constexpr auto kQuietAfter = std::chrono::seconds(1);
constexpr auto kRescan = milliseconds(500);
constexpr auto kCheck = milliseconds(20);     // how often producers' locks are looked at
constexpr auto kThorough = milliseconds(20);  // how often every slot is looked at
constexpr auto kRefresh = milliseconds(100);  // of counters of slots that have nothing new
constexpr auto kPerSlot = microseconds(50);   // with many slots less often: at most 1 % of a core
constexpr std::size_t kRefreshed = kRefresh / kPerSlot;  // slots at a time
constexpr unsigned long kTimerSlackNs = 5'000;
// Payloads of this size are worth waking another thread for.
constexpr std::uint64_t kLarge = 128u << 10;
constexpr auto kLongestStart = std::chrono::seconds(2);  // how long answers wait for jobs found
// How long for jobs that never pause. A segment may wait 150 ms of it for its GPU's clock.
constexpr auto kCatchUp = milliseconds(350);

// Descriptors kept for clients: a daemon without any could not be asked why it reads nothing.
constexpr rlim_t kDescriptorsForClients = 32;

// A new descriptor has the lowest number that is free.
bool IsAmongTheLast(int fd) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  const rlim_t kept = std::min(kDescriptorsForClients, limit.rlim_cur / 4);
  return static_cast<rlim_t>(fd) >= limit.rlim_cur - kept;
}

}  // namespace

IngestLoop::IngestLoop(const IngestOptions& options, const Destination& destination)
    : options_(options),
      destination_(destination),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      segments_(options.keep_dead),
      pool_(options.workers) {}

IngestLoop::~IngestLoop() { Stop(); }

void IngestLoop::Start() {
  SigbusGuard::Install();
  thread_ = std::thread([this] { Run(); });
  caught_up_.get_future().wait_for(kLongestStart);
}

void IngestLoop::Stop() {
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

void IngestLoop::Run() {
  pthread_setname_np(pthread_self(), "cgdebug-ingest");
  prctl(PR_SET_TIMERSLACK, kTimerSlackNs, 0, 0, 0);
  if (!mark_.Hold()) {
    Log("ingest")->warn("jobs that end before they are found leave nothing behind: cannot mark {}",
                        layout::kShmDirectory);
  }
  watcher_ = std::make_unique<SegmentWatcher>();
  next_scan_ = next_check_ = next_thorough_ = next_refresh_ = last_work_ = Clock::now();
  std::optional<Clock::time_point> catch_up_until;
  bool caught_up = false;
  while (!stopping_) {
    if (Clock::now() >= next_scan_) FindSegments();
    ServeRequests();
    const bool any = ReadNew();
    if (Clock::now() >= next_check_) Check();
    if (Clock::now() >= next_refresh_) Refresh();
    if (!catch_up_until) catch_up_until = Clock::now() + kCatchUp;
    if (!caught_up && (!any || Clock::now() >= *catch_up_until)) {
      caught_up_.set_value();
      caught_up = true;
    }
    Wait(any);
  }
  destination_.reads->End();
  destination_.sink->Flush();
  mark_.Drop();
  segments_.all().clear();  // gives the readers' locks back
  watcher_ = nullptr;
}

// What clients and the daemon's other threads ask for.
void IngestLoop::ServeRequests() {
  for (const pipeline::ControlChange& change : destination_.controls->Take()) {
    for (KeptSegment& segment : segments_.all()) segment.attached->SetControl(change);
  }
  for (const pipeline::RingSwitch& rings : destination_.controls->TakeSwitches()) {
    for (KeptSegment& segment : segments_.all()) segment.attached->Switch(rings);
  }
  for (const pipeline::JobNotice& notice : destination_.controls->TakeNotices()) {
    for (KeptSegment& segment : segments_.all()) segment.attached->Tell(notice);
  }
  destination_.reads->Serve(
      [this](const pipeline::RingRequest& request) {
        pipeline::RingContent content;
        for (KeptSegment& segment : segments_.all()) segment.attached->Read(request, &content);
        return content;
      },
      [this] { return Heads(); });
  if (destination_.controls->TakePrune()) segments_.Prune();
}

// Returns whether any snapshot came.
bool IngestLoop::ReadNew() {
  const bool thorough = Clock::now() >= next_thorough_;
  const bool any = PollAll(thorough);
  destination_.reads->Settle([this](const pipeline::RingHead& head) {
    std::uint64_t unread = 0;
    for (const KeptSegment& segment : segments_.all()) unread += segment.attached->Unread(head);
    return unread;
  });
  if (thorough) {
    next_thorough_ = Clock::now() + std::max<nanoseconds>(kThorough, kPerSlot * LiveSlots());
  }
  return any;
}

void IngestLoop::Check() {
  for (KeptSegment& segment : segments_.all()) segments_.Check(&segment);
  segments_.RemoveExpired();
  segments_.ServeRoomRequests();
  destination_.sink->Tick();
  next_check_ = Clock::now() + kCheck;
}

void IngestLoop::Refresh() {
  const std::size_t slots = LiveSlots();
  for (KeptSegment& segment : segments_.all()) {
    const std::size_t share = segment.attached->slot_count() * kRefreshed;
    segment.attached->Refresh(slots <= kRefreshed ? share : share / slots + 1);
  }
  next_refresh_ = Clock::now() + kRefresh;
}

void IngestLoop::FindSegments() {
  for (const std::string& name : watcher_->Scan()) {
    if (!segments_.Has(name)) TryAttach(name);
  }
  for (KeptSegment& segment : segments_.all()) segment.attached->RetryRefused();
  segments_.Limit();
  ShowSkipped();
  next_scan_ = Clock::now() + kRescan;
}

// The heads of every slot that existed before the call, so that the caller misses nothing.
pipeline::RingHeads IngestLoop::Heads() {
  FindSegments();
  pipeline::RingHeads heads;
  for (KeptSegment& segment : segments_.all()) {
    segments_.Check(&segment);
    segment.attached->AddHeads(&heads);
  }
  return heads;
}

void IngestLoop::TryAttach(const std::string& name) {
  const SigbusGuard guard;
  std::string reason;
  bool may_pass = false;
  auto view = ring::SegmentView::Attach(name, &reason, &may_pass);
  if (SigbusGuard::Hit()) reason = "its shared memory was cut off";
  if (view == nullptr || SigbusGuard::Hit()) return watcher_->Refuse(name, reason, may_pass);
  if (IsAmongTheLast(view->fd())) {
    return watcher_->Refuse(name,
                            "the daemon has too many open files. Type: cgdebug-cli daemon stop "
                            "--force; ulimit -n 65536; cgdebug-cli daemon start",
                            true);
  }
  const std::string named = view->header().socket;
  const bool is_common = named.empty() && options_.is_private;
  const std::string meant_for = is_common ? MarkedSocket(layout::kShmDirectory) : named;
  if (!meant_for.empty() && (is_common || meant_for != options_.socket)) {
    return watcher_->Refuse(name,
                            "its job belongs to the daemon on " + meant_for +
                                ". Type: cgdebug-cli --socket '" + meant_for + "' status",
                            is_common);
  }
  auto attached = AttachedSegment::Adopt(std::move(view), options_.socket, destination_);
  if (!attached.ok()) return watcher_->Refuse(name, attached.error().message, true);
  segments_.all().push_back({*std::move(attached)});
  last_work_ = next_check_ = Clock::now();
}

bool IngestLoop::PollAll(bool thorough) {
  ready_.clear();
  owners_.clear();
  for (KeptSegment& segment : segments_.all()) {
    segment.attached->BeginPass(thorough, &ready_);
    owners_.resize(ready_.size(), segment.attached.get());
  }
  const auto large = static_cast<std::size_t>(
      std::count_if(ready_.begin(), ready_.end(),
                    [](const SlotConsumer* slot) { return slot->payload_bytes() >= kLarge; }));
  const auto prepare = [this](std::size_t i) { ready_[i]->Prepare(); };
  const auto commit = [this](std::size_t i) { owners_[i]->Commit(ready_[i]); };
  if (large >= 2 && pool_.workers() > 0) {
    pool_.Run(ready_.size(), prepare, commit);
  } else {
    for (std::size_t i = 0; i < ready_.size(); ++i) {
      prepare(i);
      commit(i);
    }
  }
  bool any = false;
  for (KeptSegment& segment : segments_.all()) any |= segment.attached->EndPass();
  return any;
}

void IngestLoop::ShowSkipped() {
  std::vector<pipeline::SkippedFile> skipped = watcher_->skipped();
  for (const KeptSegment& segment : segments_.all()) {
    const auto slots = segment.attached->skipped_slots();
    skipped.insert(skipped.end(), slots.begin(), slots.end());
  }
  destination_.registry->SetSkipped(std::move(skipped));
}

bool IngestLoop::AnyAlive() const {
  return std::any_of(segments_.all().begin(), segments_.all().end(),
                     [](const KeptSegment& segment) { return segment.attached->alive(); });
}

std::size_t IngestLoop::LiveSlots() const {
  std::size_t slots = 0;
  for (const KeptSegment& segment : segments_.all()) {
    if (segment.attached->alive()) slots += segment.attached->slot_count();
  }
  return slots;
}

nanoseconds IngestLoop::NextNap() {
  const auto now = Clock::now();
  nanoseconds nap = kRescan;
  if (AnyAlive()) {
    const bool quiet = now - last_work_ > kQuietAfter;
    nap_ = std::clamp(nap_ * 2, kFirstNap, quiet ? kLongestQuietNap : kLongestNap);
    nap = std::min<nanoseconds>(nap_, next_check_ - now);
  }
  nap = std::min<nanoseconds>(nap, next_scan_ - now);
  for (const KeptSegment& segment : segments_.all())
    nap = std::min<nanoseconds>(nap, segment.expires - now);
  return std::max(nap, nanoseconds(0));
}

void IngestLoop::Wait(bool any) {
  if (any) {
    last_work_ = Clock::now();
    nap_ = nanoseconds(0);
  }
  nanoseconds nap(0);
  if (!any && (!AnyAlive() || Clock::now() - last_work_ > kSpin)) nap = NextNap();
  // While there is work, descriptors are polled together with the other periodic duties.
  if (nap.count() == 0 && Clock::now() < next_check_) return;
  pollfd fds[3] = {
      {stop_.get(), POLLIN, 0}, {watcher_->fd(), POLLIN, 0}, {destination_.reads->fd(), POLLIN, 0}};
  const timespec timeout = {nap.count() / 1'000'000'000, nap.count() % 1'000'000'000};
  ppoll(fds, 3, &timeout, nullptr);
  stopping_ = (fds[0].revents & POLLIN) != 0;
  if (watcher_->Drain()) next_scan_ = Clock::now();
}

}  // namespace cgdebug::ingest
