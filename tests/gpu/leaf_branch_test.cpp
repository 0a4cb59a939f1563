// Both lanes in plain CUDA, without torch: what is in the graph, what it delivers, how it dies.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "cgdebug/probe.h"
#include "libprobe/ring/segment/segment_view.h"
#include "tests/gpu/leaf_branch_fixture.h"
#include "tests/support/child_process.h"
#include "tests/support/wait_until.h"

namespace cgdebug {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

// The first tensor opens the session.
std::uint64_t ReleasedUnread() {
  const auto session = CurrentSession();
  return session ? session->released_unread : 0;
}

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
    DestroyGraph();
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
  DestroyGraph();
  ASSERT_THAT(probe.Records(), SizeIs(1));
  EXPECT_EQ(Values(probe.Records()[0])[0], 7.0f);
}

TEST_P(LeafBranch, ManyCapturesReuseMemory) {
  Probe warm("warm", Recording(2));
  auto cycle = [&] {
    Probe probe("x", Recording(2));
    Capture(probe);
    Replay();
    DestroyGraph();
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

// A job that captures again and again with the same probes.
TEST_P(LeafBranch, ManyCapturesOfOneProbeLeaveMemoryFlat) {
  constexpr std::uint64_t kMiB = 1 << 20;
  constexpr int kCaptures = 300;
  void* tensor = nullptr;
  CU(cudaMalloc(&tensor, kMiB));
  CU(cudaMemset(tensor, 0, kMiB));
  const std::uint64_t released_before = ReleasedUnread();
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
    DestroyGraph();
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
  EXPECT_GE(kept, 32u) << "records of the last graphs can still be read";
  EXPECT_EQ(kept + ReleasedUnread() - released_before, kCaptures);
  CU(cudaFree(tensor));
}

// Everything that the CPU enqueued is written, even if it ran ahead through more shapes than are
// kept.
TEST_P(LeafBranch, EagerCallsOfManyShapesLoseNothingUncounted) {
  constexpr int kShapes = 100;
  ProbeOptions options = Recording(2);
  options.mode = ProbeMode::kAlways;
  Probe probe("x", options);
  const std::uint64_t released_before = ReleasedUnread();
  // Holds the calls back so that slots are given up while calls are queued. Not for ever: CUDA may
  // wait for the stream where a new shape needs pinned memory.
  CU(cudaLaunchHostFunc(
      stream_, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(200)); },
      nullptr));
  for (int n = 1; n <= kShapes; ++n) {
    TensorRef tensor = Tensor();
    tensor.shape = {n};
    probe.Observe(tensor, stream_);
  }
  CU(cudaStreamSynchronize(stream_));
  EXPECT_EQ(probe.Records().size() + ReleasedUnread() - released_before,
            static_cast<std::size_t>(kShapes));
}

// CGDEBUG_WAIT_MS=0: no writer waits, and what is overwritten unread is counted.
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

// A daemon that cannot read a slot refuses it. Its graph then waits for no deadline, neither once
// nor per replay.
TEST_P(LeafBranch, ARefusedSlotIsNotWaitedForAndItsLossIsCounted) {
  setenv("CGDEBUG", "0", 1);
  setenv("CGDEBUG_WAIT_MS", "60000", 1);
  ProbeOptions options = Recording(2);
  options.record->to_disk = true;
  Probe probe("x", options);
  Capture(probe);
  unsetenv("CGDEBUG_WAIT_MS");
  const auto slot = [&] { return probe.Status().slots.at(0); };
  test::ChildProcess daemon(
      [session = CurrentSession()->name, index = slot().slot](const test::Line& line) {
        std::string reason;
        const auto view = ring::SegmentView::Attach(session, &reason);
        if (view == nullptr || !view->BecomeReader()) return 1;
        line.Send("ready");
        while (line.Receive() == "refuse") {
          view->Refuse(index);
          line.Send("done");
        }
        view->Leave();
        return 0;
      });
  ASSERT_EQ(daemon.line().Receive(), "ready");
  Replay();
  Replay();
  const auto start = std::chrono::steady_clock::now();
  CU(cudaGraphLaunch(exec_, stream_));  // waits for room
  daemon.line().Send("refuse");
  ASSERT_EQ(daemon.line().Receive(), "done");
  CU(cudaStreamSynchronize(stream_));
  EXPECT_EQ(slot().overwrote_unread, 1u);
  const std::uint64_t waits = slot().waits;
  EXPECT_LE(waits, 1u);
  for (int i = 0; i < 100; ++i) Replay();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  EXPECT_EQ(slot().overwrote_unread, 101u);
  EXPECT_EQ(slot().waits, waits);
  EXPECT_EQ(slot().accepted, 103u);
  EXPECT_THAT(probe.Records(), SizeIs(2));
  daemon.line().Send("leave");
  EXPECT_EQ(daemon.Wait(), 0);
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

TEST_P(LeafBranch, OneKernelComputesTheStatisticsOfATensorThatSeveralProbesSeeInARow) {
  if (GetParam() != LaneChoice::kDirect) GTEST_SKIP() << "the callback lane copies";
  ProbeOptions options;
  options.lane = GetParam();
  options.stats = StatsAction{};
  Probe a("a", options), b("b", options), half("half", options), c("c", options);
  TensorRef first_half = Tensor();
  first_half.shape = {kCount / 2};
  const auto count = [&] {
    std::size_t nodes = 0;
    cudaStreamCaptureStatus status;
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(
        cudaStreamGetCaptureInfo(stream_, &status, nullptr, &graph, nullptr, nullptr, nullptr),
        cudaSuccess);
    EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
    return nodes;
  };
  CU(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  CU(cudaMemcpyAsync(device_, host_, kCount * sizeof(float), cudaMemcpyHostToDevice, stream_));
  a.Observe(Tensor(), stream_);
  EXPECT_EQ(count(), 1u + 2u) << "kernel and leaf";
  b.Observe(Tensor(), stream_);
  EXPECT_EQ(count(), 3u + 1u) << "the leaf alone";
  half.Observe(first_half, stream_);
  EXPECT_EQ(count(), 4u + 2u) << "another tensor at the same address";
  c.Observe(Tensor(), stream_);
  EXPECT_EQ(count(), 6u + 1u) << "only probes in between";
  CU(cudaMemsetAsync(device_, 0, sizeof(float), stream_));
  a.Observe(Tensor(), stream_);
  EXPECT_EQ(count(), 7u + 1u + 2u) << "something may have written it";
  CU(cudaStreamEndCapture(stream_, &graph_));
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
    FAIL() << "a conditional body allows no host node, and nobody said whose body it is";
  } catch (const ProbeError& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_THAT(error.what(), HasSubstr("conditional"));
    const bool direct = GetParam() == LaneChoice::kDirect;
    EXPECT_THAT(error.what(),
                HasSubstr(direct ? "ScopedRootGraph" : "The direct lane works there"));
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
