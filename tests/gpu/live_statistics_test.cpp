// Live control of slots in the direct lane that were captured for values.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "cgdebug/probe.h"
#include "libprobe/capture/driver_function.h"
#include "tests/gpu/leaf_branch_fixture.h"

namespace cgdebug {
namespace {

class LiveControl : public LeafBranch {
 protected:
  void TearDown() override {
    LeafBranch::TearDown();
    (void)cudaFree(large_);
  }

  // A capture of `count` floats, -500 to 499 again and again.
  void CaptureLarge(Probe& probe, std::size_t count) {
    values_.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      values_[i] = static_cast<float>(static_cast<int>(i * 7 % 1000) - 500);
    }
    CU(cudaMalloc(&large_, count * sizeof(float)));
    Upload();
    TensorRef ref = Tensor();
    ref.data = large_;
    ref.shape = {static_cast<std::int64_t>(count)};
    CU(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
    probe.Observe(ref, stream_);
    CU(cudaStreamEndCapture(stream_, &graph_));
    CU(cudaGraphInstantiate(&exec_, graph_, 0));
    slot_ = std::make_unique<ring::SlotRingReader>(RingOf(probe));
  }
  // What CaptureLarge() made, so that it may be called again.
  void Release() {
    slot_.reset();
    DestroyGraph();
    CU(cudaFree(large_));
    large_ = nullptr;
  }
  void Upload() {
    CU(cudaMemcpy(large_, values_.data(), values_.size() * sizeof(float), cudaMemcpyHostToDevice));
  }
  // The next replay is decided already, so the control holds for the one after it.
  void ReplayWith(const layout::SlotControl& control) {
    slot_->SetControl(control);
    Replay();
    Replay();
    ASSERT_EQ(slot_->Read(slot_->accepted(), &entry_), ring::ReadStatus::kOk);
  }
  void ExpectStatistics() {
    ASSERT_NE(entry_.flags & layout::kEntryIsStats, 0u);
    std::uint64_t hash = 0, nan = 0, zero = 0, first = 0;
    double sum = 0, sum_squares = 0, l1 = 0;
    double min = std::numeric_limits<double>::infinity(), max = -min;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const double value = values_[i];
      hash ^= std::bit_cast<std::uint64_t>(value);
      if (std::isnan(value)) {
        if (nan++ == 0) first = i;
        continue;
      }
      zero += value == 0 ? 1 : 0;
      sum += value - entry_.stats.shift;
      sum_squares += (value - entry_.stats.shift) * (value - entry_.stats.shift);
      l1 += std::abs(value);
      min = std::min(min, value);
      max = std::max(max, value);
    }
    const layout::DeviceStats& stats = entry_.stats;
    EXPECT_EQ(stats.count, values_.size());
    EXPECT_EQ(stats.hash, hash);
    EXPECT_EQ(stats.nan, nan);
    EXPECT_EQ(stats.zero, zero);
    EXPECT_EQ(stats.min, min);
    EXPECT_EQ(stats.max, max);
    EXPECT_EQ(stats.sum, sum) << "whole numbers: exact in any order";
    EXPECT_EQ(stats.sum_squares, sum_squares);
    EXPECT_EQ(stats.l1, l1);
    EXPECT_EQ(stats.first_nonfinite, first);
  }
  void ExpectValues() {
    ASSERT_EQ(entry_.flags & layout::kEntryIsStats, 0u);
    ASSERT_EQ(entry_.payload.size(), values_.size() * sizeof(float));
    EXPECT_EQ(std::memcmp(entry_.payload.data(), values_.data(), entry_.payload.size()), 0);
  }

  void* large_ = nullptr;
  std::vector<float> values_;
  std::unique_ptr<ring::SlotRingReader> slot_;
  ring::Entry entry_;
};

TEST_P(LiveControl, StatisticsAndTriggersOfLargeTensorsAreRight) {
  const layout::SlotControl stats = {.mode = layout::ControlMode::kStats};
  const layout::SlotControl on_nan = {.mode = layout::ControlMode::kFull,
                                      .trigger = layout::ControlTrigger::kNonfinite};
  for (const std::size_t count : {64u << 10, 150'001u, 1u << 20, (3u << 20) + 1, 5u << 20}) {
    SCOPED_TRACE(std::to_string(count));
    Probe probe("x", Recording(3));
    CaptureLarge(probe, count);
    for (int round = 0; round < 3; ++round) {
      values_[round] += 1;
      Upload();
      ReplayWith({});
      ExpectValues();
      ReplayWith(stats);
      ExpectStatistics();
      ReplayWith(on_nan);
      ExpectStatistics();
      values_[count - 2 - round] = std::numeric_limits<float>::quiet_NaN();
      Upload();
      ReplayWith(on_nan);
      ExpectValues();
      ReplayWith(stats);
      ExpectStatistics();
      values_[count - 2 - round] = 1;
    }
    EXPECT_EQ(slot_->head().accepted, 30u);
    EXPECT_EQ(slot_->head().replay, 30u);
    Release();
  }
}

TEST_P(LiveControl, StatisticsOfRingsInDeviceMemoryAreRightAndEndWithTheControl) {
  const layout::SlotControl stats = {.mode = layout::ControlMode::kStats};
  for (const std::size_t count : {64u << 10, 150'001u, 300'001u, 1u << 20, (3u << 20) + 1}) {
    SCOPED_TRACE(std::to_string(count));
    ProbeOptions options = Recording(3);
    options.record->on_device = true;
    Probe probe("x", options);
    CaptureLarge(probe, count);
    for (int round = 0; round < 3; ++round) {
      values_[round] += 1;
      Upload();
      ReplayWith({});
      EXPECT_EQ(entry_.flags & layout::kEntryIsStats, 0u);
      const std::vector<Record> records = probe.Records();
      ASSERT_FALSE(records.empty());
      EXPECT_EQ(Values(records.back()), values_);
      ReplayWith(stats);
      ExpectStatistics();
      values_[count - 2 - round] = std::numeric_limits<float>::quiet_NaN();
      Upload();
      ReplayWith(stats);
      ExpectStatistics();
      values_[count - 2 - round] = 1;
    }
    Release();
  }
}

// Each further block would keep a multiprocessor from the job, in every replay.
TEST_P(LiveControl, TheLeafOfALargeTensorHasOneBlock) {
  // The runtime of this program does not know the kernels of libprobe's; the driver does.
  const auto get_params = reinterpret_cast<CUresult (*)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*)>(
      capture::DriverFunction("cuGraphKernelNodeGetParams", 12000));
  for (const bool on_device : {false, true}) {
    SCOPED_TRACE(on_device ? "device" : "host");
    ProbeOptions options = Recording(3);
    options.record->on_device = on_device;
    Probe probe("x", options);
    CaptureLarge(probe, 4u << 20);
    std::size_t count = 0;
    CU(cudaGraphGetNodes(graph_, nullptr, &count));
    std::vector<cudaGraphNode_t> nodes(count);
    CU(cudaGraphGetNodes(graph_, nodes.data(), &count));
    ASSERT_EQ(count, 2u);  // the staging kernel, and behind it the leaf
    std::vector<unsigned> blocks;
    for (const cudaGraphNode_t node : nodes) {
      CUDA_KERNEL_NODE_PARAMS kernel = {};
      ASSERT_EQ(get_params(node, &kernel), CUDA_SUCCESS);
      blocks.push_back(kernel.gridDimX);
    }
    EXPECT_EQ(*std::min_element(blocks.begin(), blocks.end()), 1u);
    EXPECT_GT(*std::max_element(blocks.begin(), blocks.end()), 100u);
    Release();
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, LiveControl, ::testing::Values(LaneChoice::kDirect),
                         [](const auto&) { return "Direct"; });

}  // namespace
}  // namespace cgdebug
