// Both lanes in plain CUDA, without torch: what is in the graph, what it delivers, how it dies.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "cgdebug/probe.h"

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
