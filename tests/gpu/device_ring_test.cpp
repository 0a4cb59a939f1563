// Rings in device memory: values, the window through which they travel, and the freeze.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "cgdebug/probe.h"
#include "libprobe/ring/segment_view.h"
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
  // Kept: closing a second descriptor of the segment would drop the lock of this process.
  static ring::SegmentView* View() {
    static ring::SegmentView* view = nullptr;
    std::string reason;
    if (view == nullptr) {
      view = ring::SegmentView::Attach(CurrentSession()->name, &reason).release();
    }
    return view;
  }
  static ring::SlotRingReader Slot(const Probe& probe) {
    std::string reason;
    return *View()->OpenSlot(probe.Status().slots.at(0).slot, &reason);
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
  CU(cudaGraphExecDestroy(exec_));
  CU(cudaGraphDestroy(graph_));
  exec_ = nullptr;
  graph_ = nullptr;
  CU(cudaDeviceSynchronize());
  (void)probe.Status();  // sweeps
  EXPECT_EQ(Firsts(probe), (std::vector<float>{1000, 2000}));
}

TEST_P(DeviceRing, HeadersAloneTravelUntilAValueIsAskedFor) {
  Probe probe("device.window", OnDevice(4));
  Capture(probe);
  for (int replay = 1; replay <= 3; ++replay) ReplayWith(static_cast<float>(1000 * replay));
  ring::SlotRingReader slot = Slot(probe);
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
  ring::SlotRingReader slot = Slot(probe);
  slot.Request(1, /*every=*/false);
  ReplayWith(7000);
  ReplayWith(8000);
  EXPECT_EQ(slot.refused(), 1u);
  ring::Entry entry;
  ASSERT_EQ(slot.Read(1, &entry), ring::ReadStatus::kOk);
  EXPECT_TRUE(entry.payload.empty());
}

TEST_P(DeviceRing, EveryNewValueTravelsWhileTheDaemonWantsThemAll) {
  Probe probe("device.every", OnDevice(4));
  Capture(probe);
  ReplayWith(1000);
  ring::SlotRingReader slot = Slot(probe);
  slot.Request(0, /*every=*/true);
  ReplayWith(2000);  // learns of it
  for (int replay = 3; replay <= 9; ++replay) {
    ReplayWith(static_cast<float>(1000 * replay));
    ring::Entry entry;
    ASSERT_EQ(slot.Read(static_cast<std::uint64_t>(replay), &entry), ring::ReadStatus::kOk);
    ASSERT_EQ(entry.payload.size(), kCount * sizeof(float)) << replay;
    float last = 0;
    std::memcpy(&last, entry.payload.data() + (kCount - 1) * sizeof(last), sizeof(last));
    EXPECT_EQ(last, static_cast<float>(1000 * replay + kCount - 1));
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
  const ring::SegmentView::Freeze freeze = View()->freeze();
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
  View()->Thaw(serial, /*rearm=*/false);
  ReplayWith(11000);  // learns of it
  ReplayWith(12000);
  for (const Probe* probe : {&before, &trigger, &behind}) {
    EXPECT_EQ(probe->Records().back().replay_index, 12u) << probe->name();
  }
  ReplayWith(std::nanf(""));
  ReplayWith(14000);
  EXPECT_EQ(View()->freeze().serial, serial) << "one arming, one freeze";
  EXPECT_EQ(trigger.Records().back().replay_index, 14u);
}

INSTANTIATE_TEST_SUITE_P(Lanes, DeviceRing, ::testing::Values(LaneChoice::kDirect),
                         [](const auto&) { return "direct"; });

}  // namespace
}  // namespace cgdebug
