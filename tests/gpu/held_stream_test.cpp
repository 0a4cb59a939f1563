// Eager calls on a stream that waits for something that the calling thread does only later.
#include <cuda.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <new>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "cgdebug/probe.h"
#include "libprobe/capture/driver_function.h"
#include "tests/gpu/leaf_branch_fixture.h"

namespace cgdebug {
namespace {

using ::testing::SizeIs;

enum class Hold { kHostFunction, kWaitValue };

// Holds a stream until Release(). A call that waits for the stream would hang, so after `patience`
// a thread releases it as well, and ran_out() tells.
class HeldStream {
 public:
  HeldStream(cudaStream_t stream, Hold hold) {
    CGD_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&word_), sizeof(*word_),
                           cudaHostAllocPortable | cudaHostAllocMapped));
    new (word_) std::atomic<std::uint32_t>(0);
    if (hold == Hold::kHostFunction) {
      CGD_CUDA(cudaLaunchHostFunc(
          stream,
          [](void* word) {
            static_cast<std::atomic<std::uint32_t>*>(word)->wait(0, std::memory_order_acquire);
          },
          word_));
    } else {
      using WaitValue32 = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);
      const auto wait =
          reinterpret_cast<WaitValue32>(capture::DriverFunction("cuStreamWaitValue32", 12000));
      EXPECT_EQ(wait(stream, reinterpret_cast<CUdeviceptr>(word_), 1, CU_STREAM_WAIT_VALUE_GEQ),
                CUDA_SUCCESS);
    }
    watchdog_ = std::thread([this] {
      std::unique_lock lock(mutex_);
      const auto patience = std::chrono::seconds(20);
      if (released_changed_.wait_for(lock, patience, [this] { return released_; })) return;
      ran_out_ = true;
      Let();
    });
  }
  ~HeldStream() {
    Release();
    watchdog_.join();
    (void)cudaFreeHost(word_);
  }
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;

  void Release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    released_changed_.notify_all();
    Let();
  }
  bool ran_out() {
    const std::lock_guard lock(mutex_);
    return ran_out_;
  }

 private:
  void Let() {
    word_->store(1, std::memory_order_release);
    word_->notify_all();
  }

  std::atomic<std::uint32_t>* word_ = nullptr;  // pinned
  std::mutex mutex_;
  std::condition_variable released_changed_;
  bool released_ = false;
  bool ran_out_ = false;
  std::thread watchdog_;
};

class HeldStreamTest : public ::testing::TestWithParam<Hold> {
 protected:
  static constexpr int kCount = 1 << 18;  // 1 MiB

  void SetUp() override {
    CU(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CU(cudaMalloc(reinterpret_cast<void**>(&device_), kCount * sizeof(float)));
    std::vector<float> values(kCount);
    std::iota(values.begin(), values.end(), 0.0f);
    CU(cudaMemcpy(device_, values.data(), kCount * sizeof(float), cudaMemcpyHostToDevice));
  }
  void TearDown() override {
    (void)cudaStreamSynchronize(stream_);
    (void)cudaFree(device_);
    (void)cudaStreamDestroy(stream_);
  }
  TensorRef Tensor(std::int64_t count) const {
    TensorRef tensor;
    tensor.data = device_;
    tensor.dtype = Dtype::kFloat32;
    tensor.shape = {count};
    return tensor;
  }
  static ProbeOptions Always() {
    ProbeOptions options;
    options.mode = ProbeMode::kAlways;
    options.record = RecordAction{4, 1};
    return options;
  }
  static float Last(const Record& record) {
    float value = 0;
    std::memcpy(&value, record.payload.data() + record.payload.size() - sizeof(value),
                sizeof(value));
    return value;
  }

  cudaStream_t stream_ = nullptr;
  float* device_ = nullptr;
};

TEST_P(HeldStreamTest, ANewShapeDoesNotWaitForTheStream) {
  Probe probe("held", Always()), other("other", Always());
  probe.Observe(Tensor(256), stream_);
  CU(cudaStreamSynchronize(stream_));
  {
    HeldStream held(stream_, GetParam());
    for (const std::int64_t count : {1024, 4096, kCount}) probe.Observe(Tensor(count), stream_);
    std::thread beside([&] {
      other.Observe(Tensor(512), stream_);
      EXPECT_EQ(probe.Status().slots.size(), 4u);
    });
    beside.join();
    EXPECT_FALSE(held.ran_out()) << "a call waited for the stream that waits for its caller";
    EXPECT_THAT(probe.Records(), SizeIs(1)) << "the stream was not held";
  }
  CU(cudaStreamSynchronize(stream_));
  const std::vector<Record> records = probe.Records();
  ASSERT_THAT(records, SizeIs(4));
  for (const Record& record : records) {
    EXPECT_EQ(Last(record), static_cast<float>(record.payload.size() / sizeof(float) - 1));
  }
  EXPECT_THAT(other.Records(), SizeIs(1));
}

TEST_P(HeldStreamTest, AsManyShapesAsCudaQueuesDoNotWaitForTheStream) {
  Probe probe("held", Always());
  probe.Observe(Tensor(256), stream_);
  CU(cudaStreamSynchronize(stream_));
  HeldStream held(stream_, GetParam());
  // Behind a stream that stands still CUDA queues 56 copies to the host that are each followed by a
  // host function, as an eager call makes them (H200, driver 580). The next one waits in CUDA.
  for (std::int64_t count = 1; count <= 50; ++count) {
    probe.Observe(Tensor(count), stream_);
    ASSERT_FALSE(held.ran_out()) << "call " << count << " waited for the stream";
  }
}

INSTANTIATE_TEST_SUITE_P(Holds, HeldStreamTest,
                         ::testing::Values(Hold::kHostFunction, Hold::kWaitValue),
                         [](const auto& info) {
                           return info.param == Hold::kWaitValue ? "WaitValue" : "HostFunction";
                         });

}  // namespace
}  // namespace cgdebug
