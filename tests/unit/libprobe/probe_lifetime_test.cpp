// What a probe takes and gives back (slots, blocks, files) when it is closed, forked and at the end
// of the process.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>

#include "libprobe/capture/graph/counted_graph.h"
#include "libprobe/capture/graph/eager_looks.h"
#include "libprobe/capture/graph/slot_life.h"
#include "libprobe/ring/segment/segment_view.h"
#include "tests/support/child_process.h"
#include "tests/support/ring/probe_fixture.h"

namespace cgdebug {
namespace {

using test::Always;
using test::AlwaysPrint;
using test::Cpu;
using test::ErrorText;
using test::InChild;
using test::Values;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const bool kNoDaemon = [] { return test::ForbidDaemon(), true; }();

constexpr std::uint64_t kMiB = 1 << 20;

bool Exists(const std::string& name) { return std::filesystem::exists("/dev/shm/" + name); }

// --- who still needs a slot ---------------------------------------------------------------------

using capture::SlotLife;
using capture::SlotPhase;

TEST(SlotLife, AGraphAndAProbeLeaveInEitherOrderAndOnlyTheProbeDisarms) {
  SlotLife probe_first;
  probe_first.HoldByGraph();
  EXPECT_EQ(probe_first.phase(), SlotPhase::kLive);
  EXPECT_TRUE(probe_first.armed());
  probe_first.LetGo();
  EXPECT_EQ(probe_first.phase(), SlotPhase::kDisarmed);
  EXPECT_FALSE(probe_first.armed());
  EXPECT_FALSE(probe_first.unreachable());
  EXPECT_FALSE(probe_first.graph_is_gone());
  probe_first.GraphIsGone();
  EXPECT_EQ(probe_first.phase(), SlotPhase::kUnreferenced);
  EXPECT_TRUE(probe_first.unreachable());

  SlotLife graph_first;
  graph_first.HoldByGraph();
  graph_first.GraphIsGone();
  EXPECT_EQ(graph_first.phase(), SlotPhase::kGraphGone);
  EXPECT_TRUE(graph_first.graph_is_gone());
  EXPECT_FALSE(graph_first.unreachable()) << "the probe still shows its records";
  graph_first.LetGo();
  EXPECT_EQ(graph_first.phase(), SlotPhase::kUnreferenced);
}

TEST(EagerLooks, OneThatCameBackIsUsedAgainAndNoneThatIsQueued) {
  capture::EagerLooks looks;
  capture::EagerLook* const first = looks.Take({nullptr, 1, 10});
  capture::EagerLook* const second = looks.Take({nullptr, 2, 20});
  EXPECT_NE(first, second);
  std::thread([&] { looks.GiveBack(first); }).join();
  capture::EagerLook* const third = looks.Take({nullptr, 3, 30});
  EXPECT_EQ(third, first);
  EXPECT_EQ(third->call, 3u);
  EXPECT_EQ(second->step, 20) << "it is queued";
  EXPECT_NE(looks.Take({nullptr, 4, 40}), second);
}

TEST(SlotLife, WithoutAGraphASlotIsUnreferencedWhenItsProbeLetsGo) {
  SlotLife life;
  life.LetGo();
  EXPECT_EQ(life.phase(), SlotPhase::kUnreferenced);
  EXPECT_FALSE(life.graph_is_gone()) << "its buffers may still be in use by a queued call";
}

TEST(SlotLife, APinKeepsASlotThatNobodyRefersTo) {
  SlotLife life;
  life.Pin();
  life.LetGo();
  EXPECT_FALSE(life.unreachable());
  life.Unpin();
  EXPECT_TRUE(life.unreachable());
}

TEST(SlotLife, GraphAndProbeMayLeaveAtOnce) {
  for (int i = 0; i < 1000; ++i) {
    SlotLife life;
    life.HoldByGraph();
    std::thread driver([&] { life.GraphIsGone(); });
    life.LetGo();
    driver.join();
    ASSERT_EQ(life.phase(), SlotPhase::kUnreferenced);
  }
}

// --- when a graph whose launches are counted is over --------------------------------------------

using End = CountedGraph::End;

// A captured graph with two leaves, whose runs the test plays.
class CountedGraphEnd : public ::testing::Test {
 protected:
  CountedGraphEnd() {
    for (std::uint64_t& runs : runs_) graph_.AddLeaf(&runs);
    graph_.CaptureEnded();
  }
  void Run(int times) {
    for (std::uint64_t& runs : runs_) runs += times;
  }
  void Launch(int times) {
    for (int i = 0; i < times; ++i) graph_.CountLaunch();
  }
  End LookAfter(std::chrono::milliseconds passed) { return graph_.Look(now_ += passed); }
  // Long enough for the stores of a leaf to arrive.
  End Look() {
    (void)LookAfter(std::chrono::milliseconds(0));
    return LookAfter(CountedGraph::kStoresArrive);
  }

  std::uint64_t shown_ = 0;
  std::uint64_t runs_[2] = {};
  CountedGraph::Clock::time_point now_{};
  CountedGraph graph_{this, 7, 1, &shown_};
};

TEST_F(CountedGraphEnd, IsWhenTheOwnerIsGoneAndEveryLeafHasRunAsOftenAsItWasLaunched) {
  EXPECT_EQ(Look(), End::kPending) << "it can be launched at any time";
  Launch(3);
  Run(3);
  EXPECT_EQ(Look(), End::kPending);
  Launch(2);
  graph_.OwnerIsGone();
  EXPECT_EQ(Look(), End::kPending) << "two launches are under way";
  Run(1);
  runs_[0] += 1;
  EXPECT_EQ(Look(), End::kPending) << "one leaf has not run yet";
  runs_[1] += 1;
  EXPECT_EQ(Look(), End::kOver);
  runs_[0] = 99;  // another graph's now
  EXPECT_EQ(Look(), End::kOver);
  EXPECT_EQ(shown_, 5u);
}

TEST_F(CountedGraphEnd, IsNotBeforeTheLastStoresOfItsLeavesHadTimeToArrive) {
  Launch(1);
  Run(1);
  graph_.OwnerIsGone();
  const auto step = CountedGraph::kStoresArrive / 2;
  EXPECT_EQ(LookAfter(step), End::kPending);
  EXPECT_EQ(LookAfter(step), End::kPending);
  EXPECT_EQ(LookAfter(step), End::kOver);
}

TEST_F(CountedGraphEnd, OfAGraphThatWasNeverLaunchedNeedsNoRun) {
  graph_.OwnerIsGone();
  EXPECT_EQ(Look(), End::kOver);
}

TEST_F(CountedGraphEnd, IsNeverKnownOnceALeafRanMoreOftenThanWasCounted) {
  Launch(2);
  Run(3);
  graph_.OwnerIsGone();
  EXPECT_EQ(Look(), End::kUnknown);
  Launch(1);
  EXPECT_EQ(Look(), End::kUnknown) << "the count happens to fit, and launches are still left out";
}

TEST_F(CountedGraphEnd, IsNeverKnownIfAnUncountedLaunchFinishesBeforeTheStoresHadTimeToArrive) {
  Launch(1);
  Run(1);
  graph_.OwnerIsGone();
  EXPECT_EQ(LookAfter(CountedGraph::kStoresArrive / 2), End::kPending);
  Run(1);
  EXPECT_EQ(Look(), End::kUnknown);
}

TEST_F(CountedGraphEnd, IsNeverKnownOfAGraphThatOthersMayLaunch) {
  Launch(1);
  Run(1);
  graph_.Escape();
  EXPECT_EQ(shown_, layout::kUnknownCount) << "a count that may be too low is not shown";
  Launch(1);
  EXPECT_EQ(shown_, layout::kUnknownCount);
  graph_.OwnerIsGone();
  EXPECT_EQ(Look(), End::kUnknown);
}

TEST_F(CountedGraphEnd, IsNeverKnownOfAnOwnerThatComesBack) {
  graph_.OwnerIsGone();
  Launch(1);
  Run(1);
  EXPECT_EQ(Look(), End::kUnknown);
}

TEST_F(CountedGraphEnd, ComesAfterALaunchThatFailed) {
  Launch(2);
  graph_.TakeBackLaunch();
  Run(1);
  graph_.OwnerIsGone();
  EXPECT_EQ(Look(), End::kOver);
  EXPECT_EQ(shown_, 1u);
}

TEST_F(CountedGraphEnd, ComesAfterLaunchesOfSeveralThreads) {
  constexpr int kEach = 10'000;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back([&] { Launch(kEach); });
  for (std::thread& thread : threads) thread.join();
  Run(4 * kEach);
  graph_.OwnerIsGone();
  EXPECT_EQ(Look(), End::kOver);
  EXPECT_EQ(shown_, 4u * kEach);
}

TEST(CountedGraphOwner, ThatGoesBeforeTheCaptureEndsLeavesAGraphThatOthersMayLaunch) {
  std::uint64_t runs = 0;
  CountedGraph graph(nullptr, 7, 1, nullptr);
  graph.AddLeaf(&runs);
  graph.OwnerIsGone();
  graph.CaptureEnded();
  EXPECT_EQ(graph.Look({}), End::kUnknown);
}

// --- slots --------------------------------------------------------------------------------------

TEST(ProbeSlots, UnusedShapesAreGivenBackEvenIfNobodyAsksForTheStatus) {
  Probe probe("x", Always(1));
  for (std::size_t n = 1; n <= 1000; ++n) probe.Observe(Cpu(std::vector<float>(n)));
  EXPECT_LE(CurrentSession()->slots, 70u);
}

TEST(ProbeSlots, TheLeastRecentlyUsedOfManyShapesIsGivenUpAndItsSnapshotsAreCounted) {
  EXPECT_EQ(InChild([] {
              Probe probe("x", Always(512));
              for (std::size_t n = 1; n <= 200; ++n) {
                probe.Observe(Cpu(std::vector<float>(n)));
                probe.Observe(Cpu({7}));  // of the first shape
              }
              std::size_t of_first_shape = 0;
              const auto records = probe.Records();
              for (const Record& record : records) {
                of_first_shape += record.shape.at(0) == 1 ? 1 : 0;
              }
              if (of_first_shape != 201) return 1;
              if (probe.Status().slots.size() != 64) return 2;
              return records.size() + CurrentSession()->released_unread == 400 ? 0 : 3;
            }),
            0);
}

TEST(ProbeSlots, AFullDirectoryIsCountedCostsNothingAndEndsWithAClose) {
#if defined(CGDEBUG_SANITIZED)
  GTEST_SKIP() << "131072 slots take a sanitizer minutes";
#endif
  std::vector<std::unique_ptr<Probe>> probes;
  for (std::uint32_t p = 0; p < layout::kMaxSlots; ++p) {
    probes.push_back(std::make_unique<Probe>("p" + std::to_string(p), Always(1)));
    probes.back()->Observe(Cpu({float(p)}));
  }
  ASSERT_EQ(CurrentSession()->slots, layout::kMaxSlots);
  // To make them takes longer than a slot may idle on a slow machine, to use them again does not.
  for (std::uint32_t p = 0; p < layout::kMaxSlots; ++p) probes[p]->Observe(Cpu({float(p)}));
  Probe last("last", Always(1));
  const std::vector<float> mib(kMiB / sizeof(float));
  last.Observe(Cpu(mib));
  EXPECT_THAT(last.Status().last_error,
              AllOf(HasSubstr("'last'"), HasSubstr("131072"), HasSubstr("close")));
  const std::uint64_t before = CurrentSession()->shm_bytes;
  const std::uint64_t counted = NotSeenSoFar().calls;
  for (int i = 0; i < 100; ++i) last.Observe(Cpu(mib));
  EXPECT_EQ(CurrentSession()->shm_bytes, before) << "a refusal keeps no block";
  EXPECT_EQ(NotSeenSoFar().calls, counted + 100);
  EXPECT_THAT(last.Records(), IsEmpty());
  EXPECT_THAT(Values(probes[0]->Records(1).at(0)), ElementsAre(0)) << "and nobody else's record";
  probes[7]->Observe(Cpu({5}));
  EXPECT_THAT(Values(probes[7]->Records(1).at(0)), ElementsAre(5));
  probes[9]->Close();
  last.Observe(Cpu({2}));
  EXPECT_THAT(Values(last.Records().at(0)), ElementsAre(2));
}

TEST(ProbeSlots, AShapeThatComesOnceDoesNotDisplaceTheOnesThatComeInTurn) {
  Probe probe("x", Always(2));
  const auto observe = [&](std::size_t elements) {
    probe.Observe(Cpu(std::vector<float>(elements)));
  };
  const auto kept_of = [&](std::int64_t elements) {
    return std::ranges::count_if(
        probe.Records(), [&](const auto& record) { return record.shape.at(0) == elements; });
  };
  for (int round = 0; round < 2; ++round) {
    for (std::size_t elements = 1; elements <= 64; ++elements) observe(elements);
  }
  EXPECT_EQ(kept_of(2), 2);
  observe(1000);  // takes the place of the one that was used the longest time ago
  EXPECT_EQ(kept_of(1), 0);
  observe(1);  // takes the place of the one that came once
  EXPECT_EQ(kept_of(1000), 0);
  EXPECT_EQ(kept_of(2), 2);
  // What came in turn and does so no longer gives way in the end.
  for (int round = 0; round < 20; ++round) {
    for (std::size_t elements = 101; elements <= 164; ++elements) observe(elements);
  }
  EXPECT_EQ(kept_of(2), 0);
  EXPECT_EQ(kept_of(101), 2);
}

TEST(ProbeSlots, TenThousandProbesLeaveNothing) {
  for (int i = 0; i < 10; ++i) Probe("x", Always()).Observe(Cpu({1}));
  const SessionInfo before = *CurrentSession();
  for (int i = 0; i < 10'000; ++i) Probe("x", Always()).Observe(Cpu({1}));
  EXPECT_EQ(CurrentSession()->shm_bytes, before.shm_bytes);
  EXPECT_EQ(CurrentSession()->slots, before.slots);
}

// Unread prints are kept for a daemon that may come, but do not fill /dev/shm meanwhile.
TEST(ProbeSlots, UnreadPrintsOfClosedProbesTakeBoundedRoom) {
  test::ChildProcess job([](const test::Line& line) {
    test::ExpectDaemon();
    const std::vector<float> values(25'000);
    for (int i = 0; i < 1000; ++i) Probe("x", AlwaysPrint()).Observe(Cpu(values));
    line.Send(std::to_string(CurrentSession()->shm_bytes));
    line.Send(std::to_string(CurrentSession()->slots));
    return 0;
  });
  EXPECT_LT(std::stoull(job.line().Receive()), 400 * kMiB);
  EXPECT_GT(std::stoull(job.line().Receive()), 100u) << "the newest are still there to be read";
}

TEST(ProbeSlots, APreparedCpuTensorIsUsedByTheFirstCall) {
  Probe probe("x", Always(2));
  const std::vector<float> values(4 * kMiB);
  probe.Prepare(Cpu(values));
  const std::uint64_t before = CurrentSession()->shm_bytes;
  probe.Observe(Cpu(values));
  EXPECT_EQ(CurrentSession()->shm_bytes, before);
  EXPECT_THAT(probe.Records(), SizeIs(1));
}

// --- tensors at the edges -----------------------------------------------------------------------

TEST(ProbeTensors, EmptyScalarSingleAndLargeOnesComeBack) {
  Probe probe("x", Always(1));
  TensorRef empty = Cpu({});
  empty.shape = {3, 0, 2};
  empty.data = nullptr;
  probe.Observe(empty);
  EXPECT_THAT(probe.Records().at(0).shape, ElementsAre(3, 0, 2));
  EXPECT_THAT(probe.Records().at(0).payload, IsEmpty());
  const float one = 7;
  TensorRef scalar = Cpu({});
  scalar.data = &one;
  scalar.shape = {};
  probe.Observe(scalar);
  EXPECT_THAT(Values(probe.Records(1).at(0)), ElementsAre(7));
  EXPECT_THAT(probe.Records(1).at(0).shape, IsEmpty());
  std::vector<float> large(20 * kMiB);
  large.front() = 1;
  large.back() = 2;
  probe.Observe(Cpu(large));
  EXPECT_EQ(Values(probe.Records(1).at(0)), large);
}

TEST(ProbeTensors, ImpossibleSizesAreRefusedAndTheProbeGoesOn) {
  Probe probe("x", Always(1u << 20));
  TensorRef tensor = Cpu({1});
  tensor.shape = {std::int64_t{1} << 38};
  EXPECT_THAT(ErrorText(ErrorKind::kBadArgument, [&] { probe.Observe(tensor); }),
              AllOf(HasSubstr("'x'"), HasSubstr("smaller capacity")));
  tensor.shape = {std::int64_t{1} << 34};
  probe.Observe(tensor);
  EXPECT_THAT(probe.Status().last_error,
              AllOf(HasSubstr("'x'"), HasSubstr("--shm-size="), HasSubstr("more are needed")));
  Probe small("y", Always(1));
  small.Observe(Cpu({1}));
  EXPECT_THAT(small.Records(), SizeIs(1));
}

TEST(ProbeTensors, AnExpectedTensorWhoseBytesDoNotFitItsShapeIsRefused) {
  ProbeOptions options = Always();
  options.compare =
      CompareAction{{ExpectedTensor{Dtype::kFloat32, {3}, std::vector<std::byte>(8)}}};
  EXPECT_THAT(ErrorText(ErrorKind::kBadArgument, [&] { Probe("layer0", options); }),
              AllOf(HasSubstr("'layer0'"), HasSubstr("12 bytes"), HasSubstr("8 were given")));
}

TEST(ProbeTensors, NamesMayHoldAnyBytesThatSelectorsAndLinesDoNotUse) {
  for (const char* name : {"\xff\xfe", "ü ü", "%s%n", "../../x"}) {
    Probe probe(name, Always());
    probe.Observe(Cpu({1}));
    EXPECT_THAT(probe.Records(), SizeIs(1));
    EXPECT_EQ(probe.name(), name);
  }
}

// --- records ------------------------------------------------------------------------------------

TEST(ProbeRecords, TheLastOnesAreTheLastThatWereRecorded) {
  ProbeOptions options = Always(16);
  options.record->every = 4;
  options.print = PrintAction{};
  Probe probe("x", options);
  for (int i = 1; i <= 8; ++i) probe.Observe(Cpu({float(i)}));
  const auto records = probe.Records(2);
  ASSERT_THAT(records, SizeIs(2));
  EXPECT_EQ(records[0].replay_index, 1u);
  EXPECT_EQ(records[1].replay_index, 5u);
  EXPECT_EQ(probe.Records(1).at(0).replay_index, 5u);
}

TEST(ProbeRecords, ADamagedRecordHidesNoOlderOnes) {
  Probe probe("x", Always(4));
  for (int i = 1; i <= 4; ++i) probe.Observe(Cpu({float(i)}));
  const auto extent = ring::SharedFile::Open(CurrentSession()->name + ".1");
  auto* headers = reinterpret_cast<layout::EntryHeader*>(extent.data() + layout::kExtentDataOffset +
                                                         layout::kSlotHeadersOffset);
  ASSERT_EQ(headers[1].replay, 2u);
  headers[1].flags |= layout::kEntryHasChecksum;
  std::vector<float> left;
  for (const Record& record : probe.Records()) left.push_back(Values(record)[0]);
  EXPECT_THAT(left, ElementsAre(1, 3, 4));
}

TEST(ProbeRecords, AreReadWithoutHoldingUpTheStepsOfATrainingLoop) {
  using Clock = std::chrono::steady_clock;
#if defined(CGDEBUG_SANITIZED_THREAD)
  constexpr std::size_t kFloats = kMiB / 16;  // each byte is copied by itself
#else
  constexpr std::size_t kFloats = 2 * kMiB;
#endif
  Probe probe("x", Always(4));
  const std::vector<float> values(kFloats);
  for (int i = 0; i < 4; ++i) probe.Observe(Cpu(values));
  std::vector<double> longest_parts;  // of the time that the records take
  for (int round = 0; round < 11; ++round) {
    std::atomic<bool> done{false};
    const auto start = Clock::now();
    std::thread monitor([&] {
      EXPECT_THAT(probe.Records(), SizeIs(4));
      done = true;
    });
    Clock::duration longest{0};
    while (!done) {
      const auto before = Clock::now();
      SetStep(round);
      longest = std::max(longest, Clock::now() - before);
    }
    longest_parts.push_back(std::chrono::duration<double>(longest) / (Clock::now() - start));
    monitor.join();
  }
  SetStep(-1);
  std::sort(longest_parts.begin(), longest_parts.end());
  EXPECT_LT(longest_parts[5], 0.5);
}

TEST(ProbeRecords, AClockThatIsSetBackChangesNoOrder) {
  EXPECT_EQ(InChild([] {
              Probe probe("x", Always(4));
              for (int i = 1; i <= 3; ++i) probe.Observe(Cpu({float(i)}));
              const int fd = open(("/dev/shm/" + CurrentSession()->name + ".1").c_str(), O_RDWR);
              const std::int64_t long_ago_ns = 1000;
              const auto offset = layout::kExtentDataOffset + layout::kSlotHeadersOffset +
                                  sizeof(layout::EntryHeader) +
                                  offsetof(layout::EntryHeader, timestamp_ns);
              if (pwrite(fd, &long_ago_ns, 8, static_cast<off_t>(offset)) != 8) return 1;
              const auto records = probe.Records();
              for (std::size_t i = 0; i < 3; ++i) {
                if (records.at(i).replay_index != i + 1) return 2;
              }
              if (records[1].timestamp_ns != long_ago_ns) return 3;
              return probe.Records(1).at(0).replay_index == 3 ? 0 : 4;
            }),
            0);
}

// --- what a daemon is told ----------------------------------------------------------------------

layout::SlotRegistration RegistrationOf(const ProbeOptions& options) {
  Probe probe("x", options);
  probe.Observe(Cpu({1}));
  const std::string name = CurrentSession()->name;
  const std::uint32_t slot = probe.Status().slots.at(0).slot;
  test::ChildProcess reader([&](const test::Line& line) {
    std::string reason;
    const auto view = ring::SegmentView::Attach(name, &reason);
    const auto ring = view->OpenSlot(slot, &reason);
    line.Send(ring->registration().site);
    line.Send(std::to_string(ring->registration().wait_deadline_ms));
    return 0;
  });
  layout::SlotRegistration registration = {};
  std::strcpy(registration.site, reader.line().Receive().c_str());
  registration.wait_deadline_ms = static_cast<std::uint32_t>(std::stoul(reader.line().Receive()));
  return registration;
}

TEST(ProbeRegistration, ADeadlineThatIsNoNumberIsTheDefault) {
  for (const char* text : {"abc", "-5", "", "99999999999999999999", "600001", "7 s"}) {
    setenv("CGDEBUG_WAIT_MS", text, 1);
    EXPECT_EQ(RegistrationOf(Always()).wait_deadline_ms, 2000u) << text;
  }
  for (const std::uint32_t ms : {0u, 1u, 600'000u}) {
    setenv("CGDEBUG_WAIT_MS", std::to_string(ms).c_str(), 1);
    EXPECT_EQ(RegistrationOf(Always()).wait_deadline_ms, ms);
  }
  unsetenv("CGDEBUG_WAIT_MS");
}

TEST(ProbeRegistration, ASiteThatIsTooLongIsCutWhereACharacterEnds) {
  ProbeOptions options = Always();
  options.site = std::string(layout::kMaxNameBytes - 1, 's') + "é:12";
  EXPECT_EQ(RegistrationOf(options).site, std::string(layout::kMaxNameBytes - 1, 's'));
}

// --- forks --------------------------------------------------------------------------------------

TEST(ProbeForks, AChildThatDestroysAnInheritedProbeLeavesPreparedAndExpectedMemoryAlone) {
  ProbeOptions options = Always(1);
  options.compare =
      CompareAction{{ExpectedTensor{Dtype::kFloat32, {2}, std::vector<std::byte>(8)}}};
  auto probe = std::make_unique<Probe>("x", options);
  probe->Observe(Cpu({1, 2}));
  probe->Prepare(Cpu({1, 2}));
  EXPECT_EQ(InChild([&] {
              probe->Observe(Cpu({3, 4}));
              if (Values(probe->Records().at(0)) != std::vector<float>{3, 4}) return 1;
              probe.reset();
              return 0;
            }),
            0);
  const SessionInfo before = *CurrentSession();
  EXPECT_THAT(Values(probe->Records().at(0)), ElementsAre(1, 2));
  probe->Observe(Cpu({5, 6}));
  EXPECT_THAT(Values(probe->Records().at(0)), ElementsAre(5, 6));
  EXPECT_EQ(CurrentSession()->shm_bytes, before.shm_bytes);
}

TEST(ProbeForks, AChildThatDropsAnInheritedGraphDropsNoneOfItsOwn) {
  const auto parents = BeginGraph(11, "parent");
  ASSERT_NE(parents, nullptr);
  EndGraph(*parents, 3, false);
  EXPECT_EQ(InChild([&] {
              const auto own = BeginGraph(11, "child");
              if (own == nullptr) return 1;
              ForgetGraph(parents);
              EndGraph(*parents, 1, true);
              return own->owner_is_gone() || parents->owner_is_gone() ? 2 : 0;
            }),
            0);
  ForgetGraph(parents);
  EXPECT_TRUE(parents->owner_is_gone());
}

TEST(ProbeForks, AForkDuringOtherThreadsCallsIsSafe) {
#if defined(CGDEBUG_SANITIZED)
  GTEST_SKIP()
      << "clang 14's sanitizers leave their own allocator locked in the child of such a fork";
#endif
  Probe shared("shared", Always(2));
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      while (!stop) {
        shared.Observe(Cpu({1}));
        Probe own("own", Always(2));
        own.Observe(Cpu({1, 2}));
      }
    });
  }
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(InChild([&] {
                if (CurrentSession()) return 1;
                shared.Observe(Cpu({9}));
                if (shared.Records().size() != 1) return 2;
                shared.Close();
                Finish(std::chrono::seconds(0));
                return 0;
              }),
              0);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

// --- the end ------------------------------------------------------------------------------------

TEST(ProbeFinish, BeforeAnythingAndTwiceIsHarmless) {
  EXPECT_EQ(InChild([] {
              if (!Finish(std::chrono::seconds(0)).empty()) return 1;
              Probe probe("x", Always());
              probe.Observe(Cpu({1}));
              const std::string name = CurrentSession()->name;
              if (!Finish(std::chrono::seconds(0)).empty()) return 2;
              if (Exists(name) || Exists(name + ".1")) return 3;
              if (!Finish(std::chrono::seconds(0)).empty()) return 4;
              probe.Observe(Cpu({2}));
              if (probe.Records().size() != 2) return 5;
              Probe late("late", Always());
              late.Observe(Cpu(std::vector<float>(4 * kMiB)));
              for (const std::string& file : ring::ListShm()) {
                if (file.find(name) != std::string::npos) return 6;
              }
              return 0;
            }),
            0);
}

TEST(ProbeFinish, KeepsWhatAClosedProbePrintedAndNobodyReadAndSaysHowToSeeIt) {
  test::ChildProcess job([](const test::Line& line) {
    test::ExpectDaemon();
    Probe probe("x", AlwaysPrint());
    probe.Observe(Cpu({1}));
    probe.Close();
    line.Send(CurrentSession()->name);
    line.Send(Finish(std::chrono::milliseconds(20)));
    return 0;
  });
  const std::string name = job.line().Receive();
  const std::string key = name.substr(name.rfind('-') + 1, 8);
  EXPECT_THAT(job.line().Receive(), HasSubstr("cgdebug-cli tail -s " + key));
  EXPECT_EQ(job.Wait(), 0);
  std::string reason;
  const auto view = ring::SegmentView::Attach(name, &reason);
  ASSERT_NE(view, nullptr) << reason;
  EXPECT_TRUE(view->ProducerExitedCleanly());
  ring::Entry entry;
  auto slot = view->OpenSlot(0, &reason);
  ASSERT_TRUE(slot);
  EXPECT_EQ(slot->Read(1, &entry), ring::ReadStatus::kOk);
  ring::UnlinkSegment(name);
}

}  // namespace
}  // namespace cgdebug
