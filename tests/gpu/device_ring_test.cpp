// Rings in device memory: values, the window through which they travel, and the freeze.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "cgdebug/probe.h"
#include "libprobe/ring/segment/segment_view.h"
#include "tests/gpu/leaf_branch_fixture.h"

namespace cgdebug {
namespace {

class DeviceRing : public LeafBranch {
 protected:
  static ProbeOptions OnDevice(std::uint32_t capacity,
                               layout::ControlTrigger trigger = layout::ControlTrigger::kNone) {
    ProbeOptions options = Recording(capacity);
    options.record->on_device = true;
    options.record->trigger = trigger;
    return options;
  }
  void ReplayWith(float first) {
    Fill(first);
    Replay();
  }
  // The first value of each record; the others must follow it.
  static std::vector<float> Firsts(const Probe& probe) {
    std::vector<float> firsts;
    for (const Record& record : probe.Records()) {
      const std::vector<float> values = Values(record);
      EXPECT_EQ(values.size(), static_cast<std::size_t>(kCount));
      for (std::size_t i = 1; i < values.size(); ++i) {
        if (!std::isnan(values[0])) EXPECT_EQ(values[i], values[0] + static_cast<float>(i));
      }
      firsts.push_back(values[0]);
    }
    return firsts;
  }
};

TEST_P(DeviceRing, RecordsAreTheNewestReplaysExactly) {
  Probe probe("device.wrap", OnDevice(3));
  Capture(probe);
  for (int replay = 1; replay <= 8; ++replay) {
    ReplayWith(static_cast<float>(1000 * replay));
    const std::vector<float> firsts = Firsts(probe);
    ASSERT_EQ(firsts.size(), static_cast<std::size_t>(std::min(replay, 3)));
    EXPECT_EQ(firsts.back(), static_cast<float>(1000 * replay));
    EXPECT_EQ(firsts.front(), static_cast<float>(1000 * std::max(replay - 2, 1)));
  }
  const SlotStatus status = probe.Status().slots.at(0);
  EXPECT_EQ(status.accepted, 8u);
  EXPECT_EQ(status.device_bytes, 4u * kCount * sizeof(float));
}

TEST_P(DeviceRing, RecordsOutliveTheGraph) {
  Probe probe("device.outlives", OnDevice(2));
  Capture(probe);
  ReplayWith(1000);
  ReplayWith(2000);
  DestroyGraph();
  CU(cudaDeviceSynchronize());
  (void)probe.Status();  // sweeps
  EXPECT_EQ(Firsts(probe), (std::vector<float>{1000, 2000}));
}

TEST_P(DeviceRing, HeadersAloneTravelUntilAValueIsAskedFor) {
  Probe probe("device.window", OnDevice(4));
  Capture(probe);
  for (int replay = 1; replay <= 3; ++replay) ReplayWith(static_cast<float>(1000 * replay));
  ring::SlotRingReader slot = RingOf(probe);
  ring::Entry entry;
  ASSERT_EQ(slot.Read(2, &entry), ring::ReadStatus::kOk);
  EXPECT_EQ(entry.replay, 2u);
  EXPECT_NE(entry.flags & layout::kEntryOnDevice, 0u);
  EXPECT_TRUE(entry.payload.empty());
  slot.Request(2, /*every=*/false);
  ReplayWith(4000);  // learns of it
  ReplayWith(5000);  // sends it
  ASSERT_EQ(slot.Read(2, &entry), ring::ReadStatus::kOk);
  ASSERT_EQ(entry.payload.size(), kCount * sizeof(float));
  EXPECT_EQ(entry.flags & layout::kEntryOnDevice, 0u);
  float first = 0;
  std::memcpy(&first, entry.payload.data(), sizeof(first));
  EXPECT_EQ(first, 2000);
}

TEST_P(DeviceRing, AValueThatTheDeviceOverwroteIsRefused) {
  Probe probe("device.refused", OnDevice(2));
  Capture(probe);
  for (int replay = 1; replay <= 6; ++replay) ReplayWith(static_cast<float>(1000 * replay));
  ring::SlotRingReader slot = RingOf(probe);
  slot.Request(1, /*every=*/false);
  ReplayWith(7000);
  ReplayWith(8000);
  EXPECT_EQ(slot.refused(), 1u);
  ring::Entry entry;
  ASSERT_EQ(slot.Read(1, &entry), ring::ReadStatus::kOk);
  EXPECT_TRUE(entry.payload.empty());
}

// Again and again, because the leaf reads the request while it runs. An armed ring has another
// leaf.
TEST_P(DeviceRing, EveryNewValueTravelsWhileTheDaemonWantsThemAll) {
  for (const auto trigger : {layout::ControlTrigger::kNone, layout::ControlTrigger::kInf}) {
    const std::string name = "device.every" + std::to_string(static_cast<int>(trigger));
    Probe probe(name, OnDevice(4, trigger));
    Capture(probe);
    ReplayWith(0);
    ring::SlotRingReader slot = RingOf(probe);
    std::uint64_t replay = 1;
    const auto replay_and_read = [&](ring::Entry* entry) {
      ReplayWith(static_cast<float>(1000 * ++replay));
      ASSERT_EQ(slot.Read(replay, entry), ring::ReadStatus::kOk) << name << replay;
    };
    for (int round = 0; round < 300; ++round) {
      ring::Entry entry;
      slot.Request(0, /*every=*/true);
      ASSERT_NO_FATAL_FAILURE(replay_and_read(&entry));  // learns of it
      ASSERT_TRUE(entry.payload.empty()) << name << replay;
      for (int i = 0; i < 3; ++i) {
        ASSERT_NO_FATAL_FAILURE(replay_and_read(&entry));
        ASSERT_EQ(entry.payload.size(), kCount * sizeof(float)) << name << replay;
        for (const int at : {0, kCount - 1}) {
          float value = 0;
          std::memcpy(&value, entry.payload.data() + at * sizeof(value), sizeof(value));
          ASSERT_EQ(value, static_cast<float>(1000 * replay + at));
        }
      }
      slot.Request(0, /*every=*/false);
      ASSERT_NO_FATAL_FAILURE(replay_and_read(&entry));  // learns of it, and sends the last one
      ASSERT_FALSE(entry.payload.empty()) << name << replay;
    }
    DestroyGraph();
  }
}

// Two probes around the trigger: one in front of it and one behind it in the same replay.
TEST_P(DeviceRing, ATriggerFreezesAllRingsAtTheSameReplay) {
  Probe before("device.freeze.before", OnDevice(3));
  Probe trigger("device.freeze", OnDevice(3, layout::ControlTrigger::kNonfinite));
  Probe behind("device.freeze.behind", OnDevice(3));
  CU(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  CU(cudaMemcpyAsync(device_, host_, kCount * sizeof(float), cudaMemcpyHostToDevice, stream_));
  before.Observe(Tensor(), stream_);
  trigger.Observe(Tensor(), stream_);
  for (int i = 0; i < 50; ++i) behind.Observe(Tensor(), stream_);
  CU(cudaStreamEndCapture(stream_, &graph_));
  CU(cudaGraphInstantiate(&exec_, graph_, 0));
  for (int replay = 1; replay <= 10; ++replay) {
    Fill(static_cast<float>(1000 * replay));
    if (replay == 7) host_[5] = std::nanf("");
    Replay();
  }
  const ring::Freeze freeze = View()->freezes().Last(0);
  const std::uint64_t serial = freeze.serial;
  ASSERT_NE(serial, 0u);
  EXPECT_EQ(freeze.replay, 7u);
  EXPECT_EQ(freeze.trigger, layout::ControlTrigger::kNonfinite);
  for (const Probe* probe : {&before, &trigger, &behind}) {
    std::vector<std::uint64_t> replays;
    for (const Record& record : probe->Records()) {
      if (record.invocation_index != 0 && record.invocation_index != 49) continue;
      replays.push_back(record.replay_index);
      EXPECT_EQ(Values(record)[0], static_cast<float>(1000 * record.replay_index));
      EXPECT_EQ(record.serial == serial, record.replay_index == 7);
    }
    const std::vector<std::uint64_t> one = {5, 6, 7}, two = {5, 5, 6, 6, 7, 7};
    EXPECT_EQ(replays, probe == &behind ? two : one) << probe->name();
    const SlotStatus status = probe->Status().slots.at(0);
    EXPECT_EQ(status.replays, 10u);
    EXPECT_EQ(status.accepted, 7u);
    EXPECT_EQ(status.suppressed, 3u) << "frozen replays are counted";
  }
  View()->freezes().Thaw(0, serial);
  ReplayWith(11000);  // learns of it
  ReplayWith(12000);
  for (const Probe* probe : {&before, &trigger, &behind}) {
    EXPECT_EQ(probe->Records().back().replay_index, 12u) << probe->name();
  }
  ReplayWith(std::nanf(""));
  ReplayWith(14000);
  EXPECT_EQ(View()->freezes().Last(0).serial, serial) << "it was registered for one freeze";
  EXPECT_EQ(trigger.Records().back().replay_index, 14u);
}

// Triggers of this process stop the rings more often than in the tests before.
constexpr std::uint16_t kOften = 1000;

TEST_P(DeviceRing, ATriggerHoldsAgainAfterTheRingsWentOn) {
  ProbeOptions options = OnDevice(3, layout::ControlTrigger::kNonfinite);
  options.record->times = kOften;
  Probe probe("device.again", options);
  Capture(probe);
  std::uint64_t last = 0;
  for (int round = 1; round <= 3; ++round) {
    ReplayWith(1000);
    ReplayWith(std::nanf(""));
    const ring::Freeze freeze = View()->freezes().Last(0);
    ASSERT_NE(freeze.serial, last);
    EXPECT_EQ(freeze.replay, probe.Status().slots.at(0).replays);
    EXPECT_FALSE(freeze.live);
    last = freeze.serial;
    View()->freezes().Thaw(0, freeze.serial);
    ReplayWith(2000);  // learns of it
  }
}

TEST_P(DeviceRing, ARingStopsWhenItHoldsOtherValuesThanBefore) {
  ProbeOptions options = OnDevice(3, layout::ControlTrigger::kChanged);
  options.record->times = kOften;
  Probe probe("device.changed", options);
  Capture(probe);
  const std::uint64_t before = View()->freezes().Last(0).serial;
  for (int replay = 1; replay <= 4; ++replay) ReplayWith(1000);
  EXPECT_EQ(View()->freezes().Last(0).serial, before);
  ReplayWith(1001);
  ReplayWith(1001);
  const ring::Freeze freeze = View()->freezes().Last(0);
  ASSERT_NE(freeze.serial, before);
  EXPECT_EQ(freeze.replay, 5u);
  EXPECT_EQ(freeze.trigger, layout::ControlTrigger::kChanged);
  EXPECT_EQ(Firsts(probe), (std::vector<float>{1000, 1000, 1001}));
  View()->freezes().Thaw(0, freeze.serial);
  ReplayWith(1001);
}

TEST_P(DeviceRing, ATriggerOfTheLiveControlIsToldFromARegisteredOne) {
  Probe probe("device.live", OnDevice(3));
  Capture(probe);
  ReplayWith(1000);
  ring::SlotRingReader slot = RingOf(probe);
  layout::SlotControl control;
  control.mode = layout::ControlMode::kFull;
  control.trigger = layout::ControlTrigger::kNonfinite;
  slot.SetControl(control);
  ReplayWith(2000);  // learns of it
  ReplayWith(std::nanf(""));
  const ring::Freeze freeze = View()->freezes().Last(0);
  EXPECT_EQ(freeze.replay, 3u);
  EXPECT_TRUE(freeze.live);
  slot.SetControl({});
  View()->freezes().Thaw(0, freeze.serial);
  ReplayWith(4000);
  ReplayWith(std::nanf(""));
  EXPECT_EQ(View()->freezes().Last(0).serial, freeze.serial);
  EXPECT_EQ(probe.Records().back().replay_index, 5u);
}

// Two graphs, of which one stops: the rings of the other stop as well, and both go on.
TEST_P(DeviceRing, TheDaemonStopsTheRingsOfAllGraphsOfADevice) {
  Probe first("device.stop.first", OnDevice(3));
  Capture(first);
  cudaGraph_t other_graph = nullptr;
  cudaGraphExec_t other = nullptr;
  Probe second("device.stop.second", OnDevice(3));
  CU(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  second.Observe(Tensor(), stream_);
  CU(cudaStreamEndCapture(stream_, &other_graph));
  CU(cudaGraphInstantiate(&other, other_graph, 0));
  const auto replay_both = [&](float value) {
    ReplayWith(value);
    ASSERT_EQ(cudaGraphLaunch(other, stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  };
  replay_both(1000);
  replay_both(2000);
  const std::uint64_t before = View()->freezes().Last(0).serial;
  View()->freezes().Stop(0, 4711);
  replay_both(3000);
  replay_both(4000);
  const ring::Freeze freeze = View()->freezes().Last(0);
  ASSERT_NE(freeze.serial, before);
  EXPECT_EQ(freeze.trigger, layout::ControlTrigger::kNone);
  EXPECT_EQ(freeze.replay, 3u);
  EXPECT_EQ(first.Records().back().replay_index, 3u);
  EXPECT_EQ(second.Records().back().replay_index, 2u) << "it replays behind the one that stopped";
  View()->freezes().Thaw(0, freeze.serial);
  replay_both(5000);  // learns of it
  replay_both(6000);
  EXPECT_EQ(View()->freezes().Last(0).serial, freeze.serial) << "one request, one stop";
  EXPECT_EQ(first.Records().back().replay_index, 6u);
  EXPECT_EQ(second.Records().back().replay_index, 6u);
  CU(cudaGraphExecDestroy(other));
  CU(cudaGraphDestroy(other_graph));
}

// If a job replays seldom, it finds in one replay that its rings go on and that they stop again.
TEST_P(DeviceRing, RingsThatGoOnStopAgainBehindTheFirstWholeReplay) {
  Probe first("device.again.first", OnDevice(3));
  Probe second("device.again.second", OnDevice(3));
  CU(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  CU(cudaMemcpyAsync(device_, host_, kCount * sizeof(float), cudaMemcpyHostToDevice, stream_));
  first.Observe(Tensor(), stream_);
  for (int i = 0; i < 50; ++i) second.Observe(Tensor(), stream_);
  CU(cudaStreamEndCapture(stream_, &graph_));
  CU(cudaGraphInstantiate(&exec_, graph_, 0));
  ReplayWith(1000);
  std::uint64_t stopped = View()->freezes().Last(0).serial;
  View()->freezes().Stop(0, stopped + 1);
  for (int round = 1; round <= 5; ++round) {
    ReplayWith(2000);
    const ring::Freeze freeze = View()->freezes().Last(0);
    ASSERT_NE(freeze.serial, stopped) << round;
    ReplayWith(3000);
    stopped = freeze.serial;
    View()->freezes().Thaw(0, stopped);
    View()->freezes().Stop(0, stopped + 1);
    ReplayWith(4000);  // finds both, and not every ring keeps it
    EXPECT_EQ(View()->freezes().Last(0).serial, stopped);
  }
  ReplayWith(5000);
  const ring::Freeze last = View()->freezes().Last(0);
  ASSERT_NE(last.serial, stopped);
  for (const Probe* probe : {&first, &second}) {
    EXPECT_EQ(Firsts(*probe).back(), 5000) << probe->name();
    EXPECT_EQ(probe->Records().back().serial, last.serial) << probe->name();
  }
  View()->freezes().Thaw(0, last.serial);
  ReplayWith(6000);
}

// One pass copies and computes; a tensor that is not aligned takes two.
TEST_P(DeviceRing, StatisticsAndValuesOfAnArmedRingAreThoseOfTheTensor) {
  constexpr std::size_t kMost = (3u << 20) + 5;
  std::vector<float> values(kMost);
  for (std::size_t i = 0; i < kMost; ++i) values[i] = static_cast<float>(i % 1013) - 500.5f;
  values[17] = std::nanf("");
  float* memory = nullptr;
  CU(cudaMalloc(reinterpret_cast<void**>(&memory), kMost * sizeof(float)));
  CU(cudaMemcpy(memory, values.data(), kMost * sizeof(float), cudaMemcpyHostToDevice));
  int number = 0;
  for (const std::size_t offset : {0, 1}) {
    for (const std::size_t count :
         {std::size_t{1}, std::size_t{31}, std::size_t{70001}, kMost - 1}) {
      const std::string name = "device.armed" + std::to_string(++number);
      Probe ring(name, OnDevice(2, layout::ControlTrigger::kInf));
      ProbeOptions statistics;
      statistics.stats = StatsAction{};
      statistics.lane = GetParam();
      Probe stats(name + ".stats", statistics);
      TensorRef tensor = Tensor();
      tensor.data = memory + offset;
      tensor.shape = {static_cast<std::int64_t>(count)};
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t exec = nullptr;
      CU(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
      ring.Observe(tensor, stream_);
      stats.Observe(tensor, stream_);
      CU(cudaStreamEndCapture(stream_, &graph));
      CU(cudaGraphInstantiate(&exec, graph, 0));
      for (int replay = 0; replay < 3; ++replay) CU(cudaGraphLaunch(exec, stream_));
      CU(cudaStreamSynchronize(stream_));
      ring::Entry armed, expected;
      ASSERT_EQ(RingOf(ring).Read(3, &armed), ring::ReadStatus::kOk);
      ASSERT_EQ(RingOf(stats).Read(3, &expected), ring::ReadStatus::kOk);
      const layout::DeviceStats &a = armed.stats, &b = expected.stats;
      EXPECT_EQ(
          std::tuple(a.count, a.nan, a.zero, a.min, a.max, a.hash, a.first_nonfinite, a.flags),
          std::tuple(b.count, b.nan, b.zero, b.min, b.max, b.hash, b.first_nonfinite, b.flags))
          << count << " at " << offset;
      EXPECT_NEAR(a.l1, b.l1, 1e-9 * b.l1);
      EXPECT_NEAR(a.l2_squared, b.l2_squared, 1e-9 * b.l2_squared);
      const std::vector<Record> records = ring.Records();
      ASSERT_EQ(records.size(), 2u);
      for (const Record& record : records) {
        ASSERT_EQ(record.payload.size(), count * sizeof(float));
        EXPECT_EQ(std::memcmp(record.payload.data(), values.data() + offset, record.payload.size()),
                  0)
            << count << " at " << offset;
      }
      CU(cudaGraphExecDestroy(exec));
      CU(cudaGraphDestroy(graph));
    }
  }
  CU(cudaFree(memory));
}

INSTANTIATE_TEST_SUITE_P(Lanes, DeviceRing, ::testing::Values(LaneChoice::kDirect),
                         [](const auto&) { return "direct"; });

}  // namespace
}  // namespace cgdebug
