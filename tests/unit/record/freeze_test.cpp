// How `freeze` records a ring with holes.
#include "daemon/record/freeze/freeze.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "daemon/core/recording/recording_reader.h"
#include "daemon/record/freeze/frozen_rings.h"
#include "libprobe/ring/segment/process_origin.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon/model_fixture.h"
#include "tests/support/private_shm.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wait_until.h"

namespace cgdebug::pipeline {
namespace {

using layout::LossCause;

// A ring of one slot, answered for on a thread of its own, as ingest does.
class FakeRing {
 public:
  explicit FakeRing(RingContent content) : content_(std::move(content)) {}
  // What the slots of this probe have instead.
  void Set(const std::string& probe, RingContent content) {
    const std::lock_guard lock(mutex_);
    of_probe_[probe] = std::move(content);
  }
  ~FakeRing() {
    stop_ = true;
    thread_.join();
  }
  RingReads* reads() { return &reads_; }

 private:
  void Run() {
    while (!stop_) {
      pollfd wanted = {reads_.fd(), POLLIN, 0};
      poll(&wanted, 1, 1);
      reads_.Serve(
          [this](const RingRequest& request) {
            RingContent content = ContentOf(*request.slot);
            const auto outside = [&](std::uint64_t ordinal) {
              return ordinal < request.first_ordinal || ordinal > request.last_ordinal;
            };
            std::erase_if(content.entries,
                          [&](const auto& entry) { return outside(entry.ordinal); });
            if (request.slot->IsOnDevice()) {
              const std::uint64_t oldest = layout::OldestOnDevice(
                  content.newest, request.slot->registration.device_capacity);
              for (const ring::Entry& entry : content.entries) {
                if (entry.ordinal >= oldest) break;
                content.unreadable.emplace(entry.ordinal, LossCause::kOnDevice);
              }
              std::erase_if(content.entries,
                            [&](const auto& entry) { return entry.ordinal < oldest; });
            }
            std::erase_if(content.unreadable, [&](const auto& one) { return outside(one.first); });
            content.next = request.last_ordinal + 1;
            return content;
          },
          [] { return RingHeads(); });
    }
  }

  RingContent ContentOf(const SlotIdentity& slot) {
    const std::lock_guard lock(mutex_);
    const auto own = of_probe_.find(slot.probe);
    return own == of_probe_.end() ? content_ : own->second;
  }

  RingContent content_;
  std::mutex mutex_;
  std::map<std::string, RingContent> of_probe_;
  RingReads reads_;
  std::atomic<bool> stop_ = false;
  std::thread thread_{[this] { Run(); }};
};

ring::Entry MakeEntry(std::uint64_t ordinal) {
  ring::Entry entry;
  entry.ordinal = entry.replay = ordinal;
  entry.payload = test::Bytes({static_cast<float>(ordinal), 0});
  return entry;
}

TEST(Freeze, RecordsEveryHoleWithItsCauseAndPrefersWholeSnapshots) {
  const SlotPtr slot = test::MakeSlot(test::MakeSession("1"), "x", 1);
  SnapshotStore store(8);  // one payload
  for (const std::uint64_t replay : {4, 7}) {
    Delivery delivery = test::MakeDelivery(slot, replay, {static_cast<float>(replay), 0});
    store.Put(delivery.snapshot, delivery.payload);
  }
  RingContent content;
  content.readable = true;
  content.oldest = 2;
  content.newest = 9;
  for (const std::uint64_t ordinal : {3, 4, 8}) content.entries.push_back(MakeEntry(ordinal));
  content.unreadable = {{2, layout::LossCause::kCorrupted},
                        {6, layout::LossCause::kCorrupted},
                        {9, layout::LossCause::kNoMemory}};
  FakeRing ring(content);
  const testing_support::TempDir dir;
  FreezeRequest request;
  request.directory = dir / "a.cgrec";
  request.slots = {{.slot = slot}};
  const auto info = Freeze(request, {}, store, ring.reads());
  ASSERT_TRUE(info.ok()) << info.error().message;
  EXPECT_EQ(info->snapshots, 4u);
  EXPECT_EQ(info->lost, 5u);
  const auto reader = recording::RecordingReader::Open(request.directory);
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  EXPECT_FALSE((*reader)->complete());
  std::vector<std::uint64_t> ordinals;
  for (const auto& ref : (*reader)->Snapshots(0)) {
    ordinals.push_back(ref.ordinal);
    const auto payload = (*reader)->ReadPayload(ref);
    ASSERT_TRUE(payload.ok()) << payload.error().message;
    float value = 0;
    std::memcpy(&value, payload->bytes.data(), sizeof(value));
    EXPECT_EQ(value, static_cast<float>(ref.ordinal));
  }
  EXPECT_EQ(ordinals, (std::vector<std::uint64_t>{3, 4, 7, 8}));
  std::map<std::uint64_t, LossCause> lost;
  for (const auto& loss : (*reader)->losses()) lost[loss.first_ordinal] = loss.cause;
  EXPECT_EQ(lost, (std::map<std::uint64_t, LossCause>{{1, LossCause::kOverwritten},
                                                      {2, LossCause::kCorrupted},
                                                      {5, LossCause::kOverwritten},
                                                      {6, LossCause::kCorrupted},
                                                      {9, LossCause::kNoMemory}}));
}

TEST(Freeze, WhatTheRingsOfADevicePromisedIsThereOrCountedAsLeftThere) {
  auto on_device = std::make_shared<SlotIdentity>(*test::MakeSlot(test::MakeSession("1"), "x", 1));
  on_device->registration.flags |= layout::kSlotOnDevice;
  on_device->registration.device_capacity = 3;
  const SnapshotStore store(8);
  RingContent content;
  content.readable = true;
  content.oldest = 1;
  content.newest = 9;
  for (const std::uint64_t ordinal : {7, 8}) content.entries.push_back(MakeEntry(ordinal));
  content.unreadable = {{9, LossCause::kOnDevice}};
  FakeRing ring(content);
  const testing_support::TempDir dir;
  FreezeRequest request;
  request.directory = dir / "a.cgrec";
  request.slots = {{.slot = on_device}};
  request.device_rings = true;
  const auto info = Freeze(request, {}, store, ring.reads());
  ASSERT_TRUE(info.ok()) << info.error().message;
  EXPECT_EQ(info->snapshots, 2u);
  EXPECT_EQ(info->lost, 1u);
  const auto reader = recording::RecordingReader::Open(request.directory);
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  std::vector<std::uint64_t> ordinals;
  for (const auto& ref : (*reader)->Snapshots(0)) ordinals.push_back(ref.ordinal);
  EXPECT_EQ(ordinals, (std::vector<std::uint64_t>{7, 8}));
  ASSERT_EQ((*reader)->losses().size(), 1u);
  EXPECT_EQ((*reader)->losses()[0].cause, LossCause::kOnDevice);
  EXPECT_EQ((*reader)->losses()[0].first_ordinal, 9u);
}

TEST(Freeze, WhatNobodySawOfTheJobAndItsEndAreInIt) {
  const SlotPtr slot = test::MakeSlot(test::MakeSession("1"), "x", 1);
  const SnapshotStore store(8);
  FakeRing ring({});
  const testing_support::TempDir dir;
  const layout::NotSeen refused{.count = 216, .of = 258, .calls = 648, .name = "fwd/layers.3"};
  for (const SessionState state : {SessionState::kAlive, SessionState::kDied}) {
    FreezeRequest request;
    request.directory = dir / std::to_string(static_cast<int>(state));
    request.slots = {{.slot = slot}};
    request.sessions = {{.session = slot->session, .state = state, .not_seen = {refused}}};
    ASSERT_TRUE(Freeze(request, {}, store, ring.reads()).ok());
    const auto reader = recording::RecordingReader::Open(request.directory);
    ASSERT_TRUE(reader.ok()) << reader.error().message;
    std::vector<layout::NotSeen> not_seen;
    int deaths = 0;
    for (const recording::Mark& mark : (*reader)->marks()) {
      if (mark.not_seen) not_seen.push_back(*mark.not_seen);
      deaths += mark.kind == recording::MarkKind::kSessionDied;
    }
    EXPECT_EQ(not_seen, std::vector{refused});
    EXPECT_EQ(deaths, state == SessionState::kDied);
  }
}

TEST(Freeze, OfAPartOfTheProbesTheAccountOfOthersIsNotInIt) {
  const SlotPtr slot = test::MakeSlot(test::MakeSession("1"), "fwd/head", 1);
  const SnapshotStore store(8);
  FakeRing ring({});
  const testing_support::TempDir dir;
  const layout::NotSeen refused{.count = 1, .of = 2, .calls = 3, .name = "fwd/layers.3"};
  for (const auto& [pattern, marks] : {std::pair("fwd/head", 0), {"fwd/*", 1}}) {
    FreezeRequest request;
    request.directory = dir / std::to_string(marks);
    request.probes = {pattern};
    request.slots = {{.slot = slot}};
    request.sessions = {
        {.session = slot->session, .state = SessionState::kAlive, .not_seen = {refused}}};
    ASSERT_TRUE(Freeze(request, {}, store, ring.reads()).ok());
    const auto reader = recording::RecordingReader::Open(request.directory);
    ASSERT_TRUE(reader.ok()) << reader.error().message;
    const auto found = std::ranges::count_if(
        (*reader)->marks(), [](const recording::Mark& mark) { return mark.not_seen.has_value(); });
    EXPECT_EQ(found, marks);
  }
}

TEST(Freeze, WhatTheControlKeptBackIsLost) {
  const auto slot = std::make_shared<SlotIdentity>(*test::MakeSlot(test::MakeSession("1"), "x", 1));
  slot->registration.record_every = 1;
  const SnapshotStore store(8);
  RingContent content;
  content.readable = true;
  content.oldest = 1;
  content.newest = 2;
  content.entries = {MakeEntry(1), MakeEntry(2)};
  content.entries[1].replay = 5;
  FakeRing ring(content);
  const testing_support::TempDir dir;
  // In replays 2 to 4, and in two after 5; of the newest one alone nobody knows where.
  for (const std::uint64_t last : {0, 1}) {
    SlotRecord record = {.slot = slot};
    record.counters.suppressed = 5;
    FreezeRequest request;
    request.directory = dir / std::to_string(last);
    request.slots = {record};
    request.last = last;
    ASSERT_TRUE(Freeze(request, {}, store, ring.reads()).ok());
    const auto reader = recording::RecordingReader::Open(request.directory);
    ASSERT_TRUE(reader.ok()) << reader.error().message;
    std::vector<std::uint64_t> lost;
    for (const auto& loss : (*reader)->losses()) {
      EXPECT_EQ(loss.cause, LossCause::kStoodStill);
      lost.push_back(loss.count);
    }
    EXPECT_EQ(lost, last == 0 ? std::vector<std::uint64_t>({3, 2}) : std::vector<std::uint64_t>());
  }
}

// Entries 1 to `newest`.
RingContent ContentOfKilobytes(std::uint64_t newest, std::uint64_t kilobytes = 1) {
  RingContent content;
  content.readable = true;
  content.oldest = 1;
  content.newest = newest;
  for (std::uint64_t ordinal = 1; ordinal <= newest; ++ordinal) {
    content.entries.push_back(MakeEntry(ordinal));
    content.entries.back().payload.resize(1000 * kilobytes);
  }
  return content;
}

// For two rings on the device with that content.
FreezeRequest RequestOfKilobytes(std::uint32_t newest, std::uint64_t kilobytes = 1) {
  const auto job = test::MakeSession("1");
  FreezeRequest request;
  for (const char* name : {"x", "y"}) {
    auto slot = std::make_shared<SlotIdentity>(
        test::MakeSlotIdentity(job, name, request.slots.size() + 1, 250 * kilobytes));
    slot->registration.flags |= layout::kSlotOnDevice;
    slot->registration.device_capacity = newest;
    request.slots.push_back({.slot = slot});
  }
  request.device_rings = true;
  return request;
}

TEST(Freeze, WhatHasNoRoomIsLeftOutOldestFirstInEveryProbeAndNamed) {
  constexpr std::uint64_t kNewest = 60;
  FreezeRequest request = RequestOfKilobytes(kNewest);
  const RingContent content = ContentOfKilobytes(kNewest);
  const SnapshotStore store(8);
  FakeRing ring(content);
  const testing_support::TempDir dir;
  std::uint64_t kept_before = 0;
  for (const std::uint64_t max_bytes : {64u << 10, 100u << 10, 10u << 20}) {
    request.directory = dir / std::to_string(max_bytes);
    request.max_bytes = max_bytes;
    const auto info = Freeze(request, {}, store, ring.reads());
    ASSERT_TRUE(info.ok()) << info.error().message;
    EXPECT_LE(info->bytes, max_bytes);
    EXPECT_EQ(info->lost, info->left_out);
    EXPECT_EQ(info->snapshots + info->left_out, 2 * kNewest);
    EXPECT_EQ(info->why.empty(), info->left_out == 0) << info->why;
    const std::uint64_t kept = info->snapshots / 2;
    EXPECT_GT(kept, kept_before);
    kept_before = kept;
    const auto reader = recording::RecordingReader::Open(request.directory);
    ASSERT_TRUE(reader.ok()) << reader.error().message;
    EXPECT_EQ((*reader)->complete(), info->left_out == 0);
    for (const std::uint32_t slot : {0, 1}) {
      std::uint64_t expected = kNewest - kept;
      for (const auto& ref : (*reader)->Snapshots(slot)) EXPECT_EQ(ref.ordinal, ++expected);
      EXPECT_EQ(expected, kNewest);
    }
    EXPECT_EQ((*reader)->losses().size(), info->left_out == 0 ? 0u : 2u);
    for (const auto& loss : (*reader)->losses()) {
      EXPECT_EQ(loss.cause, LossCause::kLimit);
      EXPECT_EQ(loss.first_ordinal, 1u);
      EXPECT_EQ(loss.last_ordinal, kNewest - kept);
      EXPECT_EQ(loss.before_replay, kNewest - kept + 1);
    }
  }
  EXPECT_EQ(kept_before, kNewest);
}

constexpr int kNoMount = 77;

// Freezes 12 MB, 24 snapshots, on a disk of that size. Returns an exit code.
int FreezeOnADisk(const std::string& size, std::uint64_t max_bytes, std::uint64_t min_free_bytes,
                  LossCause why) {
  constexpr std::uint64_t kNewest = 12, kKilobytes = 500;
  if (!test::UsePrivateShm(size)) return kNoMount;
  FreezeRequest request = RequestOfKilobytes(kNewest, kKilobytes);
  request.directory = "/dev/shm/a.cgrec";
  request.max_bytes = max_bytes;
  recording::WriterOptions options;
  options.min_free_bytes = min_free_bytes;
  options.min_free_percent = 0;
  const SnapshotStore store(8);
  FakeRing ring(ContentOfKilobytes(kNewest, kKilobytes));
  const auto info = Freeze(request, options, store, ring.reads());
  EXPECT_TRUE(info.ok()) << info.error().message;
  if (!info.ok()) return 1;
  EXPECT_GT(info->snapshots, 0u);
  EXPECT_GT(info->left_out, 0u);
  EXPECT_EQ(info->snapshots + info->left_out, 2 * kNewest);
  EXPECT_EQ(info->lost, info->left_out);
  EXPECT_NE(info->why.find(why == LossCause::kDisk ? "its disk has room for " : "may take "),
            std::string::npos)
      << info->why;
  EXPECT_GE(std::filesystem::space("/dev/shm").available, min_free_bytes);
  const auto reader = recording::RecordingReader::Open(request.directory);
  EXPECT_TRUE(reader.ok());
  if (!reader.ok()) return 1;
  EXPECT_FALSE((*reader)->complete());
  for (const std::uint32_t slot : {0, 1}) {
    std::uint64_t expected = info->left_out / 2;
    for (const auto& ref : (*reader)->Snapshots(slot)) EXPECT_EQ(ref.ordinal, ++expected);
    EXPECT_EQ(expected, kNewest);
  }
  EXPECT_EQ((*reader)->losses().size(), 2u);
  for (const auto& loss : (*reader)->losses()) {
    EXPECT_EQ(loss.cause, why);
    EXPECT_EQ(loss.first_ordinal, 1u);
    EXPECT_EQ(loss.last_ordinal, info->left_out / 2);
  }
  return ::testing::Test::HasFailure() ? 1 : 0;
}

TEST(Freeze, WhatHasNoRoomOnTheDiskIsLeftOutOldestFirstAndNamed) {
  const auto run = [](const auto&... how) {
    test::ChildProcess child([&](const test::Line&) { return FreezeOnADisk(how...); });
    return child.Wait();
  };
  const int code = run("16m", 0, 0, LossCause::kDisk);
  if (code == kNoMount) GTEST_SKIP() << "the system lets nobody mount a small disk";
  EXPECT_EQ(code, 0);
  EXPECT_EQ(run("16m", 12u << 20, 0, LossCause::kDisk), 0) << "the limit is above what is free";
  EXPECT_EQ(run("32m", 0, 16u << 20, LossCause::kDisk), 0) << "half of it must stay free";
  EXPECT_EQ(run("32m", 4u << 20, 0, LossCause::kLimit), 0) << "the limit is below what is free";
}

// They begin at pages of the file.
TEST(Freeze, ALimitCountsWhatLiesBetweenLargeTensorsToo) {
  constexpr std::uint64_t kNewest = 21, kKilobytes = 263;
  FreezeRequest request = RequestOfKilobytes(kNewest, kKilobytes);
  const SnapshotStore store(8);
  FakeRing ring(ContentOfKilobytes(kNewest, kKilobytes));
  const testing_support::TempDir dir;
  request.directory = dir / "a.cgrec";
  request.max_bytes = 2 * (kNewest - 1) * (kKilobytes * 1000 + 512) + (40u << 10);
  const auto info = Freeze(request, {}, store, ring.reads());
  ASSERT_TRUE(info.ok()) << info.error().message;
  EXPECT_EQ(info->snapshots + info->left_out, 2 * kNewest);
  EXPECT_EQ(info->lost, info->left_out);
}

// The older ones of such a ring are not left out for lack of room: the device has overwritten them.
TEST(Freeze, ARingOnTheDeviceThatHasRoomIsWholeWhenOthersAreNot) {
  constexpr std::uint64_t kNewest = 60;
  const auto job = test::MakeSession("1");
  FreezeRequest request;
  const RingContent content = ContentOfKilobytes(kNewest);
  for (const std::uint32_t capacity : {50u, 3u}) {
    auto slot = std::make_shared<SlotIdentity>(
        test::MakeSlotIdentity(job, "x", request.slots.size() + 1, 250));
    slot->registration.flags |= layout::kSlotOnDevice;
    slot->registration.device_capacity = capacity;
    request.slots.push_back({.slot = slot});
  }
  const SnapshotStore store(8);
  FakeRing ring(content);
  const testing_support::TempDir dir;
  request.directory = dir / "a.cgrec";
  request.max_bytes = 64u << 10;
  const auto info = Freeze(request, {}, store, ring.reads());
  ASSERT_TRUE(info.ok()) << info.error().message;
  const auto reader = recording::RecordingReader::Open(request.directory);
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  const auto count = [&](std::uint32_t slot) {
    std::uint64_t snapshots = 0;
    for ([[maybe_unused]] const auto& ref : (*reader)->Snapshots(slot)) ++snapshots;
    return snapshots;
  };
  const std::uint64_t kept = count(0);
  EXPECT_GT(kept, 3u);
  EXPECT_LT(kept, 50u);
  EXPECT_EQ(info->left_out, 50 - kept);
  EXPECT_EQ(count(1), 3u);
  for (const auto& loss : (*reader)->losses()) {
    if (loss.cause != LossCause::kLimit) continue;
    EXPECT_EQ(loss.slot, 0u);
    EXPECT_EQ(loss.first_ordinal, kNewest - 50 + 1);
    EXPECT_EQ(loss.last_ordinal, kNewest - kept);
  }
}

// Entries 1, 2, ... of these replays.
RingContent ContentOfReplays(const std::vector<std::uint64_t>& replays) {
  RingContent content;
  content.readable = true;
  content.oldest = replays.empty() ? 0 : 1;
  content.newest = replays.size();
  for (const std::uint64_t replay : replays) {
    content.entries.push_back(MakeEntry(content.entries.size() + 1));
    content.entries.back().replay = replay;
  }
  return content;
}

// Replay 3 of graph 5 was left out as a whole: the rings stood still. They went on in replay 4,
// between two of its probes, and were stopped from another stream in replay 5.
TEST(Freeze, WhatAReplayLacksOfWhichOtherProbesWereKeptIsALossThatIsNamed) {
  struct Probe {
    const char* name;
    std::uint64_t graph_id;
    std::uint32_t every;
    std::vector<std::uint64_t> replays;
    std::uint64_t left_out;  // as the job counts them
  };
  const std::vector<Probe> probes = {
      {"before", 5, 1, {1, 2, 5}, 2}, {"behind", 5, 1, {1, 2, 4, 5}, 1},
      {"seldom", 5, 2, {1, 5}, 1},    {"stopped", 5, 1, {1, 2, 4}, 2},
      {"never", 5, 5, {1}, 0},        {"other", 6, 1, {1, 2}, 0},
      {"new", 5, 1, {}, 5},           {"late", 5, 1, {5}, 4},
  };
  const auto job = test::MakeSession("1");
  FreezeRequest request;
  request.device_rings = true;
  FakeRing ring({});
  for (const Probe& probe : probes) {
    auto slot = std::make_shared<SlotIdentity>(
        test::MakeSlotIdentity(job, probe.name, request.slots.size() + 1));
    slot->registration.flags |= layout::kSlotOnDevice;
    slot->registration.device_capacity = 8;
    slot->registration.graph_id = probe.graph_id;
    slot->registration.record_every = probe.every;
    const std::uint64_t count = probe.replays.size();
    const std::uint64_t replays = probe.graph_id == 5 ? 5 : 2;
    request.slots.push_back({.slot = slot,
                             .counters = {.replays = replays,
                                          .produced = count,
                                          .consumed = count,
                                          .suppressed = probe.left_out}});
    // A recording has begun that loses nothing: it says nothing of the replays before it.
    request.slots.back().control.lossless = layout::Lossless::kOn;
    ring.Set(probe.name, ContentOfReplays(probe.replays));
  }
  const SnapshotStore store(8);
  const testing_support::TempDir dir;
  const auto left_out = [&](const char* name) {
    request.directory = dir / name;
    const auto info = Freeze(request, {}, store, ring.reads());
    EXPECT_TRUE(info.ok()) << info.error().message;
    const auto reader = recording::RecordingReader::Open(request.directory);
    EXPECT_TRUE(reader.ok()) << reader.error().message;
    EXPECT_FALSE((*reader)->complete());
    std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> lost;  // between these replays
    std::uint64_t count = 0;
    for (const auto& loss : (*reader)->losses()) {
      EXPECT_EQ(loss.cause, LossCause::kStoodStill);
      lost[(*reader)->slots()[loss.slot].probe] = {loss.after_replay, loss.before_replay};
      count += loss.count;
    }
    EXPECT_EQ(info->stood_still, count);
    EXPECT_EQ(info->lost, count);
    EXPECT_EQ(info->partial.size(), lost.size());
    return lost;
  };
  std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> expected = {
      {"before", {3, 5}}, {"stopped", {4, 6}}, {"new", {0, 6}}, {"late", {0, 5}}};
  EXPECT_EQ(left_out("still.cgrec"), expected);
  request.running = {0};
  expected = {{"before", {3, 5}}, {"late", {0, 5}}};
  EXPECT_EQ(left_out("running.cgrec"), expected) << "the ring was read before it had the rest";
}

// A daemon that is stopped before it lets the rings go on leaves a recording that has ended.
TEST(Freeze, WhatATriggerFrozeIsRecordedAgainByTheNextDaemonWhateverTheProbesNameIs) {
  const testing_support::TempDir dir;
  SessionIdentity identity = test::MakeIdentity("1");
  identity.recordings = dir / "";
  identity.pid_namespace = ring::OwnPidNamespace();
  identity.is_pid_true = true;
  Registry registry;
  const SessionPtr job = registry.AddSession(std::move(identity));
  std::string name = "/";
  while (name.size() < layout::kMaxNameBytes) name += "\u00e9";
  auto on_device = std::make_shared<SlotIdentity>(*test::MakeSlot(job, name, 1));
  on_device->registration.flags |= layout::kSlotOnDevice;
  on_device->registration.device_capacity = 2;
  registry.SetSlot(on_device, {.replays = 8, .produced = 8, .consumed = 8}, 1, false);
  RingContent content;
  content.readable = true;
  content.oldest = 1;
  content.newest = 8;
  for (const std::uint64_t ordinal : {7, 8}) content.entries.push_back(MakeEntry(ordinal));
  FakeRing ring(content);
  const SnapshotStore store(8);
  for (const char* end : {"-replay8-10000000.cgrec", "-replay8-10000000-2.cgrec"}) {
    ControlQueue controls;
    EventLog events;
    std::promise<std::string> told;
    {
      FrozenRings frozen({&registry, &store, ring.reads(), &controls, &events}, {},
                         [&](const SessionPtr&, const std::string& text) { told.set_value(text); });
      frozen.Froze({on_device, 77, 8, layout::ControlTrigger::kNonfinite});
      const std::string text = told.get_future().get();
      EXPECT_NE(text.find("2 snapshots of 1 probe, up to that replay, are in "), std::string::npos)
          << text;
      EXPECT_TRUE(text.ends_with(end)) << text;
    }
    const std::vector<RingSwitch> switches = controls.TakeSwitches();
    ASSERT_EQ(switches.size(), 1u);
    EXPECT_EQ(switches[0].thawed, 77u);
  }
}

// A job with rings on two devices, one slot each, and what FrozenRings asks ingest for.
class TwoDevices : public ::testing::Test {
 protected:
  TwoDevices() {
    SessionIdentity identity = test::MakeIdentity("1");
    identity.recordings = dir_ / "";
    identity.pid_namespace = ring::OwnPidNamespace();
    identity.is_pid_true = true;
    job_ = registry_.AddSession(std::move(identity));
    for (const std::int16_t device : {0, 1}) {
      slots_.push_back(AddSlot(device == 0 ? "a" : "b", device, layout::ControlTrigger::kNone));
    }
    RingContent content;
    content.readable = true;
    content.oldest = 1;
    content.newest = 8;
    for (const std::uint64_t ordinal : {7, 8}) content.entries.push_back(MakeEntry(ordinal));
    ring_ = std::make_unique<FakeRing>(content);
  }
  SlotPtr AddSlot(const std::string& name, std::int16_t device, layout::ControlTrigger trigger) {
    auto slot = std::make_shared<SlotIdentity>(*test::MakeSlot(job_, name, slots_.size() + 1));
    slot->registration.flags |= layout::kSlotOnDevice;
    slot->registration.device_capacity = 2;
    slot->registration.device_index = device;
    slot->registration.trigger = static_cast<std::uint8_t>(trigger);
    slot->registration.trigger_times = 1;
    registry_.SetSlot(slot, {.replays = 8, .produced = 8, .consumed = 8}, 1, false);
    return slot;
  }
  void Start() {
    frozen_ = std::make_unique<FrozenRings>(
        FrozenRings::Daemon{&registry_, &store_, ring_->reads(), &controls_, &events_}, options_,
        [this](const SessionPtr&, const std::string& text) {
          const std::scoped_lock lock(mutex_);
          told_.push_back(text);
        });
  }
  // Sets a trigger on NaN and Inf as a client does.
  void SetTrigger(const SlotPtr& slot) {
    layout::SlotControl control;
    control.mode = layout::ControlMode::kFull;
    control.trigger = layout::ControlTrigger::kNonfinite;
    registry_.SetControl(slot, control);
  }
  // The freeze of the first device by that trigger.
  RingFreeze OnNonfiniteOfAClient() const {
    return {.slot = slots_[0],
            .serial = 70,
            .replay = 6,
            .trigger = layout::ControlTrigger::kNonfinite,
            .live = true};
  }
  void FreezeSecondDeviceOnInf(std::uint64_t serial) {
    frozen_->Froze({.slot = slots_[1],
                    .serial = serial,
                    .replay = 8,
                    .trigger = layout::ControlTrigger::kInf,
                    .device = 1});
  }
  // What ingest was asked for, once there is something.
  std::vector<RingSwitch> Switches() {
    std::vector<RingSwitch> switches;
    EXPECT_TRUE(test::WaitUntil([&] {
      switches = controls_.TakeSwitches();
      return !switches.empty();
    }));
    return switches;
  }
  std::string Told() {
    EXPECT_TRUE(test::WaitUntil([&] {
      const std::scoped_lock lock(mutex_);
      return !told_.empty();
    }));
    const std::scoped_lock lock(mutex_);
    return std::exchange(told_, {}).at(0);
  }

  const testing_support::TempDir dir_;
  recording::WriterOptions options_;
  Registry registry_;
  SessionPtr job_;
  std::vector<SlotPtr> slots_;
  std::unique_ptr<FakeRing> ring_;
  const SnapshotStore store_{8};
  ControlQueue controls_;
  EventLog events_;
  std::mutex mutex_;
  std::vector<std::string> told_;
  std::unique_ptr<FrozenRings> frozen_;
};

TEST_F(TwoDevices, StopEachAtItsOwnReplayAndTheRecordingHasAndNamesBoth) {
  Start();
  FreezeSecondDeviceOnInf(77);
  const std::vector<RingSwitch> asked = Switches();
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].device, 0u);
  EXPECT_NE(asked[0].stop, 0u);
  frozen_->Froze({.slot = slots_[0], .serial = 70, .replay = 6});
  const std::string text = Told();
  EXPECT_TRUE(
      text.starts_with("probe 'b' held Inf in replay 8, the rings of cuda:0 stopped at "
                       "replay 6 of probe 'a': 4 snapshots of 2 probes, up to there, are "
                       "in "))
      << text;
  std::map<std::uint32_t, std::uint64_t> thawed;
  for (const RingSwitch& rings : controls_.TakeSwitches()) thawed[rings.device] = rings.thawed;
  EXPECT_EQ(thawed, (std::map<std::uint32_t, std::uint64_t>{{0, 70}, {1, 77}}));
}

TEST_F(TwoDevices, TheRestOfTheReplayThatStoppedTheRingsIsWaitedFor) {
  registry_.SetSlot(slots_[1], {.replays = 8, .produced = 8, .consumed = 8}, 1, /*retired=*/true);
  for (const std::size_t which : {0, 2}) {
    if (which == 2) slots_.push_back(AddSlot("late", 0, layout::ControlTrigger::kNone));
    auto of_graph = std::make_shared<SlotIdentity>(*slots_[which]);
    of_graph->registration.graph_id = 3;
    of_graph->registration.record_every = 1;
    slots_[which] = of_graph;
  }
  registry_.SetSlot(slots_[0], {.replays = 2, .produced = 2, .consumed = 2}, 1, false);
  registry_.SetSlot(slots_[2], {.replays = 1, .produced = 1, .consumed = 1}, 1, false);
  ring_->Set("a", ContentOfReplays({1, 2}));
  ring_->Set("late", ContentOfReplays({1}));
  Start();
  frozen_->Froze({.slot = slots_[0],
                  .serial = 70,
                  .replay = 2,
                  .trigger = layout::ControlTrigger::kNonfinite});
  const auto is_told = [&] {
    const std::scoped_lock lock(mutex_);
    return !told_.empty();
  };
  EXPECT_FALSE(test::WaitUntil(is_told, std::chrono::milliseconds(50)));
  ring_->Set("late", ContentOfReplays({1, 2}));
  registry_.SetSlot(slots_[2], {.replays = 2, .produced = 2, .consumed = 2}, 1, false);
  const std::string text = Told();
  EXPECT_NE(text.find(": 6 snapshots of 3 probes, up to that replay, are in "), std::string::npos)
      << text;
}

TEST_F(TwoDevices, WhatTheRecordingHasNoRoomForIsSaid) {
  for (SlotPtr& slot : slots_) {
    auto large = std::make_shared<SlotIdentity>(*slot);
    large->registration.payload_bytes = 10000;
    slot = large;
    registry_.SetSlot(slot, {.replays = 8, .produced = 8, .consumed = 8}, 1, false);
  }
  options_.max_bytes = 64u << 10;
  Start();
  FreezeSecondDeviceOnInf(77);
  frozen_->Froze({.slot = slots_[0], .serial = 70, .replay = 8});
  const std::string text = Told();
  EXPECT_NE(text.find("2 snapshots of 2 probes, up to there, are in "), std::string::npos) << text;
  EXPECT_NE(text.find(". 2 older ones were left out: a recording may take 64"), std::string::npos)
      << text;
}

TEST_F(TwoDevices, ADeviceThatStopsTooLateGoesOnWithoutARecording) {
  Start();
  frozen_->Froze({.slot = slots_[0], .serial = 70, .replay = 6});
  const std::vector<RingSwitch> switches = Switches();
  ASSERT_EQ(switches.size(), 1u);
  EXPECT_EQ(switches[0].thawed, 70u);
  EXPECT_EQ(switches[0].stop, 0u);
  frozen_.reset();
  EXPECT_TRUE(told_.empty());
}

TEST_F(TwoDevices, AFailedComparisonStopsTheRingsAsOftenAsAProbeWasRegisteredFor) {
  AddSlot("guard", 0, layout::ControlTrigger::kMismatch);
  Start();
  const SlotPtr compared = test::MakeSlot(job_, "c", 9);
  const Finding finding = {
      .slot = compared, .kind = layout::FindingKind::kMismatch, .replay = 5, .timestamp_ns = 1};
  frozen_->Found(finding);
  EXPECT_EQ(Switches().size(), 2u);
  frozen_->Froze({.slot = slots_[0], .serial = 70, .replay = 7});
  frozen_->Froze({.slot = slots_[1], .serial = 71, .replay = 8, .device = 1});
  const std::string text = Told();
  EXPECT_TRUE(
      text.starts_with("probe 'c' failed its comparison in replay 5, the rings of cuda:0 "
                       "stopped at replay 7 of probe 'a', the rings of cuda:1 stopped at "
                       "replay 8 of probe 'b': 6 snapshots of 3 probes, up to there"))
      << text;
  frozen_->Found(finding);
  frozen_.reset();
  EXPECT_TRUE(told_.empty());
}

TEST_F(TwoDevices, ADeviceThatStopsUnaskedMeanwhileGoesOnWithTheOthers) {
  AddSlot("guard", 0, layout::ControlTrigger::kMismatch);
  registry_.SetSlot(slots_[1], {.replays = 8, .produced = 8, .consumed = 8}, 1, /*retired=*/true);
  Start();
  frozen_->Found({.slot = test::MakeSlot(job_, "c", 9),
                  .kind = layout::FindingKind::kMismatch,
                  .replay = 5,
                  .timestamp_ns = 1});
  EXPECT_EQ(Switches().size(), 1u) << "nothing replays on the other device";
  FreezeSecondDeviceOnInf(71);
  frozen_->Froze({.slot = slots_[0], .serial = 70, .replay = 7});
  Told();
  std::map<std::uint32_t, std::uint64_t> thawed;
  for (const RingSwitch& rings : controls_.TakeSwitches()) thawed[rings.device] = rings.thawed;
  EXPECT_EQ(thawed, (std::map<std::uint32_t, std::uint64_t>{{0, 70}, {1, 71}}));
}

TEST_F(TwoDevices, ATriggerThatAClientSetIsOverWhenItHeld) {
  for (const SlotPtr& slot : slots_) SetTrigger(slot);
  Start();
  const RingFreeze first = OnNonfiniteOfAClient();
  frozen_->Froze(first);
  EXPECT_EQ(Switches().size(), 1u);
  frozen_->Froze({.slot = slots_[1], .serial = 71, .replay = 8, .device = 1});
  Told();
  std::set<std::string> ended;
  for (const ControlChange& change : controls_.Take()) {
    EXPECT_EQ(change.control.mode, layout::ControlMode::kAsRegistered);
    ended.insert(change.slot->probe);
    registry_.SetControl(change.slot, change.control);
  }
  EXPECT_EQ(ended, (std::set<std::string>{"a", "b"}));
  EXPECT_EQ(controls_.TakeSwitches().size(), 2u);
  RingFreeze late = first;
  late.serial = 72;
  frozen_->Froze(late);  // the GPU had not read the end of it
  const std::vector<RingSwitch> switches = Switches();
  ASSERT_EQ(switches.size(), 1u);
  EXPECT_EQ(switches[0].thawed, 72u);
  frozen_.reset();
  EXPECT_TRUE(told_.empty());
}

TEST_F(TwoDevices, ASlotThatIsForgottenAfterItsTriggerHeldIsHeldByNobody) {
  SetTrigger(slots_[0]);
  Start();
  frozen_->Froze(OnNonfiniteOfAClient());
  frozen_->Froze({.slot = slots_[1], .serial = 71, .replay = 8, .device = 1});
  Told();
  const std::weak_ptr<const SlotIdentity> slot = slots_[0];
  slots_.clear();
  controls_.Take();
  controls_.TakeSwitches();
  events_.ForgetSession(job_);
  registry_.ForgetSession(job_);
  EXPECT_TRUE(test::WaitUntil([&] { return slot.expired(); }));
}

// `set --on nan --count 1`: ingest shows the end of the control as soon as it has read that replay.
TEST_F(TwoDevices, ATriggerThatHeldInTheLastReplayOfItsControlIsRecorded) {
  registry_.SetSlot(slots_[1], {.replays = 8, .produced = 8, .consumed = 8}, 1, /*retired=*/true);
  Start();
  frozen_->Froze(OnNonfiniteOfAClient());
  EXPECT_TRUE(Told().starts_with("probe 'a' held NaN or Inf in replay 6"));
  EXPECT_EQ(Switches().at(0).thawed, 70u);
}

TEST_F(TwoDevices, ADeviceThatDidNotStopIsNamed) {
  Start();
  FreezeSecondDeviceOnInf(77);
  const std::string text = Told();
  EXPECT_TRUE(
      text.starts_with("probe 'b' held Inf in replay 8, the rings of cuda:0 did not stop in time "
                       "and may have newer ones: 4 snapshots of 2 probes, up to there, are in "))
      << text;
}

TEST(Freeze, SkipsFromMemoryToAFarRingInOneStep) {
  const SlotPtr slot = test::MakeSlot(test::MakeSession("1"), "x", 1);
  SnapshotStore store(1 << 20);
  const Delivery delivery = test::MakeDelivery(slot, 1, {1, 0});
  store.Put(delivery.snapshot, delivery.payload);
  RingContent content;
  content.readable = true;
  content.newest = layout::kMaxOrdinal;  // as a head that somebody scribbled on
  content.oldest = content.newest - 1;
  FakeRing ring(content);
  const testing_support::TempDir dir;
  FreezeRequest request;
  request.directory = dir / "a.cgrec";
  request.slots = {{.slot = slot}};
  const auto info = Freeze(request, {}, store, ring.reads());
  ASSERT_TRUE(info.ok()) << info.error().message;
  EXPECT_EQ(info->snapshots, 1u);
  EXPECT_EQ(info->lost, layout::kMaxOrdinal - 1);
}

TEST(Freeze, ASlotWithoutARingLosesWhatMemoryDoesNotHave) {
  const SlotPtr slot = test::MakeSlot(test::MakeSession("1"), "x", 1);
  SnapshotStore store(1 << 20);
  for (const std::uint64_t replay : {4, 5}) {
    const Delivery delivery = test::MakeDelivery(slot, replay, {1, 0});
    store.Put(delivery.snapshot, delivery.payload);
  }
  FakeRing ring({});
  const testing_support::TempDir dir;
  FreezeRequest request;
  request.directory = dir / "a.cgrec";
  request.slots = {{.slot = slot, .counters = {.produced = 7, .consumed = 6, .lost_at_death = 1}}};
  const auto info = Freeze(request, {}, store, ring.reads());
  ASSERT_TRUE(info.ok()) << info.error().message;
  EXPECT_EQ(info->snapshots, 2u);
  const auto reader = recording::RecordingReader::Open(request.directory);
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  std::vector<std::pair<std::uint64_t, LossCause>> lost;
  for (const auto& loss : (*reader)->losses()) lost.emplace_back(loss.count, loss.cause);
  EXPECT_EQ(lost, (std::vector<std::pair<std::uint64_t, LossCause>>{{1, LossCause::kOverwritten},
                                                                    {2, LossCause::kNotKept},
                                                                    {2, LossCause::kNotKept},
                                                                    {1, LossCause::kAtDeath}}))
      << "1..3 are missing, and six of seven were read";
  const recording::Account account = (*reader)->AccountOf(0);
  EXPECT_EQ(account.produced, 8u);
  EXPECT_EQ(account.kept, 2u);
  EXPECT_EQ(account.lost_count(), 6u);
}

TEST(Freeze, ChangesAreJudgedByTheSnapshotBeforeWhereverItWasKept) {
  const SlotPtr slot = test::MakeSlot(test::MakeSession("1"), "x", 1);
  SnapshotStore store(8);  // one payload
  for (const std::uint64_t replay : {2, 4}) {
    const Delivery delivery = test::MakeDelivery(slot, replay, {7, static_cast<float>(replay)});
    store.Put(delivery.snapshot, delivery.payload);
  }
  RingContent content;
  content.readable = true;
  content.oldest = 1;
  content.newest = 7;
  for (const std::uint64_t ordinal : {1, 3, 5, 6, 7}) {
    content.entries.push_back(MakeEntry(ordinal));
    content.entries.back().flags = layout::kEntryDropValues;  // the values are there anyway
    const bool is_as_4 = ordinal == 5;
    content.entries.back().payload =
        is_as_4 ? test::Bytes({7, 4}) : test::Bytes({static_cast<float>(ordinal / 4), 0});
  }
  content.unreadable = {{2, layout::LossCause::kCorrupted}};
  FakeRing ring(content);
  const testing_support::TempDir dir;
  FreezeRequest request;
  request.directory = dir / "a.cgrec";
  request.slots = {{.slot = slot}};
  ASSERT_TRUE(Freeze(request, {}, store, ring.reads()).ok());
  const auto reader = recording::RecordingReader::Open(request.directory);
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  std::map<std::uint64_t, bool> unchanged;
  for (const auto& ref : (*reader)->Snapshots(0)) {
    const auto snapshot = (*reader)->Read(ref);
    ASSERT_TRUE(snapshot.ok()) << snapshot.error().message;
    EXPECT_EQ(snapshot->stats_only, ref.ordinal == 2) << ref.ordinal;
    unchanged[ref.ordinal] = snapshot->unchanged;
  }
  EXPECT_EQ(unchanged,
            (std::map<std::uint64_t, bool>{
                {1, false}, {2, false}, {3, false}, {4, false}, {5, true}, {6, false}, {7, true}}))
      << "3 equals 1, but 2 was between";
}

}  // namespace
}  // namespace cgdebug::pipeline
