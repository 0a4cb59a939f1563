// Probes in the bodies of conditional nodes: which replay and which iteration a snapshot is of, and
// that a body which did not run is no loss.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cgdebug/probe.h"
#include "tests/gpu/kernels.h"
#include "tests/gpu/leaf_branch_fixture.h"
#include "tests/support/wait_until.h"

namespace cgdebug {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

using Place = std::pair<std::uint64_t, std::uint32_t>;  // replay, iteration

std::vector<Place> Places(const std::vector<Record>& records) {
  std::vector<Place> places;
  for (const Record& record : records) places.emplace_back(record.replay_index, record.iteration);
  return places;
}

class ConditionalBody : public LeafBranch {
 protected:
  void SetUp() override {
    LeafBranch::SetUp();
    CU(cudaStreamCreateWithFlags(&side_, cudaStreamNonBlocking));
    CU(cudaMallocHost(reinterpret_cast<void**>(&left_), sizeof(*left_)));
    *left_ = 0;
  }
  void TearDown() override {
    LeafBranch::TearDown();
    (void)cudaFreeHost(left_);
    (void)cudaStreamDestroy(side_);
  }

  // A conditional node with one body, whose condition is 0 unless a kernel sets it.
  struct Node {
    cudaGraphConditionalHandle handle = 0;
    cudaGraphNode_t node = nullptr;
    cudaGraph_t body = nullptr;
  };
  static cudaGraphConditionalHandle MakeHandle(cudaGraph_t graph) {
    cudaGraphConditionalHandle handle = 0;
    EXPECT_EQ(cudaGraphConditionalHandleCreate(&handle, graph, 0, cudaGraphCondAssignDefault),
              cudaSuccess);
    return handle;
  }
  static Node AddConditional(cudaGraph_t graph, cudaGraphConditionalHandle handle,
                             cudaGraphConditionalNodeType type, const cudaGraphNode_t* after,
                             std::size_t count) {
    cudaGraphNodeParams params = {};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = handle;
    params.conditional.type = type;
    params.conditional.size = 1;
    Node node;
    node.handle = handle;
    EXPECT_EQ(cudaGraphAddNode(&node.node, graph, after, nullptr, count, &params), cudaSuccess);
    node.body = params.conditional.phGraph_out[0];
    return node;
  }
  // Behind what `stream` has captured so far; what it captures later comes behind the node.
  Node AddConditionalTo(cudaStream_t stream, cudaGraphConditionalHandle handle,
                        cudaGraphConditionalNodeType type) {
    cudaStreamCaptureStatus status;
    cudaGraph_t graph = nullptr;
    const cudaGraphNode_t* dependencies = nullptr;
    std::size_t count = 0;
    EXPECT_EQ(
        cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, &dependencies, nullptr, &count),
        cudaSuccess);
    Node node = AddConditional(graph, handle, type, dependencies, count);
    EXPECT_EQ(cudaStreamUpdateCaptureDependencies(stream, &node.node, nullptr, 1,
                                                  cudaStreamSetCaptureDependencies),
              cudaSuccess);
    return node;
  }
  static cudaGraph_t GraphOf(cudaStream_t stream) {
    cudaStreamCaptureStatus status;
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, nullptr, nullptr, nullptr),
              cudaSuccess);
    return graph;
  }
  void CaptureBody(cudaGraph_t body, const std::function<void(cudaStream_t)>& capture) {
    CaptureBodyOn(side_, body, capture);
  }
  static void CaptureBodyOn(cudaStream_t stream, cudaGraph_t body,
                            const std::function<void(cudaStream_t)>& capture) {
    CU(cudaStreamBeginCaptureToGraph(stream, body, nullptr, nullptr, 0,
                                     cudaStreamCaptureModeRelaxed));
    capture(stream);
    CU(cudaStreamEndCapture(stream, &body));
  }

  // host -> device; then, *left_ times: adds 1 to the tensor, and what `in_body` captures. `before`
  // and `after` are captured around it.
  void CaptureWhile(const std::function<void(cudaStream_t)>& in_body,
                    const std::function<void(cudaStream_t)>& before = {},
                    const std::function<void(cudaStream_t)>& after = {}) {
    CU(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
    cudaGraph_t root = GraphOf(stream_);
    const ScopedRootGraph scope(root, stream_);
    CU(cudaMemcpyAsync(device_, host_, kCount * sizeof(float), cudaMemcpyHostToDevice, stream_));
    if (before) before(stream_);
    const cudaGraphConditionalHandle handle = MakeHandle(root);
    CU(test::LaunchEnter(handle, left_, stream_));
    const Node node = AddConditionalTo(stream_, handle, cudaGraphCondTypeWhile);
    CaptureBody(node.body, [&](cudaStream_t stream) {
      ASSERT_EQ(test::LaunchAdd(device_, kCount, 1, stream), cudaSuccess);
      in_body(stream);
      ASSERT_EQ(test::LaunchCountDown(handle, left_, stream), cudaSuccess);
    });
    if (after) after(stream_);
    CU(cudaStreamEndCapture(stream_, &graph_));
    CU(cudaGraphInstantiate(&exec_, graph_, 0));
  }
  void ReplayTimes(unsigned times, float first) {
    Fill(first);
    *left_ = times;
    Replay();
  }

  cudaStream_t side_ = nullptr;
  unsigned* left_ = nullptr;  // pinned: how often the body still runs
};

TEST_P(ConditionalBody, EachIterationOfAWhileDeliversItsOwnValuesUnderTheReplayOfTheGraph) {
  Probe probe("x", Recording(64));
  CaptureWhile([&](cudaStream_t stream) { probe.Observe(Tensor(), stream); });
  ReplayTimes(7, 100);
  ReplayTimes(1, 200);
  ReplayTimes(0, 300);
  ReplayTimes(7, 400);
  const auto records = probe.Records();
  std::vector<Place> expected;
  for (std::uint32_t i = 0; i < 7; ++i) expected.emplace_back(1, i);
  expected.emplace_back(2, 0);
  for (std::uint32_t i = 0; i < 7; ++i) expected.emplace_back(4, i);
  ASSERT_EQ(Places(records), expected);
  for (const Record& record : records) {
    const float first = static_cast<float>(record.replay_index * 100 + record.iteration + 1);
    EXPECT_EQ(Values(record)[0], first) << record.replay_index << " " << record.iteration;
    EXPECT_EQ(Values(record)[kCount - 1], first + kCount - 1);
  }
  const SlotStatus slot = probe.Status().slots.at(0);
  EXPECT_TRUE(slot.in_body);
  EXPECT_EQ(slot.accepted, 15u);
  EXPECT_EQ(slot.taken, 3u);
  EXPECT_EQ(slot.graph_replays, 4u);
  EXPECT_EQ(slot.replays, 4u) << "the newest in which it ran";
  EXPECT_EQ(slot.overwrote_unread, 0u);
}

TEST_P(ConditionalBody, ABodyThatNeverRanHasProducedNothingAndKnowsTheReplays) {
  Probe probe("x", Recording(4));
  CaptureWhile([&](cudaStream_t stream) { probe.Observe(Tensor(), stream); });
  for (int i = 0; i < 5; ++i) ReplayTimes(0, 0);
  EXPECT_THAT(probe.Records(), IsEmpty());
  const SlotStatus slot = probe.Status().slots.at(0);
  EXPECT_EQ(slot.accepted, 0u);
  EXPECT_EQ(slot.taken, 0u);
  EXPECT_EQ(slot.graph_replays, 5u);
}

TEST_P(ConditionalBody, AnIfThatIsTakenEveryThirdReplayOfAGraphMadeByHand) {
  unsigned* replays = nullptr;
  CU(cudaMalloc(reinterpret_cast<void**>(&replays), sizeof(unsigned)));
  CU(cudaMemset(replays, 0, sizeof(unsigned)));
  CU(cudaGraphCreate(&graph_, 0));
  cudaGraphNode_t copy = nullptr;
  CU(cudaGraphAddMemcpyNode1D(&copy, graph_, nullptr, 0, device_, host_, kCount * sizeof(float),
                              cudaMemcpyHostToDevice));
  cudaGraphConditionalHandle handle = MakeHandle(graph_);
  void* arguments[] = {&handle, &replays};
  cudaKernelNodeParams kernel = {};
  kernel.func = test::EnterEveryThirdKernel();
  kernel.gridDim = kernel.blockDim = dim3(1);
  kernel.kernelParams = arguments;
  cudaGraphNode_t enter = nullptr;
  CU(cudaGraphAddKernelNode(&enter, graph_, nullptr, 0, &kernel));
  const cudaGraphNode_t after[] = {copy, enter};
  const Node node = AddConditional(graph_, handle, cudaGraphCondTypeIf, after, 2);
  Probe probe("x", Recording(16));
  {
    const ScopedRootGraph root(graph_);
    CaptureBody(node.body, [&](cudaStream_t stream) { probe.Observe(Tensor(), stream); });
  }
  CU(cudaGraphInstantiate(&exec_, graph_, 0));
  for (int replay = 1; replay <= 9; ++replay) {
    Fill(static_cast<float>(replay));
    Replay();
  }
  const auto records = probe.Records();
  EXPECT_THAT(Places(records), ElementsAre(Pair(3, 0), Pair(6, 0), Pair(9, 0)));
  for (const Record& record : records) {
    EXPECT_EQ(Values(record)[5], static_cast<float>(record.replay_index + 5));
  }
  const SlotStatus slot = probe.Status().slots.at(0);
  EXPECT_EQ(slot.accepted, 3u);
  EXPECT_EQ(slot.taken, 3u);
  EXPECT_EQ(slot.graph_replays, 9u);
  CU(cudaFree(replays));
}

TEST_P(ConditionalBody, SerialsSortWhatLiesBeforeInAndBehindTheBodyAsItRan) {
  Probe before("before", Recording(8)), inside("inside", Recording(64)),
      after("after", Recording(8));
  CaptureWhile([&](cudaStream_t stream) { inside.Observe(Tensor(), stream); },
               [&](cudaStream_t stream) { before.Observe(Tensor(), stream); },
               [&](cudaStream_t stream) { after.Observe(Tensor(), stream); });
  for (const unsigned times : {3u, 0u, 1u, 2u}) ReplayTimes(times, 0);
  std::vector<std::pair<std::uint64_t, int>> order;  // serial, graph order
  const auto add = [&](const Probe& probe, int place) {
    for (const Record& record : probe.Records()) order.emplace_back(record.serial, place);
  };
  add(before, 0);
  add(inside, 1);
  add(after, 2);
  std::sort(order.begin(), order.end());
  std::vector<int> places;
  for (const auto& [serial, place] : order) places.push_back(place);
  EXPECT_THAT(places, ElementsAre(0, 1, 1, 1, 2, 0, 2, 0, 1, 2, 0, 1, 1, 2));
  EXPECT_EQ(before.Records()[0].graph_id, inside.Records()[0].graph_id);
  EXPECT_EQ(before.Records()[1].serial, after.Records()[1].serial) << "the body did not run";
  EXPECT_EQ(Places(after.Records()).size(), 4u);
  EXPECT_EQ(after.Records().back().replay_index, 4u);
}

TEST_P(ConditionalBody, PeriodsCountReplaysAndTakeAllIterations) {
  ProbeOptions options = Recording(64);
  options.record->every = 2;
  Probe probe("x", options);
  CaptureWhile([&](cudaStream_t stream) { probe.Observe(Tensor(), stream); });
  for (int replay = 1; replay <= 4; ++replay) ReplayTimes(2, static_cast<float>(replay * 100));
  const auto records = probe.Records();
  EXPECT_THAT(Places(records), ElementsAre(Pair(1, 0), Pair(1, 1), Pair(3, 0), Pair(3, 1)));
  EXPECT_EQ(Values(records[3])[0], 302.0f) << "the copy on the compute path was made for it";
}

TEST_P(ConditionalBody, WhatIsOverwrittenUnreadAmongIterationsIsCounted) {
  setenv("CGDEBUG", "0", 1);
  setenv("CGDEBUG_WAIT_MS", "0", 1);
  ProbeOptions options = Recording(4);
  options.record->to_disk = true;
  Probe probe("x", options);
  CaptureWhile([&](cudaStream_t stream) { probe.Observe(Tensor(), stream); });
  unsetenv("CGDEBUG_WAIT_MS");
  ReplayTimes(7, 0);
  const SlotStatus slot = probe.Status().slots.at(0);
  EXPECT_EQ(slot.accepted, 7u);
  EXPECT_EQ(slot.overwrote_unread, 3u);
  EXPECT_THAT(Places(probe.Records()), ElementsAre(Pair(1, 3), Pair(1, 4), Pair(1, 5), Pair(1, 6)));
}

TEST_P(ConditionalBody, StatisticsOfEveryIterationAreSent) {
  ProbeOptions options;
  options.lane = GetParam();
  options.stats = StatsAction{};
  Probe probe("x", options);
  CaptureWhile([&](cudaStream_t stream) { probe.Observe(Tensor(), stream); });
  for (const unsigned times : {7u, 0u, 1u}) ReplayTimes(times, 0);
  EXPECT_EQ(probe.Status().slots.at(0).accepted, 8u);
  EXPECT_EQ(probe.Status().slots.at(0).taken, 2u);
}

TEST_P(ConditionalBody, ABodyInABodyCountsItsRunsInTheReplayOfTheOutermostGraph) {
  cudaStream_t inner_stream = nullptr;
  CU(cudaStreamCreateWithFlags(&inner_stream, cudaStreamNonBlocking));
  unsigned* outer_left = nullptr;
  CU(cudaMallocHost(reinterpret_cast<void**>(&outer_left), sizeof(unsigned)));
  CU(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
  cudaGraph_t root = GraphOf(stream_);
  Probe probe("x", Recording(16));
  {
    const ScopedRootGraph scope(root, stream_);
    CU(cudaMemcpyAsync(device_, host_, kCount * sizeof(float), cudaMemcpyHostToDevice, stream_));
    const cudaGraphConditionalHandle outer_handle = MakeHandle(root);
    const cudaGraphConditionalHandle inner_handle = MakeHandle(root);
    CU(test::LaunchEnter(outer_handle, outer_left, stream_));
    const Node outer = AddConditionalTo(stream_, outer_handle, cudaGraphCondTypeWhile);
    CaptureBody(outer.body, [&](cudaStream_t stream) {
      ASSERT_EQ(test::LaunchEnter(inner_handle, left_, stream), cudaSuccess);
      const Node inner = AddConditionalTo(stream, inner_handle, cudaGraphCondTypeWhile);
      CaptureBodyOn(inner_stream, inner.body, [&](cudaStream_t innermost) {
        ASSERT_EQ(test::LaunchAdd(device_, kCount, 1, innermost), cudaSuccess);
        probe.Observe(Tensor(), innermost);
        ASSERT_EQ(test::LaunchCountDown(inner_handle, left_, innermost), cudaSuccess);
      });
      ASSERT_EQ(test::LaunchCountDown(outer_handle, outer_left, stream), cudaSuccess);
    });
    CU(cudaStreamEndCapture(stream_, &graph_));
  }
  CU(cudaGraphInstantiate(&exec_, graph_, 0));
  for (int replay = 1; replay <= 2; ++replay) {
    *outer_left = 2;  // in the second run of the outer body nothing is left for the inner one
    ReplayTimes(3, static_cast<float>(replay * 100));
  }
  const auto records = probe.Records();
  EXPECT_THAT(Places(records),
              ElementsAre(Pair(1, 0), Pair(1, 1), Pair(1, 2), Pair(2, 0), Pair(2, 1), Pair(2, 2)));
  EXPECT_EQ(Values(records[5])[0], 203.0f);
  CU(cudaFreeHost(outer_left));
  CU(cudaStreamDestroy(inner_stream));
}

TEST_P(ConditionalBody, TwoBodiesOfOneGraphShareItsReplaysAndTheirCallsAreToldApart) {
  Probe probe("x", Recording(16));
  CU(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
  cudaGraph_t root = GraphOf(stream_);
  {
    const ScopedRootGraph scope(root, stream_);
    for (int body = 0; body < 2; ++body) {
      const cudaGraphConditionalHandle handle = MakeHandle(root);
      CU(test::LaunchEnter(handle, left_, stream_));
      const Node node = AddConditionalTo(stream_, handle, cudaGraphCondTypeIf);
      CaptureBody(node.body, [&](cudaStream_t stream) { probe.Observe(Tensor(), stream); });
    }
    CU(cudaStreamEndCapture(stream_, &graph_));
  }
  CU(cudaGraphInstantiate(&exec_, graph_, 0));
  ReplayTimes(0, 0);
  ReplayTimes(1, 0);
  const auto records = probe.Records();
  ASSERT_THAT(Places(records), ElementsAre(Pair(2, 0), Pair(2, 0)));
  EXPECT_NE(records[0].invocation_index, records[1].invocation_index);
  EXPECT_EQ(records[0].graph_id, records[1].graph_id);
}

TEST_P(ConditionalBody, ASlotInABodyDiesWithItsGraphAndMemoryStaysFlat) {
  Probe probe("x", Recording(2));
  std::size_t free_before = 0;
  std::size_t total = 0;
  for (int i = 0; i < 150; ++i) {
    CaptureWhile([&](cudaStream_t stream) { probe.Observe(Tensor(), stream); });
    ReplayTimes(1, static_cast<float>(i));
    CU(cudaGraphExecDestroy(std::exchange(exec_, nullptr)));
    CU(cudaGraphDestroy(std::exchange(graph_, nullptr)));
    ASSERT_TRUE(test::WaitUntil([&] { return probe.Status().slots.size() <= 65; }));
    if (i == 80) CU(cudaMemGetInfo(&free_before, &total));
  }
  std::size_t free_after = 0;
  CU(cudaMemGetInfo(&free_after, &total));
  EXPECT_GE(free_after + (8u << 20), free_before);
  EXPECT_TRUE(test::WaitUntil([&] { return probe.Status().slots.back().retired; }));
  const auto last = probe.Records(1);
  ASSERT_THAT(last, ::testing::Not(IsEmpty()));
  EXPECT_EQ(Values(last.back())[0], 150.0f);
}

TEST_P(ConditionalBody, TheExecGoesOnWhenTheGraphItWasMadeFromIsDestroyed) {
  Probe probe("x", Recording(8));
  CaptureWhile([&](cudaStream_t stream) { probe.Observe(Tensor(), stream); });
  CU(cudaGraphDestroy(std::exchange(graph_, nullptr)));
  ReplayTimes(2, 0);
  ReplayTimes(1, 0);
  EXPECT_THAT(Places(probe.Records()), ElementsAre(Pair(1, 0), Pair(1, 1), Pair(2, 0)));
}

TEST_P(ConditionalBody, AClosedProbeLeavesItsBodyReplayable) {
  auto probe = std::make_unique<Probe>("x", Recording(2));
  CaptureWhile([&](cudaStream_t stream) { probe->Observe(Tensor(), stream); });
  ReplayTimes(3, 0);
  probe.reset();
  for (int i = 0; i < 10; ++i) ReplayTimes(2, 0);
}

TEST_P(ConditionalBody, WithoutItsRootGraphTheBodyIsRefusedAndTheMessageSaysWhatToDo) {
  CU(cudaGraphCreate(&graph_, 0));
  const Node node = AddConditional(graph_, MakeHandle(graph_), cudaGraphCondTypeIf, nullptr, 0);
  Probe probe("x", Recording(2));
  CaptureBody(node.body, [&](cudaStream_t stream) {
    try {
      probe.Observe(Tensor(), stream);
      FAIL() << "nobody said which graph it is";
    } catch (const ProbeError& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      EXPECT_THAT(error.what(), HasSubstr("ScopedRootGraph"));
    }
    const ScopedRootGraph root(graph_);
    probe.Observe(Tensor(), stream);  // once it is said, the same capture goes on
  });
  CU(cudaGraphInstantiate(&exec_, graph_, 0));
  Replay();
  EXPECT_EQ(probe.Status().slots.at(0).graph_replays, 1u);
}

INSTANTIATE_TEST_SUITE_P(Lanes, ConditionalBody, ::testing::Values(LaneChoice::kDirect),
                         [](const auto&) { return "Direct"; });

}  // namespace
}  // namespace cgdebug
