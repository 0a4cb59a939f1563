// Probes of statistics in a row, whose kernels overlap.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cgdebug/probe.h"
#include "libprobe/op_log.h"
#include "libprobe/ring/slot_ring_reader.h"
#include "tests/gpu/kernels.h"
#include "tests/gpu/leaf_branch_fixture.h"

namespace cgdebug {
namespace {

class RowOfStatistics : public LeafBranch {
 protected:
  static constexpr int kReplays = 20;
  static constexpr unsigned kLateNs = 200'000;
  static constexpr std::uint32_t kTwo = 0x4000;  // as a bfloat16

  void SetUp() override {
    LeafBranch::SetUp();
    CU(cudaMallocHost(reinterpret_cast<void**>(&value_), 2 * sizeof(float)));
    value_[1] = -1;
  }
  void TearDown() override {
    LeafBranch::TearDown();
    (void)cudaFree(memory_);
    (void)cudaFreeHost(value_);
  }

  // Captures a kernel that writes *value_ to tensors of so many elements, late; a probe of each;
  // and a kernel that writes -1 to them.
  void CaptureRow(const std::vector<std::size_t>& counts, Dtype dtype) {
    std::size_t bytes = 0;
    for (const std::size_t count : counts) bytes += count * sizeof(float);
    CU(cudaMalloc(reinterpret_cast<void**>(&memory_), bytes));
    ProbeOptions options;
    options.lane = GetParam();
    options.stats = StatsAction{};
    CU(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
    CU(test::LaunchFill(memory_, bytes / sizeof(float), value_, {.delay_ns = kLateNs}, stream_));
    float* data = memory_;
    for (const std::size_t count : counts) {
      probes_.push_back(std::make_unique<Probe>("row" + std::to_string(probes_.size()), options));
      TensorRef tensor;
      tensor.data = data;
      tensor.dtype = dtype;
      const std::size_t elements_a_float = dtype == Dtype::kFloat32 ? 1 : 2;
      tensor.shape = {static_cast<std::int64_t>(count * elements_a_float)};
      probes_.back()->Observe(tensor, stream_);
      data += count;
    }
    CU(test::LaunchFill(memory_, bytes / sizeof(float), value_ + 1, {.overlaps = true}, stream_));
    CU(cudaStreamEndCapture(stream_, &graph_));
    CU(cudaGraphInstantiate(&exec_, graph_, 0));
    for (const auto& probe : probes_) rings_.push_back(RingOf(*probe));
  }
  // What CaptureRow() made, so that it may be called again.
  void Release() {
    rings_.clear();
    probes_.clear();
    DestroyGraph();
    CU(cudaFree(memory_));
    memory_ = nullptr;
  }
  // Each probe has seen what the first kernel wrote in the same replay, and nothing else. Both
  // halves of such a value are the same bfloat16, and as a float32 it is close to it.
  void ExpectEachReplaysValues(Dtype dtype, std::uint32_t first_half) {
    for (int replay = 1; replay <= kReplays; ++replay) {
      const std::uint32_t half = first_half + static_cast<std::uint32_t>(replay);
      const std::uint32_t bits = half << 16 | half;
      const std::uint32_t shown = dtype == Dtype::kFloat32 ? bits : half << 16;
      std::memcpy(value_, &bits, sizeof(bits));
      float expected = 0;
      std::memcpy(&expected, &shown, sizeof(expected));
      Replay();
      for (std::size_t i = 0; i < rings_.size(); ++i) {
        SCOPED_TRACE("replay " + std::to_string(replay) + ", probe " + std::to_string(i));
        ring::Entry entry;
        ASSERT_EQ(rings_[i].Read(rings_[i].accepted(), &entry), ring::ReadStatus::kOk);
        EXPECT_EQ(entry.replay, static_cast<std::uint64_t>(replay));
        EXPECT_EQ(entry.stats.min, expected);
        EXPECT_EQ(entry.stats.max, expected);
      }
    }
  }

  float* memory_ = nullptr;
  float* value_ = nullptr;  // in pinned memory
  std::vector<std::unique_ptr<Probe>> probes_;
  std::vector<ring::SlotRingReader> rings_;
};

TEST_P(RowOfStatistics, ReadsWhatTheKernelInFrontOfItHasWritten) {
  CaptureRow({64u << 10, 1u << 20, 100, 64u << 10, 64u << 10, 3u << 20}, Dtype::kFloat32);
  ExpectEachReplaysValues(Dtype::kFloat32, kTwo);
}

TEST_P(RowOfStatistics, ReadsItOnTensorCoresToo) {
  CaptureRow({1u << 20, 1u << 20, 100, 4u << 20, 64u << 10, 1u << 20}, Dtype::kBfloat16);
  ExpectEachReplaysValues(Dtype::kBfloat16, kTwo);
}

// The first kernel takes long: it adds subnormal numbers one by one, and reads them once more for
// that. The kernel behind it reads little.
TEST_P(RowOfStatistics, IsReadBeforeAKernelBehindItWritesEvenOneThatDoesNotWait) {
  for (const auto& counts : {std::vector<std::size_t>{1u << 20}, {1u << 20, 100}}) {
    SCOPED_TRACE(std::to_string(counts.size()) + " probes");
    CaptureRow(counts, Dtype::kBfloat16);
    ExpectEachReplaysValues(Dtype::kBfloat16, 0);
    Release();
  }
}

// A batch of an op log, too.
TEST_P(RowOfStatistics, OfAnOpLogIsReadBeforeAKernelBehindItWritesEvenOneThatDoesNotWait) {
  constexpr std::size_t kFloats = 4u << 20;
  CU(cudaMalloc(reinterpret_cast<void**>(&memory_), kFloats * sizeof(float)));
  OpLog log;
  TensorRef tensor;
  tensor.data = memory_;
  tensor.dtype = Dtype::kFloat32;
  tensor.shape = {static_cast<std::int64_t>(kFloats)};
  CU(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  CU(test::LaunchFill(memory_, kFloats, value_, {}, stream_));
  log.Add({.name = "fwd/fill_0", .site = "", .op = "1 aten.fill.default"}, tensor, stream_);
  log.Flush();
  CU(test::LaunchFill(memory_, kFloats, value_ + 1, {.overlaps = true}, stream_));
  log.End();
  CU(cudaStreamEndCapture(stream_, &graph_));
  CU(cudaGraphInstantiate(&exec_, graph_, 0));
  std::optional<ring::SlotRingReader> page;
  for (std::uint32_t index = 0; index < View()->slot_count(); ++index) {
    std::string reason;
    auto slot = View()->OpenSlot(index, &reason);
    if (!slot || slot->retired()) continue;
    if ((slot->registration().flags & layout::kSlotHoldsOpLog) != 0) page = std::move(slot);
  }
  ASSERT_TRUE(page.has_value());
  for (int replay = 1; replay <= kReplays; ++replay) {
    value_[0] = static_cast<float>(replay);
    Replay();
    ring::Entry entry;
    ASSERT_EQ(page->Read(page->accepted(), &entry), ring::ReadStatus::kOk);
    layout::DeviceStats stats = {};
    ASSERT_GE(entry.payload.size(), sizeof(stats));
    std::memcpy(&stats, entry.payload.data(), sizeof(stats));
    EXPECT_EQ(stats.min, replay) << "replay " << replay;
    EXPECT_EQ(stats.max, replay) << "replay " << replay;
  }
}

// Not half a MiB for each, whatever its tensor.
TEST_P(RowOfStatistics, OfSmallTensorsTakesLittleDeviceMemory) {
  std::size_t before = 0, after = 0, total = 0;
  CaptureRow({16}, Dtype::kFloat32);  // what the lane needs once
  Release();
  CU(cudaMemGetInfo(&before, &total));
  CaptureRow(std::vector<std::size_t>(200, 16), Dtype::kFloat32);
  CU(cudaMemGetInfo(&after, &total));
  EXPECT_LE(before, after + (20u << 20));
}

INSTANTIATE_TEST_SUITE_P(Lanes, RowOfStatistics, ::testing::Values(LaneChoice::kDirect),
                         [](const auto&) { return "Direct"; });

}  // namespace
}  // namespace cgdebug
