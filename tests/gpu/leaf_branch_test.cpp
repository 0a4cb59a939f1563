// Both lanes in plain CUDA, without torch: what is in the graph, what it delivers, how it dies.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "cgdebug/probe.h"
#include "libprobe/ring/segment_view.h"
#include "tests/support/wait_until.h"

namespace cgdebug {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

#define CU(call) ASSERT_EQ((call), cudaSuccess) << #call

class LeafBranch : public ::testing::TestWithParam<LaneChoice> {
 protected:
  static constexpr int kCount = 1024;

  void SetUp() override {
    int devices = 0;
    ASSERT_EQ(cudaGetDeviceCount(&devices), cudaSuccess) << "this test needs a GPU";
    CU(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CU(cudaMalloc(reinterpret_cast<void**>(&device_), kCount * sizeof(float)));
    CU(cudaMallocHost(reinterpret_cast<void**>(&host_), kCount * sizeof(float)));
    Fill(0);
  }
  void TearDown() override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaGraph_t unfinished = nullptr;
    if (cudaStreamIsCapturing(stream_, &status) == cudaSuccess &&
        status != cudaStreamCaptureStatusNone) {
      (void)cudaStreamEndCapture(stream_, &unfinished);
    }
    (void)cudaStreamSynchronize(stream_);
    if (exec_ != nullptr) (void)cudaGraphExecDestroy(exec_);
    if (graph_ != nullptr) (void)cudaGraphDestroy(graph_);
    (void)cudaFreeHost(host_);
    (void)cudaFree(device_);
    (void)cudaStreamDestroy(stream_);
  }

  void Fill(float first) {
    for (int i = 0; i < kCount; ++i) host_[i] = first + static_cast<float>(i);
  }
  TensorRef Tensor() const {
    TensorRef tensor;
    tensor.data = device_;
    tensor.dtype = Dtype::kFloat32;
    tensor.shape = {kCount};
    return tensor;
  }
  static ProbeOptions Recording(std::uint32_t capacity) {
    ProbeOptions options;
    options.lane = GetParam();
    options.record = RecordAction{capacity, 1};
    return options;
  }
  // host -> device, then the probe, `times` times.
  void Capture(Probe& probe, int times = 1,
               cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
    CU(cudaStreamBeginCapture(stream_, mode));
    CU(cudaMemcpyAsync(device_, host_, kCount * sizeof(float), cudaMemcpyHostToDevice, stream_));
    for (int i = 0; i < times; ++i) probe.Observe(Tensor(), stream_);
    CU(cudaStreamEndCapture(stream_, &graph_));
    CU(cudaGraphInstantiate(&exec_, graph_, 0));
  }
  void Replay() {
    CU(cudaGraphLaunch(exec_, stream_));
    CU(cudaStreamSynchronize(stream_));
  }
  static std::vector<float> Values(const Record& record) {
    std::vector<float> values(record.payload.size() / sizeof(float));
    std::memcpy(values.data(), record.payload.data(), record.payload.size());
    return values;
  }

  cudaStream_t stream_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
  float* device_ = nullptr;
  float* host_ = nullptr;
};

TEST_P(LeafBranch, EachReplayDeliversItsOwnValues) {
  Probe probe("x", Recording(4));
  Capture(probe);
  for (int replay = 1; replay <= 6; ++replay) {
    Fill(static_cast<float>(replay * 100));
    Replay();
  }
  const auto records = probe.Records();
  ASSERT_THAT(records, SizeIs(4));
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(records[i].replay_index, static_cast<std::uint64_t>(i + 3));
    EXPECT_EQ(Values(records[i])[0], static_cast<float>((i + 3) * 100));
    EXPECT_EQ(Values(records[i])[kCount - 1], static_cast<float>((i + 3) * 100 + kCount - 1));
  }
}

TEST_P(LeafBranch, TheStreamsOwnDependenciesAreTheStagingCopyOnly) {
  Probe probe("x", Recording(2));
  CU(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  probe.Observe(Tensor(), stream_);
  cudaStreamCaptureStatus status;
  const cudaGraphNode_t* dependencies = nullptr;
  std::size_t count = 0;
  CU(cudaStreamGetCaptureInfo(stream_, &status, nullptr, &graph_, &dependencies, nullptr, &count));
  ASSERT_EQ(count, 1u);
  cudaGraphNodeType type;
  CU(cudaGraphNodeGetType(dependencies[0], &type));
  const bool direct = GetParam() == LaneChoice::kDirect;
  EXPECT_EQ(type, direct ? cudaGraphNodeTypeKernel : cudaGraphNodeTypeMemcpy);
  std::size_t nodes = 0;
  CU(cudaGraphGetNodes(graph_, nullptr, &nodes));
  EXPECT_EQ(nodes, direct ? 2u : 3u) << "staging copy; leaf, or copy to the host and callback";
  CU(cudaStreamEndCapture(stream_, &graph_));
}

TEST_P(LeafBranch, WorksInEveryCaptureMode) {
  for (const auto mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                          cudaStreamCaptureModeRelaxed}) {
    Probe probe("x", Recording(2));
    Capture(probe, 1, mode);
    Replay();
    EXPECT_THAT(probe.Records(), SizeIs(1));
    CU(cudaGraphExecDestroy(exec_));
    CU(cudaGraphDestroy(graph_));
    exec_ = nullptr;
    graph_ = nullptr;
  }
}

TEST_P(LeafBranch, CallsInOneCaptureAreInvocationsOfTheirOwn) {
  Probe probe("x", Recording(2));
  Capture(probe, 3);
  Replay();
  const auto records = probe.Records();
  ASSERT_THAT(records, SizeIs(3));
  std::vector<std::uint32_t> invocations;
  for (const Record& record : records) invocations.push_back(record.invocation_index);
  EXPECT_THAT(invocations, ::testing::UnorderedElementsAre(0, 1, 2));
}

TEST_P(LeafBranch, OutsideACaptureNothingIsTouched) {
  Probe probe("x", Recording(2));
  TensorRef nonsense = Tensor();
  nonsense.shape = {-5};
  probe.Observe(nonsense, stream_);
  EXPECT_TRUE(probe.Status().slots.empty());
}

TEST_P(LeafBranch, AClosedProbeLeavesItsGraphReplayable) {
  {
    Probe probe("x", Recording(2));
    Capture(probe);
    Replay();
    ASSERT_THAT(probe.Records(), SizeIs(1));
  }
  for (int i = 0; i < 10; ++i) Replay();
}

TEST_P(LeafBranch, RecordsOutliveTheirGraph) {
  Probe probe("x", Recording(2));
  Capture(probe);
  Fill(7);
  Replay();
  CU(cudaGraphExecDestroy(exec_));
  CU(cudaGraphDestroy(graph_));
  exec_ = nullptr;
  graph_ = nullptr;
  ASSERT_THAT(probe.Records(), SizeIs(1));
  EXPECT_EQ(Values(probe.Records()[0])[0], 7.0f);
}

TEST_P(LeafBranch, ManyCapturesReuseMemory) {
  Probe warm("warm", Recording(2));
  auto cycle = [&] {
    Probe probe("x", Recording(2));
    Capture(probe);
    Replay();
    CU(cudaGraphExecDestroy(exec_));
    CU(cudaGraphDestroy(graph_));
    exec_ = nullptr;
    graph_ = nullptr;
  };
  for (int i = 0; i < 20; ++i) cycle();
  const std::uint64_t shm_before = CurrentSession()->shm_bytes;
  std::size_t free_before = 0;
  std::size_t total = 0;
  CU(cudaMemGetInfo(&free_before, &total));
  for (int i = 0; i < 200; ++i) cycle();
  std::size_t free_after = 0;
  CU(cudaMemGetInfo(&free_after, &total));
  EXPECT_EQ(CurrentSession()->shm_bytes, shm_before);
  EXPECT_GE(free_after + (4u << 20), free_before);
}

// A job that captures again and again with the probes it has.
TEST_P(LeafBranch, ManyCapturesOfOneProbeLeaveMemoryFlat) {
  constexpr std::uint64_t kMiB = 1 << 20;
  constexpr int kCaptures = 300;
  void* tensor = nullptr;
  CU(cudaMalloc(&tensor, kMiB));
  CU(cudaMemset(tensor, 0, kMiB));
  const std::uint64_t released_before = CurrentSession() ? CurrentSession()->released_unread : 0;
  Probe probe("x", Recording(4));
  TensorRef ref = Tensor();
  ref.data = tensor;
  ref.shape = {kMiB / sizeof(float)};
  std::uint64_t shm_before = 0;
  std::size_t free_before = 0;
  std::size_t total = 0;
  const auto settle = [&] {  // the driver's thread reports a dead graph in its own time
    ASSERT_TRUE(test::WaitUntil([&] { return probe.Status().slots.size() <= 65; }));
  };
  for (int i = 1; i <= kCaptures; ++i) {
    CU(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
    probe.Observe(ref, stream_);
    CU(cudaStreamEndCapture(stream_, &graph_));
    CU(cudaGraphInstantiate(&exec_, graph_, 0));
    Replay();
    CU(cudaGraphExecDestroy(exec_));
    CU(cudaGraphDestroy(graph_));
    exec_ = nullptr;
    graph_ = nullptr;
    if (i != 80) continue;
    settle();
    shm_before = CurrentSession()->shm_bytes;
    CU(cudaMemGetInfo(&free_before, &total));
  }
  settle();
  std::size_t free_after = 0;
  CU(cudaMemGetInfo(&free_after, &total));
  EXPECT_LE(CurrentSession()->shm_bytes, shm_before + 64 * kMiB);
  EXPECT_GE(free_after + 64 * kMiB, free_before);
  const std::uint64_t kept = probe.Records().size();
  EXPECT_GE(kept, 32u) << "those of the last graphs can still be read";
  EXPECT_EQ(kept + CurrentSession()->released_unread - released_before, kCaptures);
  CU(cudaFree(tensor));
}

// What the CPU enqueued is written, also when it ran ahead through more shapes than are kept.
TEST_P(LeafBranch, EagerCallsOfManyShapesLoseNothingUncounted) {
  constexpr int kShapes = 100;
  ProbeOptions options = Recording(2);
  options.mode = ProbeMode::kAlways;
  const auto observe = [&](Probe& probe, int count) {
    TensorRef tensor = Tensor();
    tensor.shape = {count};
    probe.Observe(tensor, stream_);
  };
  {
    // One probe keeps 64 slots. Two leave enough buffers that the calls below allocate no memory of
    // CUDA's, which would wait for the stream that `go` holds up.
    Probe warm("warm", options), too("warm too", options);
    for (int n = 1; n <= kShapes / 2; ++n) {
      observe(warm, n);
      observe(too, n);
    }
    CU(cudaStreamSynchronize(stream_));
  }
  Probe probe("x", options);
  const std::uint64_t released_before = CurrentSession()->released_unread;
  std::atomic<bool> go{false};
  CU(cudaLaunchHostFunc(
      stream_,
      [](void* flag) {
        while (!static_cast<std::atomic<bool>*>(flag)->load()) {
        }
      },
      &go));
  for (int n = 1; n <= kShapes; ++n) observe(probe, n);
  go = true;
  CU(cudaStreamSynchronize(stream_));
  EXPECT_THAT(probe.Records(), SizeIs(kShapes));
  observe(probe, kShapes + 1);
  CU(cudaStreamSynchronize(stream_));
  EXPECT_THAT(probe.Status().slots, SizeIs(64));
  EXPECT_EQ(probe.Records().size() + CurrentSession()->released_unread - released_before,
            kShapes + 1u);
}

// CGDEBUG_WAIT_MS=0: nobody is waited for, and what is overwritten unread is counted.
TEST_P(LeafBranch, WithoutADeadlineWhatIsOverwrittenUnreadIsCounted) {
  setenv("CGDEBUG", "0", 1);
  setenv("CGDEBUG_WAIT_MS", "0", 1);
  ProbeOptions options = Recording(2);
  options.record->to_disk = true;
  Probe probe("x", options);
  Capture(probe);
  unsetenv("CGDEBUG_WAIT_MS");
  for (int i = 0; i < 5; ++i) Replay();
  EXPECT_EQ(probe.Status().slots.at(0).overwrote_unread, 3u);
}

// --- what the live control asks of the direct lane -----------------------------------------------

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
    // Kept: closing a second descriptor of the segment would drop the lock of this process.
    static ring::SegmentView* view = nullptr;
    std::string reason;
    if (view == nullptr)
      view = ring::SegmentView::Attach(CurrentSession()->name, &reason).release();
    ASSERT_NE(view, nullptr) << reason;
    auto slot = view->OpenSlot(probe.Status().slots.at(0).slot, &reason);
    ASSERT_TRUE(slot) << reason;
    slot_ = std::make_unique<ring::SlotRingReader>(*slot);
  }
  void Upload() {
    CU(cudaMemcpy(large_, values_.data(), values_.size() * sizeof(float), cudaMemcpyHostToDevice));
  }
  // The next replay is decided already; this is the one after it.
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
    for (const bool prefer_link : {false, true}) {
      SCOPED_TRACE(std::to_string(count) + (prefer_link ? " link" : ""));
      ProbeOptions options = Recording(3);
      options.prefer_link = prefer_link;
      Probe probe("x", options);
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
      EXPECT_EQ(slot_->head().sequence, 30u);
      slot_.reset();
      CU(cudaGraphExecDestroy(exec_));
      CU(cudaGraphDestroy(graph_));
      exec_ = nullptr;
      graph_ = nullptr;
      CU(cudaFree(large_));
      large_ = nullptr;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, LiveControl, ::testing::Values(LaneChoice::kDirect),
                         [](const auto&) { return "Direct"; });

// --- tensors and places
// ----------------------------------------------------------------------------

TEST_P(LeafBranch, EmptyTensorsAreProbedToo) {
  Probe probe("x", Recording(2));
  CU(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  TensorRef empty = Tensor();
  empty.shape = {0, 3};
  empty.data = nullptr;
  probe.Observe(empty, stream_);
  CU(cudaStreamEndCapture(stream_, &graph_));
  CU(cudaGraphInstantiate(&exec_, graph_, 0));
  Replay();
  ASSERT_THAT(probe.Records(), SizeIs(1));
  EXPECT_TRUE(probe.Records()[0].payload.empty());
}

TEST_P(LeafBranch, ForkedStreamsNeedNoJoinOfTheProbe) {
  Probe probe("x", Recording(2));
  cudaStream_t side = nullptr;
  cudaEvent_t fork = nullptr;
  cudaEvent_t join = nullptr;
  CU(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  CU(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  CU(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
  CU(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  CU(cudaMemcpyAsync(device_, host_, kCount * sizeof(float), cudaMemcpyHostToDevice, stream_));
  CU(cudaEventRecord(fork, stream_));
  CU(cudaStreamWaitEvent(side, fork));
  probe.Observe(Tensor(), side);
  probe.Observe(Tensor(), stream_);
  CU(cudaEventRecord(join, side));
  CU(cudaStreamWaitEvent(stream_, join));
  CU(cudaStreamEndCapture(stream_, &graph_));
  CU(cudaGraphInstantiate(&exec_, graph_, 0));
  Fill(3);
  Replay();
  ASSERT_THAT(probe.Records(), SizeIs(2));
  EXPECT_EQ(Values(probe.Records()[1])[5], 8.0f);
  (void)cudaEventDestroy(fork);
  (void)cudaEventDestroy(join);
  (void)cudaStreamDestroy(side);
}

TEST_P(LeafBranch, AConditionalBodyIsRefusedClearlyAndTheCaptureSurvives) {
  CU(cudaGraphCreate(&graph_, 0));
  cudaGraphConditionalHandle handle;
  CU(cudaGraphConditionalHandleCreate(&handle, graph_, 1, cudaGraphCondAssignDefault));
  cudaGraphNodeParams params = {};
  params.type = cudaGraphNodeTypeConditional;
  params.conditional.handle = handle;
  params.conditional.type = cudaGraphCondTypeIf;
  params.conditional.size = 1;
  cudaGraphNode_t node = nullptr;
  CU(cudaGraphAddNode(&node, graph_, nullptr, nullptr, 0, &params));
  cudaGraph_t body = params.conditional.phGraph_out[0];
  Probe probe("x", Recording(2));
  CU(cudaStreamBeginCaptureToGraph(stream_, body, nullptr, nullptr, 0,
                                   cudaStreamCaptureModeGlobal));
  try {
    probe.Observe(Tensor(), stream_);
    FAIL() << "a conditional body allows no host node";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_THAT(error.what(), HasSubstr("conditional"));
  }
  CU(cudaMemcpyAsync(device_, device_ + kCount / 2, 16, cudaMemcpyDeviceToDevice, stream_));
  CU(cudaStreamEndCapture(stream_, &body));
  CU(cudaGraphInstantiate(&exec_, graph_, 0));
  Replay();
  EXPECT_THAT(probe.Records(), SizeIs(0));
  EXPECT_THAT(probe.Status().last_error, HasSubstr("conditional"));
}

TEST_P(LeafBranch, EagerCallsOnTheGpuAreRecordedInStreamOrder) {
  ProbeOptions options = Recording(8);
  options.mode = ProbeMode::kAlways;
  Probe probe("x", options);
  for (int call = 1; call <= 5; ++call) {
    CU(cudaStreamSynchronize(stream_));
    Fill(static_cast<float>(call));
    CU(cudaMemcpyAsync(device_, host_, kCount * sizeof(float), cudaMemcpyHostToDevice, stream_));
    probe.Observe(Tensor(), stream_);
  }
  CU(cudaStreamSynchronize(stream_));
  const auto records = probe.Records();
  ASSERT_THAT(records, SizeIs(5));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Values(records[i])[0], static_cast<float>(i + 1));
}

TEST_P(LeafBranch, PreparedMemoryIsTakenByTheCapture) {
  Probe probe("x", Recording(2));
  probe.Prepare(Tensor());
  Capture(probe);
  Replay();
  EXPECT_THAT(probe.Records(), SizeIs(1));
}

TEST_P(LeafBranch, ADestroyedCaptureLeavesTheProbeUsable) {
  Probe probe("x", Recording(2));
  CU(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  probe.Observe(Tensor(), stream_);
  CU(cudaStreamEndCapture(stream_, &graph_));
  CU(cudaGraphDestroy(graph_));
  graph_ = nullptr;
  Capture(probe);
  Replay();
  EXPECT_THAT(probe.Records(), SizeIs(1));
}

INSTANTIATE_TEST_SUITE_P(Lanes, LeafBranch,
                         ::testing::Values(LaneChoice::kCallback, LaneChoice::kDirect),
                         [](const auto& info) {
                           return info.param == LaneChoice::kDirect ? "Direct" : "Callback";
                         });

}  // namespace
}  // namespace cgdebug
