// What a probe would cost if it were written the obvious way: peers for leaf_cost.py, in one run.
// Each function adds one probe of its kind to the capture of `stream`.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

void Check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(status));
  std::abort();
}
#define CU(call) Check((call), #call)

struct Copy {
  void* to;
  void* from;
  std::size_t bytes;
  void* device;
};
std::vector<Copy*> copies;

void CUDART_CB Nothing(void*) {}
void CUDART_CB CopyOut(void* data) {
  const auto* copy = static_cast<Copy*>(data);
  std::memcpy(copy->to, copy->from, copy->bytes);
}

Copy* NewCopy(std::size_t bytes) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  CU(cudaThreadExchangeStreamCaptureMode(&mode));
  auto* copy = new Copy{std::malloc(bytes), nullptr, bytes, nullptr};
  std::memset(copy->to, 1, bytes);
  CU(cudaMallocHost(&copy->from, bytes));
  CU(cudaMalloc(&copy->device, bytes));
  CU(cudaThreadExchangeStreamCaptureMode(&mode));
  copies.push_back(copy);
  return copy;
}

}  // namespace

extern "C" {

void peer_inline_d2d(const void* data, std::size_t bytes, void* stream) {
  CU(cudaMemcpyAsync(NewCopy(bytes)->device, data, bytes, cudaMemcpyDeviceToDevice,
                     static_cast<cudaStream_t>(stream)));
}

void peer_inline_empty_callback(const void* data, std::size_t bytes, void* stream) {
  auto* s = static_cast<cudaStream_t>(stream);
  CU(cudaMemcpyAsync(NewCopy(bytes)->from, data, bytes, cudaMemcpyDeviceToHost, s));
  CU(cudaLaunchHostFunc(s, Nothing, nullptr));
}

void peer_inline_copying_callback(const void* data, std::size_t bytes, void* stream) {
  auto* s = static_cast<cudaStream_t>(stream);
  Copy* copy = NewCopy(bytes);
  CU(cudaMemcpyAsync(copy->from, data, bytes, cudaMemcpyDeviceToHost, s));
  CU(cudaLaunchHostFunc(s, CopyOut, copy));
}

// Requires: every graph that uses them is gone.
void peer_free() {
  CU(cudaDeviceSynchronize());
  for (Copy* copy : copies) {
    CU(cudaFree(copy->device));
    CU(cudaFreeHost(copy->from));
    std::free(copy->to);
    delete copy;
  }
  copies.clear();
}
}
