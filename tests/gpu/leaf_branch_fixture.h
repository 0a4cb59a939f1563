// leaf_branch_fixture.h: a stream, a tensor on the GPU, and captures with a probe, in plain CUDA.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cgdebug/probe.h"
#include "libprobe/ring/segment/segment_view.h"

#define CU(call) ASSERT_EQ((call), cudaSuccess) << #call

namespace cgdebug {

class LeafBranch : public ::testing::TestWithParam<LaneChoice> {
 protected:
  static constexpr int kCount = 1024;

  void SetUp() override {
    // These tests play the daemon. A daemon of the machine would read along, and withdraw what they
    // ask for.
    ASSERT_EQ(setenv("CGDEBUG_SOCKET", "/of-no-daemon", 1), 0);
    ASSERT_EQ(setenv("CGDEBUG", "0", 1), 0);  // nor is one awaited
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
  void DestroyGraph() {
    CU(cudaGraphExecDestroy(exec_));
    CU(cudaGraphDestroy(graph_));
    exec_ = nullptr;
    graph_ = nullptr;
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
  // The view of this process's segment. It is never closed: closing a second descriptor of the
  // segment would drop the lock.
  static ring::SegmentView* View() {
    std::string reason;
    static ring::SegmentView* const view =
        ring::SegmentView::Attach(CurrentSession()->name, &reason).release();
    EXPECT_NE(view, nullptr) << reason;
    return view;
  }
  // The ring of the probe's first slot.
  static ring::SlotRingReader RingOf(const Probe& probe) {
    std::string reason;
    const auto ring = View()->OpenSlot(probe.Status().slots.at(0).slot, &reason);
    EXPECT_TRUE(ring) << reason;
    return ring.value();
  }

  cudaStream_t stream_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
  float* device_ = nullptr;
  float* host_ = nullptr;
};

}  // namespace cgdebug
