// The C++ probe API on CPU tensors: real segment, real processes, no daemon.
#include "cgdebug/probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "libprobe/ring/segment/segment_view.h"
#include "libprobe/slots/registration.h"
#include "tests/support/child_process.h"
#include "tests/support/ring/probe_fixture.h"

namespace cgdebug {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using test::Always;
using test::Cpu;
using test::ErrorText;
using test::InChild;
using test::Values;

const bool kNoDaemon = [] { return test::ForbidDaemon(), true; }();

TEST(Probe, RecordsTheNewestCapacityCallsInOrder) {
  Probe probe("x", Always(4));
  for (int i = 1; i <= 6; ++i) probe.Observe(Cpu({float(i), float(10 * i)}));
  const auto records = probe.Records();
  ASSERT_THAT(records, SizeIs(4));
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(records[i].replay_index, std::uint64_t(i + 3));
    EXPECT_THAT(Values(records[i]), ElementsAre(float(i + 3), float(10 * (i + 3))));
  }
  EXPECT_THAT(probe.Records(2), SizeIs(2));
  EXPECT_EQ(probe.Records(1)[0].replay_index, 6u);
  EXPECT_THAT(probe.Records(0), IsEmpty());
}

TEST(Probe, InCaptureModeEagerCallsTouchNothing) {
  ProbeOptions options = Always();
  options.mode = ProbeMode::kCapture;
  Probe probe("x", options);
  TensorRef nonsense;
  nonsense.device_type = DeviceType::kCpu;
  probe.Observe(nonsense);
  EXPECT_THAT(probe.Records(), IsEmpty());
}

TEST(Probe, APartHasItsElementsItsShapeAndTheShapeOfTheWhole) {
  const std::vector<float> values = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  struct Case {
    const char* part;
    std::vector<std::int64_t> shape;
    std::vector<float> values;
  };
  for (const Case& one :
       {Case{"rows:1:2", {1, 4}, {4, 5, 6, 7}}, Case{"rows:2:9", {1, 4}, {8, 9, 10, 11}},
        Case{"first:5", {5}, {0, 1, 2, 3, 4}}, Case{"first:99", {12}, values},
        Case{"stride:5", {3}, {0, 5, 10}}, Case{"stride:9223372036854775807", {1}, {0}}}) {
    ProbeOptions options = Always();
    options.part = one.part;
    Probe probe("x", options);
    TensorRef tensor = Cpu(values);
    tensor.shape = {3, 4};
    probe.Observe(tensor);
    probe.Prepare(tensor);
    probe.Observe(tensor);
    ASSERT_THAT(probe.Records(), SizeIs(2));
    for (const Record& record : probe.Records()) {
      EXPECT_EQ(Values(record), one.values) << one.part;
      EXPECT_EQ(record.shape, one.shape) << one.part;
      EXPECT_EQ(record.part, std::string(one.part) + " of [3,4]");
    }
  }
}

TEST(Probe, PartsOfTensorsOfTwoShapesHaveSlotsOfTheirOwn) {
  ProbeOptions options = Always();
  options.part = "first:2";
  Probe probe("x", options);
  probe.Observe(Cpu({1, 2, 3}));
  probe.Observe(Cpu({1, 2, 3, 4}));
  const auto records = probe.Records();
  ASSERT_THAT(records, SizeIs(2));
  EXPECT_NE(records[0].slot, records[1].slot);
}

TEST(Probe, APartOfATensorWithTheMostAndLargestDimensionsHasItsWholeText) {
  ProbeOptions options = Always();
  options.part = "rows:9223372036854775806:9223372036854775807";
  Probe probe("x", options);
  TensorRef tensor = Cpu({});
  tensor.shape.assign(layout::kMaxDims, INT64_MAX);
  tensor.shape[0] = 0;
  probe.Observe(tensor);
  ASSERT_THAT(probe.Records(), SizeIs(1));
  EXPECT_THAT(probe.Records()[0].part, ::testing::EndsWith(",9223372036854775807]"));
}

TEST(Probe, ClearHidesWhatWasThereAndKeepsWhatComes) {
  Probe probe("x", Always());
  probe.Observe(Cpu({1}));
  probe.Observe(Cpu({2}));
  const Record first = probe.Records()[0];
  probe.ClearRecords(first.slot, first.ordinal);
  EXPECT_THAT(probe.Records(), SizeIs(1));
  probe.ClearRecords();
  EXPECT_THAT(probe.Records(), IsEmpty());
  probe.Observe(Cpu({3}));
  ASSERT_THAT(probe.Records(), SizeIs(1));
  EXPECT_EQ(probe.Records()[0].replay_index, 3u);
}

TEST(Probe, TensorsOfAnotherShapeGetASlotOfTheirOwn) {
  Probe probe("x", Always());
  probe.Observe(Cpu({1}));
  probe.Observe(Cpu({1, 2, 3}));
  probe.Observe(Cpu({2}));
  EXPECT_THAT(probe.Status().slots, SizeIs(2));
  EXPECT_THAT(probe.Records(), SizeIs(3));
}

TEST(Probe, ManyShapesDoNotGrowWithoutBound) {
  Probe probe("x", Always(1));
  for (std::size_t n = 1; n <= 300; ++n) probe.Observe(Cpu(std::vector<float>(n)));
  EXPECT_LE(probe.Status().slots.size(), 64u);
  EXPECT_EQ(probe.Records(1)[0].shape[0], 300);
}

TEST(Probe, StepIsRecorded) {
  Probe probe("x", Always());
  SetStep(41);
  probe.Observe(Cpu({1}));
  SetStep(-1);
  EXPECT_EQ(probe.Records()[0].step, 41);
}

TEST(Probe, NamesThatSelectorsWouldMisreadAreRefused) {
  for (const char* name : {"blk*", "a?", "a@3", "a:b", "a{1}", "a#1", "!a", "a\nb"}) {
    EXPECT_THROW(Probe(name, {}), ProbeError) << name;
  }
  EXPECT_NO_THROW(Probe("blk.3/attn[0] 'out'", {}));
}

TEST(Probe, BadArgumentsAreNamed) {
  EXPECT_THAT(ErrorText(ErrorKind::kBadArgument, [] { Probe("", Always()); }),
              HasSubstr("needs a name"));
  EXPECT_THAT(ErrorText(ErrorKind::kBadArgument, [] { Probe(std::string(256, 'n'), Always()); }),
              HasSubstr("255"));
  Probe longest(std::string(255, 'n'), Always());
  EXPECT_THAT(ErrorText(ErrorKind::kBadArgument, [] { Probe("x", Always(0)); }),
              HasSubstr("capacity"));
  Probe probe("layer0", Always());
  TensorRef bad = Cpu({1});
  bad.dtype = Dtype::kInvalid;
  EXPECT_THAT(ErrorText(ErrorKind::kUnsupported, [&] { probe.Observe(bad); }),
              ::testing::AllOf(HasSubstr("layer0"), HasSubstr("bfloat16")));
  bad = Cpu({1});
  bad.shape = {-1};
  EXPECT_THAT(ErrorText(ErrorKind::kBadArgument, [&] { probe.Observe(bad); }), HasSubstr("[-1]"));
  bad.shape = {std::int64_t{1} << 40, std::int64_t{1} << 40};
  EXPECT_THAT(ErrorText(ErrorKind::kBadArgument, [&] { probe.Observe(bad); }),
              HasSubstr("impossible shape"));
  EXPECT_THAT(probe.Status().last_error, HasSubstr("impossible shape"));
}

TEST(Probe, ExpectedTensorOfAnotherShapeIsRefusedWithBothNamed) {
  ProbeOptions options = Always();
  options.compare =
      CompareAction{{ExpectedTensor{Dtype::kFloat32, {2}, std::vector<std::byte>(8)}}};
  Probe probe("x", options);
  EXPECT_THAT(ErrorText(ErrorKind::kBadArgument,
                        [&] {
                          probe.Observe(Cpu({1, 2, 3}));
                        }),
              ::testing::AllOf(HasSubstr("float32[2]"), HasSubstr("float32[3]")));
}

TEST(Probe, WithoutADaemonNothingCountsAsCompared) {
  ProbeOptions options = Always();
  options.compare =
      CompareAction{{ExpectedTensor{Dtype::kFloat32, {1}, std::vector<std::byte>(4)}}};
  Probe probe("x", options);
  probe.Observe(Cpu({0}));
  EXPECT_FALSE(probe.WaitConsumed(std::chrono::seconds(5)));
  const SlotStatus slot = probe.Status().slots.at(0);
  EXPECT_EQ(slot.verdict.state, layout::VerdictState::kNone);
  EXPECT_EQ(slot.verdict.compared, 0u);
}

TEST(Probe, AClosedProbeIgnoresCallsAndRefusesRecords) {
  Probe probe("x", Always());
  probe.Observe(Cpu({1}));
  probe.Close();
  probe.Close();
  probe.Observe(Cpu({2}));
  EXPECT_THAT(ErrorText(ErrorKind::kClosed, [&] { probe.Records(); }), HasSubstr("closed"));
  EXPECT_TRUE(probe.Status().closed);
  EXPECT_EQ(FindProbe(probe.site()), nullptr);
}

TEST(Probe, SitesCountTheProbesOfOneNameAndAreNeverReused) {
  Probe other("other", Always());
  auto first = std::make_unique<Probe>("x.y", Always());
  const std::string site = first->site();
  EXPECT_EQ(NameOf(*FindProbe(site)), "x.y");
  EXPECT_THAT(site, testing::EndsWith(":x.y"));
  first.reset();
  Probe second("x.y", Always());
  EXPECT_EQ(FindProbe(site), nullptr);
  EXPECT_NE(FindProbe(second.site()), nullptr);
  EXPECT_NE(second.site(), site);
}

TEST(Probe, ClosedProbesGiveTheirMemoryBack) {
  auto cycle = [] {
    Probe probe("x", Always());
    probe.Observe(Cpu(std::vector<float>(100'000)));
  };
  for (int i = 0; i < 5; ++i) cycle();
  const std::uint64_t before = CurrentSession()->shm_bytes;
  for (int i = 0; i < 500; ++i) cycle();
  EXPECT_EQ(CurrentSession()->shm_bytes, before);
}

TEST(Probe, CallsFromManyThreadsAreAllCounted) {
  Probe probe("x", Always(1024));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&probe, t] {
      for (int i = 0; i < 200; ++i) probe.Observe(Cpu({float(t), float(i)}));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(probe.Records(), SizeIs(800));
  EXPECT_EQ(probe.Status().slots.at(0).replays, 800u);
}

TEST(Probe, AForkedChildHasItsOwnSegmentAndLeavesItsParentsAlone) {
  Probe probe("x", Always());
  probe.Observe(Cpu({1}));
  const std::string parent = CurrentSession()->name;
  const int code = InChild([&] {
    if (CurrentSession()) return 1;
    probe.Observe(Cpu({7}));
    const auto records = probe.Records();
    if (records.size() != 1 || Values(records[0])[0] != 7 || records[0].replay_index != 1) return 2;
    const std::string own = CurrentSession()->name;
    if (own == parent) return 3;
    Finish(std::chrono::seconds(1));
    return std::filesystem::exists("/dev/shm/" + own) ? 4 : 0;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(CurrentSession()->name, parent);
  ASSERT_THAT(probe.Records(), SizeIs(1));
  EXPECT_THAT(Values(probe.Records()[0]), ElementsAre(1));
}

TEST(Probe, AChildThatClosesAnInheritedProbeDoesNotDisturbTheParent) {
  auto probe = std::make_unique<Probe>("x", Always());
  probe->Observe(Cpu({1}));
  EXPECT_EQ(InChild([&] {
              probe.reset();
              return 0;
            }),
            0);
  probe->Observe(Cpu({2}));
  EXPECT_THAT(probe->Records(), SizeIs(2));
}

// Attaches as a daemon would, and stays until it is killed.
test::ChildProcess Reader(const std::string& name) {
  return test::ChildProcess([name](const test::Line& line) {
    std::string reason;
    const auto view = ring::SegmentView::Attach(name, &reason);
    line.Send(view != nullptr && view->BecomeReader() ? "reads" : "refused");
    line.Receive();
    return 0;
  });
}

// The lock tells a live producer from a dead one, however it died.
TEST(Probe, AnObserverSeesTheProducerLiveAndDie) {
  test::ChildProcess job([](const test::Line& line) {
    Probe probe("last", Always());
    probe.Observe(Cpu({1, 2, 3}));
    line.Send(CurrentSession()->name);
    line.Receive();
    return 9;
  });
  const std::string name = job.line().Receive();
  const pid_t pid = job.pid();
  std::string reason;
  auto view = ring::SegmentView::Attach(name, &reason);
  ASSERT_NE(view, nullptr) << reason;
  EXPECT_TRUE(view->ProducerAlive());
  EXPECT_EQ(view->header().pid, pid);
  job.Kill();
  EXPECT_FALSE(view->ProducerAlive());
  EXPECT_FALSE(view->ProducerExitedCleanly());
  auto slot = view->OpenSlot(0, &reason);
  ASSERT_TRUE(slot) << reason;
  ring::Entry entry;
  ASSERT_EQ(slot->Read(1, &entry), ring::ReadStatus::kOk);
  EXPECT_EQ(entry.payload.size(), 12u);
  EXPECT_STREQ(slot->registration().name, "last");
  view.reset();
  ring::UnlinkSegment(name);
}

TEST(Probe, OnlyOneReaderAtATime) {
  Probe probe("x", Always());
  probe.Observe(Cpu({1}));
  auto reader = Reader(CurrentSession()->name);
  ASSERT_EQ(reader.line().Receive(), "reads");
  EXPECT_TRUE(probe.Status().daemon_alive);
  EXPECT_EQ(Reader(CurrentSession()->name).line().Receive(), "refused");
  reader.Kill();
  EXPECT_FALSE(probe.Status().daemon_alive);
}

// A stopped daemon costs one deadline in total, a dead one nothing.
TEST(Probe, AHungReaderCostsOneDeadlineAndADeadOneNothing) {
  ProbeOptions options = Always(1);
  options.compare =
      CompareAction{{ExpectedTensor{Dtype::kFloat32, {1}, std::vector<std::byte>(4)}}};
  setenv("CGDEBUG_WAIT_MS", "100", 1);
  Probe probe("x", options);
  probe.Observe(Cpu({0}));
  unsetenv("CGDEBUG_WAIT_MS");
  auto reader = Reader(CurrentSession()->name);
  ASSERT_EQ(reader.line().Receive(), "reads");
  for (int i = 0; i < 50; ++i) probe.Observe(Cpu({0}));
  SlotStatus slot = probe.Status().slots.at(0);
  EXPECT_EQ(slot.accepted, 51u);
  EXPECT_EQ(slot.overwrote_unread, 50u) << "the loss is counted";
  EXPECT_EQ(slot.waits, 1u) << "one deadline, not one per call";
  EXPECT_GE(slot.wait_ns, 100'000'000u);
  reader.Kill();
  probe.Observe(Cpu({0}));
  EXPECT_EQ(probe.Status().slots.at(0).waits, 1u);
}

TEST(Registration, ABoundedRingInDeviceMemoryKeepsWhatFitsAndAtLastStatisticsAlone) {
  ProbeOptions options;
  options.record = RecordAction{.capacity = 8, .on_device = true, .bounded = true};
  TensorRef tensor;
  tensor.dtype = Dtype::kFloat32;
  tensor.shape = {1000};
  const auto make = [&](std::uint64_t room) {
    return MakeRegistration("a", options, tensor, 4000, layout::Lane::kDirect, room);
  };
  EXPECT_EQ(make(1u << 20).device_capacity, 8u);
  EXPECT_EQ(make(9 * 4096).device_bytes, 9u * 4096);
  EXPECT_EQ(make(9 * 4096 - 1).device_capacity, 7u) << "one entry more than it keeps";
  EXPECT_EQ(make(2 * 4096).device_capacity, 1u);
  const layout::SlotRegistration none = make(2 * 4096 - 1);
  EXPECT_EQ(none.flags & (layout::kSlotOnDevice | layout::kSlotHoldsStats),
            layout::kSlotHoldsStats);
  EXPECT_EQ(none.actions, layout::kActionStats);
  tensor.part = "first:1000 of [5000]";
  const layout::SlotRegistration part = make(0);
  EXPECT_EQ(part.flags & (layout::kSlotOnDevice | layout::kSlotHoldsStats), 0u)
      << "statistics of a part would be taken for the tensor's";
  EXPECT_EQ(part.actions, layout::kActionRecord);
  options.record->bounded = false;
  EXPECT_EQ(make(0).device_capacity, 8u) << "who asks for it gets it";
}

TEST(Registration, ATriggerThatCannotWorkSaysWhy) {
  ProbeOptions options;
  options.record = RecordAction{.capacity = 8, .on_device = true, .bounded = true};
  TensorRef tensor;
  tensor.dtype = Dtype::kFloat32;
  tensor.shape = {1000};
  tensor.device_type = DeviceType::kCuda;
  const auto note = [&](layout::Lane lane, int device, std::uint64_t room,
                        layout::LaneReason reason = layout::LaneReason::kNone) {
    tensor.device_index = device;
    layout::SlotRegistration r = MakeRegistration("a", options, tensor, 4000, lane, room);
    r.lane_reason = static_cast<std::uint8_t>(reason);
    return WhyNoTrigger(options, r);
  };
  constexpr std::uint64_t kMuch = 1u << 20;
  EXPECT_EQ(note(layout::Lane::kDirect, 16, kMuch), "") << "it has none";
  options.record->trigger = layout::ControlTrigger::kNonfinite;
  EXPECT_EQ(note(layout::Lane::kDirect, 15, kMuch), "");
  EXPECT_THAT(note(layout::Lane::kDirect, 16, kMuch), testing::HasSubstr("this is device 16"));
  EXPECT_THAT(note(layout::Lane::kDirect, 0, 0), testing::HasSubstr("CGDEBUG_DEVICE_MIB"));
  tensor.part = "first:1000 of [5000]";
  EXPECT_THAT(note(layout::Lane::kDirect, 0, 0), testing::HasSubstr("its part in shared memory"));
  tensor.part.clear();
  EXPECT_THAT(note(layout::Lane::kCallback, 0, kMuch, layout::LaneReason::kAsked),
              testing::HasSubstr("the callback lane has no rings"));
  EXPECT_EQ(note(layout::Lane::kCallback, 0, kMuch, layout::LaneReason::kEager), "");
}

}  // namespace
}  // namespace cgdebug
