// What is exported to Prometheus about jobs that exist only in the model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "daemon/metrics/exporter.h"
#include "daemon/metrics/page.h"
#include "tests/support/daemon/model_fixture.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wait_until.h"

namespace cgdebug::metrics {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class Exported : public testing::Test {
 protected:
  void SetUp() override {
    if (!CanMakePages()) GTEST_SKIP() << "built without prometheus-cpp";
  }
  pipeline::SessionPtr AddJob(const std::string& uuid, std::int64_t created_ns) {
    return registry_.AddSession(test::MakeIdentity(uuid, "run" + uuid, created_ns));
  }
  void AddValue(const pipeline::SessionPtr& job, const std::string& probe, std::uint64_t order,
                std::uint64_t replay, float value, const std::string& op = "") {
    pipeline::SlotIdentity identity = test::MakeSlotIdentity(job, probe, order);
    identity.op = op;
    const auto slot = std::make_shared<const pipeline::SlotIdentity>(identity);
    layout::Counters counters;
    counters.produced = counters.consumed = counters.replays = replay;
    registry_.SetSlot(slot, counters, 1, false);
    registry_.SetLast(test::MakeDelivery(slot, replay, {value, -value}).snapshot);
  }

  pipeline::Registry registry_;
  pipeline::SnapshotStore store_{1u << 20};
  pipeline::Recorder recorder_{{}, {}, {}};
  Model model_{&registry_, &store_, &recorder_};
};

TEST_F(Exported, JobsBeyondTheLimitAreCountedAndThoseThatLiveComeFirst) {
  AddJob("aaaaaaaa", 1);
  registry_.EndSession(AddJob("bbbbbbbb", 2), pipeline::SessionState::kDied, 20);
  registry_.EndSession(AddJob("cccccccc", 3), pipeline::SessionState::kExited, 30);
  const std::string page = MakePage(model_, {.sessions = 2});
  EXPECT_THAT(page, HasSubstr("cgdebug_session_alive{session=\"aaaaaaaa\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("cgdebug_session_alive{session=\"cccccccc\"} 0\n"));
  EXPECT_THAT(page, Not(HasSubstr("bbbbbbbb")));
  EXPECT_THAT(page, HasSubstr("cgdebug_sessions_left_out 1\n"));
  EXPECT_THAT(page, HasSubstr("cgdebug_sessions{state=\"died\"} 1\n"));
}

TEST_F(Exported, RowsOfAnEagerLogThatAreProbesHaveNoSeriesAndAGapIsNoProbe) {
  const pipeline::SessionPtr job = AddJob("aaaaaaaa", 1);
  AddValue(job, "fwd/mm_0", 1, 1, 1, "1 aten.mm.default");
  AddValue(job, "ops/gap", 2, 1, 1, "gap job capture 3 has no log");
  AddValue(job, "x", 3, 1, 1);
  const std::string page = MakePage(model_, {.probes = 1});
  EXPECT_THAT(page, HasSubstr("cgdebug_probe_replay{session=\"aaaaaaaa\",probe=\"x\"} 1\n"));
  EXPECT_THAT(page, Not(HasSubstr("mm_0")));
  EXPECT_THAT(page, HasSubstr("cgdebug_probes_left_out{session=\"aaaaaaaa\"} 1\n"));
}

TEST_F(Exported, ASumDoesNotFallWhenASlotIsForgotten) {
  const pipeline::SessionPtr job = AddJob("aaaaaaaa", 1);
  AddValue(job, "x", 1, 40, 1);
  AddValue(job, "y", 2, 2, 1);
  const std::string produced = "cgdebug_snapshots_produced_total{session=\"aaaaaaaa\"} 42\n";
  const std::string replays = "cgdebug_session_replays_total{session=\"aaaaaaaa\"} 40\n";
  EXPECT_THAT(MakePage(model_, {}), testing::AllOf(HasSubstr(produced), HasSubstr(replays)));
  registry_.ForgetSlot(registry_.Slots(job)[0].slot);
  EXPECT_THAT(MakePage(model_, {}), testing::AllOf(HasSubstr(produced), HasSubstr(replays)));
}

TEST_F(Exported, TheFileIsWholeWhileJobsComeAndGo) {
  const testing_support::TempDir folder;
  const std::string file = folder / "cgdebug.prom";
  auto exporter = Exporter::Open(
      {.textfile = folder.path().string(), .interval = std::chrono::milliseconds(1)});
  ASSERT_TRUE(exporter.ok()) << exporter.error().message;
  (*exporter)->Start(model_);
  std::atomic<bool> is_over = false;
  std::thread ingest([&] {
    for (std::uint64_t replay = 1; !is_over.load(); ++replay) {
      const pipeline::SessionPtr job = AddJob("aaaaaaaa", 1);
      AddValue(job, "x", 1, replay, 0.5f);
      if (replay % 8 == 0) registry_.ForgetSession(job);
    }
  });
  const auto read = [&] {
    std::ifstream stream(file);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };
  const bool has_seen_it = test::WaitUntil([&] {
    const std::string text = read();
    EXPECT_THAT(text, StartsWith("# HELP cgdebug_build_info"));
    EXPECT_THAT(text, EndsWith("\n"));
    return text.find("cgdebug_probe_abs_max{session=\"aaaaaaaa\",probe=\"x\"} 0.5\n") !=
           std::string::npos;
  });
  is_over = true;
  ingest.join();
  EXPECT_TRUE(has_seen_it);
  exporter->reset();
  EXPECT_EQ(read(), "");
}

TEST(ParseListen, WantsAHostAndAPort) {
  for (const char* text : {"localhost:9400", "0.0.0.0:0", "[::1]:65535", "gpu-7.example:80"}) {
    EXPECT_TRUE(ParseListen(text).ok()) << text;
  }
  for (const char* text : {"", ":", ":9400", "localhost", "localhost:", "localhost:-1", "a:65536",
                           "::1:9400", "[]:1", "[::1]9400", "localhost:94x"}) {
    EXPECT_FALSE(ParseListen(text).ok()) << text;
  }
}

}  // namespace
}  // namespace cgdebug::metrics
