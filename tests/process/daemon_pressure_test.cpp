// No job waits for what the daemon cannot open, has no room for, or takes long to do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "libprobe/ring/segment/segment_writer.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon/daemon_process.h"
#include "tests/support/daemon/producer_process.h"
#include "tests/support/private_shm.h"
#include "tests/support/wait_until.h"

namespace cgdebug::test {
namespace {

using testing::HasSubstr;

class DaemonPressureTest : public testing::Test {
 protected:
  testing_support::TempDir directory_;
};

SlotSpec Waiting(const std::string& name, std::uint64_t elements, std::uint32_t capacity) {
  SlotSpec spec = Recording(name, capacity);
  spec.elements = elements;
  spec.policy = layout::Policy::kWait;
  return spec;
}

TEST_F(DaemonPressureTest, ASlotThatItCannotReadDoesNotHoldUpTheJob) {
  DaemonProcess daemon(directory_);
  SlotSpec unreadable = Waiting("", 8, 2);  // no name: refused
  unreadable.wait_deadline_ms = 60'000;
  ProducerProcess job({unreadable, Waiting("good", 8, 64)});
  std::uint64_t took_ns = 0;
  for (std::uint64_t i = 1; i <= 20; ++i) {
    job.Write(1);
    ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "good", i)) << "the daemon moves";
    took_ns += job.Write(0);
  }
  EXPECT_LT(took_ns, 60'000'000'000u) << "less than one deadline in all";
}

TEST_F(DaemonPressureTest, WhatItCouldNotReadStaysInSharedMemoryWhenTheJobHasEnded) {
  DaemonProcess daemon(directory_);
  ProducerProcess job({Recording("", 8), Recording("good", 8)});
  job.Write(0);
  job.Write(1);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "good", 1));
  job.ExitCleanly();
  ASSERT_TRUE(WaitUntil([&] { return daemon.Session(job.key())->state() == v1::Session::EXITED; }));
  client::Client client = daemon.Connect();
  ASSERT_TRUE(client.Ask<v1::SyncReply>(v1::SyncRequest()).ok()) << "all passes so far are over";
  EXPECT_EQ(::access(ring::ShmPath(job.segment()).c_str(), F_OK), 0);
  EXPECT_EQ(::access(ring::ShmPath(job.segment() + ".1").c_str(), F_OK), 0);
  const v1::Session session = *daemon.Session(job.key());
  ASSERT_EQ(session.not_seen_size(), 1) << "no answer passes over it";
  EXPECT_EQ(session.not_seen(0).count(), 1u);
  EXPECT_THAT(session.not_seen(0).reason(), HasSubstr("empty name"));
}

TEST_F(DaemonPressureTest, TwoHundredSlotsNeedNoDescriptorEach) {
#if defined(CGDEBUG_SANITIZED_THREAD)
  GTEST_SKIP() << "800 MB take ThreadSanitizer longer than the deadline";
#endif
  constexpr std::uint32_t kJobs = 20, kSlots = 10, kReplays = 5;
  std::vector<SlotSpec> specs;
  for (std::uint32_t i = 0; i < kSlots; ++i) {
    specs.push_back(Waiting("a" + std::to_string(i), 200'000, 4));  // 3 MiB of ring
    specs.back().wait_deadline_ms = 300'000;
  }
  std::vector<std::unique_ptr<ProducerProcess>> jobs;
  for (std::uint32_t i = 0; i < kJobs; ++i)
    jobs.push_back(std::make_unique<ProducerProcess>(specs));
  DaemonProcess daemon(directory_, {}, "ulimit -n 64");
  for (std::uint32_t replay = 0; replay < kReplays; ++replay) {
    for (const auto& job : jobs) {
      for (std::uint32_t slot = 0; slot < kSlots; ++slot) job->Write(slot);
    }
  }
  std::uint64_t wait_ns = 0;
  for (const auto& job : jobs) {
    for (const SlotSpec& spec : specs) {
      ASSERT_TRUE(daemon.WaitForConsumed(job->key(), spec.name, kReplays)) << spec.name;
      const v1::Counters counters = daemon.Probe(job->key(), spec.name)->counters();
      EXPECT_EQ(counters.overwrote_unread(), 0u);
      wait_ns += counters.wait_ns();
    }
  }
  EXPECT_LT(wait_ns, 300'000'000'000u) << "less than one deadline in all";
}

TEST_F(DaemonPressureTest, AJobThatItHadNoDescriptorForIsReadWhenItHasOne) {
  DaemonProcess daemon(directory_, {}, "ulimit -n 24");
  std::vector<std::unique_ptr<ProducerProcess>> jobs;
  for (int i = 0; i < 20; ++i) {
    jobs.push_back(std::make_unique<ProducerProcess>(std::vector{Recording("a")}));
    jobs.back()->Write(0, 3);
  }
  ASSERT_TRUE(WaitUntil([&] { return daemon.Status().skipped_size() > 0; }));
  EXPECT_THAT(daemon.Status().skipped(0).reason(), HasSubstr("too many open files"));
  const auto is_read = [&](const auto& job) {
    const auto probe = daemon.Probe(job->key(), "a");
    return probe && probe->counters().consumed() == 3;
  };
  while (!jobs.empty()) {
    auto found = jobs.end();
    ASSERT_TRUE(WaitUntil([&] {
      found = std::find_if(jobs.begin(), jobs.end(), is_read);
      return found != jobs.end();
    })) << jobs.size()
        << " jobs were not read";
    (*found)->ExitCleanly();  // its files are closed then
    jobs.erase(found);
  }
}

// How many snapshots of `live` the daemon read between the first and the end of a job that is found
// dead with `backlog` snapshots. The daemon is stopped until both have something to read.
std::uint64_t ReadBesideABacklog(DaemonProcess& daemon, const ProducerProcess& live,
                                 std::uint32_t backlog) {
  SlotSpec large = Recording("a", backlog);
  large.elements = 1024;
  std::string dead;
  std::uint64_t of_dead = 0, of_live = 0;
  v1::TailRequest request;
  request.set_follow(true);
  client::Client client = daemon.Connect();
  std::unique_ptr<ProducerProcess> job;
  const auto end = client.Tail(request, [&](const v1::TailReply& event) {
    if (event.caught_up()) {
      daemon.Stop();
      job = std::make_unique<ProducerProcess>(std::vector{large});
      job->Write(0, backlog);
      job->Kill();
      dead = job->key();
      daemon.Signal(SIGCONT);
    }
    if (event.has_snapshot() && event.snapshot().session() == dead) ++of_dead;
    if (event.has_snapshot() && event.snapshot().session() == live.key() && of_dead > 0) ++of_live;
    return !(event.has_session_change() && event.session_change().ended() &&
             event.session_change().session().key() == dead);
  });
  EXPECT_TRUE(end.ok()) << end.error().message;
  EXPECT_EQ(daemon.Probe(dead, "a")->counters().consumed(), backlog);
  return of_live;
}

// The order in which the daemon reads tells, however slow the machine is. The live job needs the
// processor in the meantime, so it has more than one chance; if dead jobs came first, it would have
// none.
TEST_F(DaemonPressureTest, ADeadJobsBacklogDoesNotHoldUpALiveJob) {
  DaemonProcess daemon(directory_);
  SlotSpec small = Waiting("b", 8, 2);
  small.wait_deadline_ms = 600'000;
  ProducerProcess live({small});
  // A job waits only for a daemon that reads it.
  ASSERT_TRUE(WaitUntil([&] { return daemon.Session(live.key()).has_value(); }));
  const ChildProcess trainer([&](const Line&) -> int {
    while (true) live.Write(0);
  });
  // More than its ring held when the reading began: it got credits, and used them.
  std::uint64_t most = 0;
  for (int chance = 0; chance < 10 && most <= small.capacity; ++chance) {
    most = std::max(most, ReadBesideABacklog(daemon, live, 4096));
  }
  EXPECT_GT(most, small.capacity) << "the live job goes on while the backlog is read";
  EXPECT_EQ(daemon.Probe(live.key(), "b")->counters().overwrote_unread(), 0u);
}

// --- what dead jobs leave -----------------------------------------------------------------------

TEST_F(DaemonPressureTest, AJobThatAsksForRoomGetsWhatADeadOneHeld) {
  constexpr std::uint64_t kBytes = 1200ull << 20;
  SlotSpec large = Recording("a", 4);
  large.elements = kBytes / 4 / sizeof(float);
  ProducerProcess dead({large});
  dead.Kill();
  DaemonProcess daemon(directory_);
  const auto died = [&] {
    const auto session = daemon.Session(dead.key());
    return session && session->state() == v1::Session::DIED;
  };
  ASSERT_TRUE(WaitUntil(died));
  EXPECT_EQ(InChild([] {
              ring::SegmentWriter segment{ring::Identity{}};
              while (!segment.gate()->ReaderAlive()) std::this_thread::yield();
              try {
                segment.Allocate(kBytes);
                return 1;
              } catch (const ring::SharedMemoryError& error) {
                if (!error.no_space()) return 2;
              }
              if (!segment.AskForRoom(kBytes + (1 << 20), kDeadline)) return 3;
              segment.Allocate(kBytes);
              segment.Close(/*unlink=*/true);
              return 0;
            }),
            0);
  EXPECT_TRUE(died()) << "what is known of it stays";
}

// A private /dev/shm that rings can fill, if the system lets the test mount one.
class SmallShm {
 public:
  explicit SmallShm(const std::string& size) : made_(UsePrivateShm(size)) {}
  ~SmallShm() {
    if (made_) umount2("/dev/shm", MNT_DETACH);
  }
  bool made() const { return made_; }

 private:
  bool made_;
};

SlotSpec OfMebibytes(std::uint32_t count) {
  SlotSpec spec = Recording("a", count);
  spec.elements = (1 << 20) / sizeof(float);
  return spec;
}

bool HasFiles(const ProducerProcess& job) {
  return access(ring::ShmPath(job.segment()).c_str(), F_OK) == 0;
}

TEST_F(DaemonPressureTest, IfRoomIsShortTheOldestDeadJobGivesWay) {
  const SmallShm shm("128m");
  if (!shm.made()) GTEST_SKIP() << "the system lets nobody mount";
  ProducerProcess older({OfMebibytes(12)}), newer({OfMebibytes(12)});
  DaemonProcess daemon(directory_);
  for (ProducerProcess* job : {&older, &newer}) {
    job->Write(0);
    ASSERT_TRUE(daemon.WaitForConsumed(job->key(), "a", 1));
  }
  for (ProducerProcess* job : {&newer, &older}) {
    job->Kill();
    ASSERT_TRUE(
        WaitUntil([&] { return daemon.Session(job->key())->state() == v1::Session::DIED; }));
  }
  ASSERT_TRUE(HasFiles(older) && HasFiles(newer)) << "there is room for both";
  ProducerProcess live({OfMebibytes(98)});
  ASSERT_TRUE(WaitUntil([&] { return !HasFiles(older); }));
  EXPECT_TRUE(HasFiles(newer)) << "its going made room enough";
  live.Write(0);
  EXPECT_TRUE(daemon.WaitForConsumed(live.key(), "a", 1));
  EXPECT_TRUE(HasFiles(newer));
}

TEST_F(DaemonPressureTest, IfDeadJobsHoldTooMuchTheNewestStays) {
  const SmallShm shm("128m");
  if (!shm.made()) GTEST_SKIP() << "the system lets nobody mount";
  ProducerProcess older({OfMebibytes(12)}), newer({OfMebibytes(48)});
  for (ProducerProcess* job : {&older, &newer}) {
    job->Write(0);
    job->Kill();
  }
  DaemonProcess daemon(directory_);
  ASSERT_TRUE(WaitUntil([&] { return !HasFiles(older); }));
  ASSERT_TRUE(daemon.WaitForConsumed(newer.key(), "a", 1));
  EXPECT_TRUE(HasFiles(newer));
}

TEST_F(DaemonPressureTest, PruningForgetsDeadJobsAndNoOthers) {
  ProducerProcess dead({Recording("a")}), live({Recording("b")});
  dead.Write(0, 3);
  dead.Kill();
  DaemonProcess daemon(directory_);
  ASSERT_TRUE(daemon.WaitForConsumed(dead.key(), "a", 3));
  ASSERT_TRUE(WaitUntil([&] { return daemon.Session(dead.key())->state() == v1::Session::DIED; }));
  client::Client client = daemon.Connect();
  const auto reply = client.Ask<v1::PruneReply>(v1::PruneRequest());
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->sessions(), 1u);
  EXPECT_GT(reply->bytes(), 0u);
  EXPECT_TRUE(WaitUntil([&] { return !daemon.Session(dead.key()); }));
  EXPECT_NE(access(ring::ShmPath(dead.segment()).c_str(), F_OK), 0);
  live.Write(0, 1);
  EXPECT_TRUE(daemon.WaitForConsumed(live.key(), "b", 1));
}

}  // namespace
}  // namespace cgdebug::test
