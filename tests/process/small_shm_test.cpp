// A full /dev/shm gives a clear error, never a SIGBUS, and what worked goes on working.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "libprobe/probe_table.h"
#include "libprobe/ring/segment/segment_view.h"
#include "tests/support/child_process.h"
#include "tests/support/private_shm.h"
#include "tests/support/ring/probe_fixture.h"

namespace cgdebug {
namespace {

using test::Always;
using test::AlwaysPrint;
using test::Cpu;
using test::Line;
using test::Values;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::size_t kFloatsPerMiB = (1 << 20) / sizeof(float);

// "" when it was seen, else why it was not. Nothing of it reaches the caller.
std::string Observe(Probe& probe, const std::vector<float>& values) {
  const std::uint64_t before = NotSeenSoFar().calls;
  probe.Observe(Cpu(values));
  return NotSeenSoFar().calls == before ? "" : probe.Status().last_error;
}

std::vector<float> MiB(std::size_t mib, float value) {
  return std::vector<float>(mib * kFloatsPerMiB, value);
}

// What `job` sends, line by line; its exit code last. "skip" where no /dev/shm can be made.
template <typename Job>
std::vector<std::string> WithShm(const std::string& size, Job&& job) {
  test::ChildProcess child([&](const Line& line) {
    if (!test::UsePrivateShm(size)) {
      line.Send("skip");
      return 0;
    }
    test::ForbidDaemon();
    job(line);
    return 0;
  });
  std::vector<std::string> lines;
  for (std::string text = child.line().Receive(); !text.empty(); text = child.line().Receive()) {
    lines.push_back(text);
  }
  lines.push_back(std::to_string(child.Wait()));
  return lines;
}

#define SKIP_WITHOUT_SHM(lines) \
  if ((lines).at(0) == "skip") GTEST_SKIP() << "the system lets nobody mount"

TEST(SmallShm, WhatIsNotSeenIsCountedInTheControlFileAndWithoutOneInTheProcess) {
  const auto lines = WithShm("1m", [](const Line& line) {
    const auto counts = [] {
      const NotSeenCounts all = NotSeenSoFar();
      return std::to_string(all.places) + " " + std::to_string(all.calls) + " " + all.name;
    };
    const char* hog = "/dev/shm/hog";
    std::ofstream(hog) << std::string((1 << 20) - 65536, 'x');
    CountNotSeen("first", "too small");
    line.Send("1:" + counts() + (CurrentSession() ? " shown" : ""));
    std::filesystem::remove(hog);
    Probe large("large", Always(4));
    for (int i = 0; i < 3; ++i) (void)Observe(large, MiB(1, 1));
    CountNotSeen("large", "known");
    line.Send("2:" + counts() + (CurrentSession() ? " shown" : ""));
    std::string reason;
    const auto view = ring::SegmentView::Attach(CurrentSession()->name, &reason);
    Probe small("small", Always(4));
    (void)Observe(small, {1});
    line.Send("3:" + layout::ToText(view->account().refused_places()));
    const auto gone = [&] {
      const layout::NotSeen all = view->account().refused_places();
      return std::to_string(all.gone.count) + " of " + std::to_string(all.gone.of) + ", " +
             std::to_string(all.gone.calls) + " calls" +
             (all.gone.order > 0 ? " beside a slot, " : ", ") + all.name + ": " + all.reason;
    };
    NotWanted("first");
    line.Send("4:" + gone());
    large.Close();
    NotWanted("never refused");
    line.Send("5:" + gone());
    CountNotSeen("captured", "no room", /*is_captured=*/true);
    NotWanted("captured");
    line.Send("6:" + gone());
    CountNotSeen("first", "again");
    line.Send("7:" + layout::ToText(view->account().refused_places()));
    ProbeTable::Instance().not_seen.CountMalformed("CGDEBUG_LANE is direct or callback, not 'x'");
    ProbeTable::Instance().not_seen.CountMalformed("CGDEBUG_WAIT_MS is a number, not '2s'");
    line.Send("8:" + layout::ToText(view->account().malformed_settings()));
    line.Send("9:" + NotSeenText());
  });
  SKIP_WITHOUT_SHM(lines);
  ASSERT_EQ(lines.size(), 10u);
  EXPECT_EQ(lines[0], "1:1 1 first");
  EXPECT_EQ(lines[1], "2:2 5 first shown");
  EXPECT_EQ(lines[2], "3:2 of 3 probes are not watched, the first first (5 calls): too small");
  EXPECT_THAT(lines[3], StartsWith("4:1 of 1, 1 calls beside a slot, large: "));
  EXPECT_THAT(lines[4], StartsWith("5:2 of 2, 5 calls beside a slot, large: "))
      << "nothing else is to be named";
  EXPECT_EQ(lines[5], "6:2 of 2, 5 calls beside a slot, captured: no room")
      << "a graph has it for good";
  EXPECT_EQ(lines[6], "7:4 of 5 probes are not watched, the first captured (7 calls): no room");
  const std::string malformed =
      "the job goes on without 2 variables of its environment that are malformed, the first: "
      "CGDEBUG_LANE is direct or callback, not 'x'";
  EXPECT_EQ(lines[7], "8:" + malformed);
  EXPECT_EQ(lines[8], "9:" + lines[6].substr(2) + "; " + malformed);
}

TEST(SmallShm, ARingThatDoesNotFitIsRefusedWithItsSizeAndARemedyAndSmallOnesGoOn) {
  const auto lines = WithShm("1m", [](const Line& line) {
    Probe small("small", Always(2));
    line.Send("1:" + Observe(small, {1, 2, 3}));
    Probe large("large", Always(4));
    line.Send("2:" + Observe(large, MiB(1, 1)));
    line.Send("3:" + large.Status().last_error);
    line.Send("4:" + Observe(small, {4, 5, 6}));
    line.Send("5:" + std::to_string(Values(small.Records(1).at(0))[2]));
    line.Send("6:" + Observe(large, {7}));
    line.Send("7:" + std::to_string(large.Records().size()));
  });
  SKIP_WITHOUT_SHM(lines);
  ASSERT_EQ(lines.size(), 8u);
  EXPECT_EQ(lines[0], "1:");
  EXPECT_THAT(lines[1], AllOf(StartsWith("2:probe 'large'"), HasSubstr("4.0 MiB more are needed"),
                              HasSubstr("of 1.0 MiB are free"), HasSubstr("--shm-size=")));
  EXPECT_THAT(lines[2], HasSubstr("4.0 MiB more are needed"));
  EXPECT_EQ(lines[3], "4:");
  EXPECT_THAT(lines[4], StartsWith("5:6"));
  EXPECT_EQ(lines[5], "6:") << "the probe that was refused takes smaller tensors";
  EXPECT_EQ(lines[6], "7:1");
  EXPECT_EQ(lines[7], "0");
}

TEST(SmallShm, WithoutRoomForTheControlFileEveryCallSaysSo) {
  const auto lines = WithShm("128k", [](const Line& line) {
    Probe probe("x", Always(1));
    for (int i = 0; i < 2; ++i) line.Send(Observe(probe, {1}));
    line.Send(CurrentSession() ? "a session" : "no session");
    std::size_t files = 0;
    for (const auto& file : std::filesystem::directory_iterator("/dev/shm"))
      files += !file.path().empty();
    line.Send(std::to_string(files));
  });
  SKIP_WITHOUT_SHM(lines);
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_THAT(lines[0], AllOf(HasSubstr("probe 'x'"), HasSubstr("--shm-size=")));
  EXPECT_EQ(lines[1], lines[0]);
  EXPECT_EQ(lines[2], "no session");
  EXPECT_EQ(lines[3], "0") << "nothing is left behind";
  EXPECT_EQ(lines[4], "0");
}

TEST(SmallShm, ClosedProbesMakeRoomAndTheOthersKeepTheirRecords) {
  const auto lines = WithShm("8m", [](const Line& line) {
    Probe first("first", Always(1));
    Probe second("second", Always(1));
    Probe third("third", Always(1));
    line.Send("1:" + Observe(first, MiB(3, 1)));
    line.Send("2:" + Observe(second, MiB(3, 2)));
    line.Send("3:" + Observe(third, MiB(3, 3)));
    first.Close();
    line.Send("4:" + Observe(third, MiB(3, 3)));
    line.Send(Values(second.Records().at(0)) == MiB(3, 2) ? "kept" : "changed");
    line.Send(Values(third.Records().at(0)) == MiB(3, 3) ? "right" : "wrong");
  });
  SKIP_WITHOUT_SHM(lines);
  ASSERT_EQ(lines.size(), 7u);
  EXPECT_EQ(lines[0], "1:");
  EXPECT_EQ(lines[1], "2:");
  EXPECT_THAT(lines[2], AllOf(StartsWith("3:probe 'third'"), HasSubstr("3.0 MiB more")));
  EXPECT_EQ(lines[3], "4:");
  EXPECT_EQ(lines[4], "kept");
  EXPECT_EQ(lines[5], "right");
  EXPECT_EQ(lines[6], "0");
}

// What a closed probe printed is kept for the daemon, but only until the room is needed.
TEST(SmallShm, UnreadPrintsOfAClosedProbeGiveWay) {
  const auto lines = WithShm("8m", [](const Line& line) {
    test::ExpectDaemon();
    Probe first("first", AlwaysPrint());
    line.Send("1:" + Observe(first, std::vector<float>(kFloatsPerMiB / 2, 1)));  // 8 of them
    line.Send("2:" + Observe(first, MiB(1, 1)));
    first.Close();
    Probe second("second", Always(4));
    line.Send("3:" + Observe(second, MiB(1, 2)));
  });
  SKIP_WITHOUT_SHM(lines);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0], "1:");
  EXPECT_THAT(lines[1], HasSubstr("8.0 MiB more"));
  EXPECT_EQ(lines[2], "3:");
  EXPECT_EQ(lines[3], "0");
}

TEST(SmallShm, ShapesThatTheirProbesSeeNoMoreGiveWayToNewOnes) {
  const auto lines = WithShm("16m", [](const Line& line) {
    std::vector<std::unique_ptr<Probe>> probes;
    for (int i = 0; i < 4; ++i) {
      probes.push_back(std::make_unique<Probe>("p" + std::to_string(i), Always(8)));
    }
    std::string refused;
    for (std::size_t length = 1; length < 60; ++length) {
      for (const auto& probe : probes) {
        refused += Observe(*probe, std::vector<float>(512 * length, static_cast<float>(length)));
      }
    }
    line.Send("1:" + refused);
    for (const auto& probe : probes) line.Send(std::to_string(Values(probe->Records(1).at(0))[0]));
  });
  SKIP_WITHOUT_SHM(lines);
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_EQ(lines[0], "1:");
  for (std::size_t i = 1; i < 5; ++i) EXPECT_EQ(lines[i].substr(0, 3), "59.");
  EXPECT_EQ(lines[5], "0");
}

TEST(SmallShm, WhatOtherProbesShowAtPresentStays) {
  const auto lines = WithShm("8m", [](const Line& line) {
    Probe first("first", Always(1));
    Probe second("second", Always(1));
    Probe third("third", Always(1));
    line.Send("1:" + Observe(first, MiB(3, 1)) + Observe(second, MiB(3, 2)));
    for (int i = 0; i < 3; ++i) line.Send(Observe(third, MiB(3, 3)).empty() ? "seen" : "refused");
    line.Send(Values(first.Records().at(0)) == MiB(3, 1) ? "kept" : "changed");
    line.Send(Values(second.Records().at(0)) == MiB(3, 2) ? "kept" : "changed");
  });
  SKIP_WITHOUT_SHM(lines);
  EXPECT_THAT(lines,
              ::testing::ElementsAre("1:", "refused", "refused", "refused", "kept", "kept", "0"));
}

// A tensor of 16 MiB in 1 MiB of shared memory.
TEST(SmallShm, StatisticsOfATensorTakeNoRoomForItsValues) {
  const auto lines = WithShm("1m", [](const Line& line) {
    ProbeOptions options;
    options.mode = ProbeMode::kAlways;
    options.stats = StatsAction{};
    Probe probe("stats", options);
    line.Send("1:" + Observe(probe, MiB(16, 1)));
    line.Send(std::to_string(probe.Status().slots.at(0).payload_bytes));
  });
  SKIP_WITHOUT_SHM(lines);
  EXPECT_THAT(lines, ::testing::ElementsAre("1:", "128", "0"));
}

}  // namespace
}  // namespace cgdebug
