// What clients see that follow with Tail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/support/daemon/daemon_process.h"
#include "tests/support/daemon/producer_process.h"
#include "tests/support/wait_until.h"

namespace cgdebug::test {
namespace {

using testing::ElementsAre;

class DaemonTail : public testing::Test {
 protected:
  testing_support::TempDir directory_;
};

TEST_F(DaemonTail, TailsTheLastEventsInOrderAndThenWhatComes) {
  DaemonProcess daemon(directory_);
  ProducerProcess job({Recording("a"), Recording("b")});
  job.Write(0, 3);
  job.Write(1, 1);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "a", 3));
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "b", 1));
  v1::TailRequest request;
  request.set_last(2);
  request.set_follow(true);
  request.set_until_exit(true);
  request.add_probes("a");
  std::vector<std::string> seen;
  client::Client client = daemon.Connect();
  const auto end = client.Tail(request, [&](const v1::TailReply& event) {
    if (event.has_snapshot()) seen.push_back(std::to_string(event.snapshot().replay()));
    if (event.has_session_change())
      seen.push_back(event.session_change().ended() ? "end" : "begin");
    if (event.caught_up()) {
      seen.push_back("live");
      job.Write(0, 1);
      job.Write(1, 1);
      job.Kill();
    }
    return true;
  });
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(*end, client::TailEnd::kFinished);
  EXPECT_THAT(seen, ElementsAre("2", "3", "live", "4", "end"));
}

TEST_F(DaemonTail, TheLastFailureIsShownEvenAfterItsSessionEnded) {
  DaemonProcess daemon(directory_);
  SlotSpec spec = Recording("blk0.out");
  spec.compare_every = 1;
  spec.expected = 7;
  ProducerProcess job({spec});
  job.WriteValue(0, 7);
  job.WriteValue(0, 8);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "blk0.out", 2));
  job.ExitCleanly();
  ASSERT_TRUE(WaitUntil([&] { return daemon.Session(job.key())->state() == v1::Session::EXITED; }));
  v1::TailRequest request;
  request.set_last(1);
  request.set_only(v1::TailRequest::FAILED);
  std::vector<std::uint64_t> failed;
  ASSERT_TRUE(daemon.Connect()
                  .Tail(request,
                        [&](const v1::TailReply& event) {
                          if (event.has_compare_failed()) {
                            failed.push_back(event.compare_failed().replay());
                          }
                          return true;
                        })
                  .ok());
  EXPECT_THAT(failed, ElementsAre(2));
}

TEST_F(DaemonTail, TailShowsOnlyWhatIsAskedFor) {
  DaemonProcess daemon(directory_);
  SlotSpec compared = Recording("c");
  compared.compare_every = 1;
  compared.expected = 1;
  ProducerProcess job({Recording("a"), compared});
  for (const float value : {1.0f, 1.0f, std::numeric_limits<float>::quiet_NaN(), 2.0f}) {
    job.WriteValue(0, value);
  }
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "a", 4));
  job.WriteValue(1, 1);
  job.WriteValue(1, 2);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "c", 2));
  const auto tail = [&](v1::TailRequest::Only only) {
    v1::TailRequest request;
    request.set_last(1000);
    request.set_only(only);
    std::vector<std::string> seen;
    client::Client client = daemon.Connect();
    EXPECT_TRUE(client
                    .Tail(request,
                          [&](const v1::TailReply& event) {
                            if (event.has_snapshot()) {
                              seen.push_back(event.snapshot().probe() +
                                             std::to_string(event.snapshot().replay()));
                            }
                            if (event.has_compare_failed()) {
                              seen.push_back("fail" +
                                             std::to_string(event.compare_failed().replay()));
                            }
                            return true;
                          })
                    .ok());
    return seen;
  };
  EXPECT_THAT(tail(v1::TailRequest::NONFINITE), ElementsAre("a3"));
  EXPECT_THAT(tail(v1::TailRequest::CHANGED), ElementsAre("a1", "a3", "a4", "c1", "c2"));
  EXPECT_THAT(tail(v1::TailRequest::FAILED), ElementsAre("fail2"));
  EXPECT_THAT(tail(v1::TailRequest::ALL), ElementsAre("a1", "a2", "a3", "a4", "c1", "c2", "fail2"));
}

TEST_F(DaemonTail, NothingOldIsShownForProbesThatNoJobHasHad) {
  DaemonProcess daemon(directory_);
  ProducerProcess job({Recording("a")});
  job.Write(0, 1);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "a", 1));
  v1::TailRequest request;
  request.set_last(10);
  request.add_probes("nope");
  std::vector<v1::TailReply::EventCase> seen;
  const auto see = [&](const v1::TailReply& event) {
    if (!event.has_caught_up()) seen.push_back(event.event_case());
    return true;
  };
  ASSERT_TRUE(daemon.Connect().Tail(request, see).ok());
  EXPECT_THAT(seen, ElementsAre());
  request.set_probes(0, "a");
  ASSERT_TRUE(daemon.Connect().Tail(request, see).ok());
  EXPECT_THAT(seen, ElementsAre(v1::TailReply::kSessionChange, v1::TailReply::kSnapshot));
}

}  // namespace
}  // namespace cgdebug::test
