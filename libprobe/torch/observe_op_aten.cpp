// observe_op_aten.cpp: the ops on ATen, for torch before 2.10. A build works only with the torch
// that it was built against.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <string_view>

#include "libprobe/torch/observe.h"

#ifdef CGDEBUG_TORCH_HAS_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace cgdebug::torch_op {
namespace {

TorchTensor Facts(const at::Tensor& x) {
  TorchTensor facts;
  facts.dtype = FromTorch(x.scalar_type());
  facts.dtype_name = c10::toString(x.scalar_type());
  facts.is_complex = x.is_complex();
  facts.is_strided = x.layout() == at::kStrided;
  facts.is_contiguous = facts.is_strided && x.is_contiguous() && !x.is_conj() && !x.is_neg();
  facts.sizes = x.sizes().vec();
  if (facts.is_strided) facts.strides = x.strides().vec();
  facts.is_cuda = x.is_cuda();
  facts.device_index = x.device().index();
  return facts;
}

void ObserveTensor(ProbeState& probe, const at::Tensor& x, std::string_view shard, void* stream) {
  TensorRef tensor = Describe(probe, Facts(x), shard);
  const auto range = tensor.packed_from_strided ? NeededFor(probe, tensor.shape) : std::nullopt;
  at::Tensor dense = x;
  if (range) {
    dense = x.narrow(static_cast<std::int64_t>(range->dimension), range->start, range->length);
  }
  if (tensor.packed_from_strided) dense = dense.contiguous();
  tensor.data = BeginOfWhole(dense.const_data_ptr(), tensor.dtype, range);
  Observe(probe, tensor, stream);
}

void ObserveCpu(const at::Tensor& x, std::string_view site, std::string_view shard) {
  WithStandardErrors([&] {
    const auto probe = Lookup(site);
    if (probe == nullptr || OptionsOf(*probe).mode == ProbeMode::kCapture) return;
    ObserveTensor(*probe, x, shard, nullptr);
  });
}

#ifdef CGDEBUG_TORCH_HAS_CUDA
void ObserveCuda(const at::Tensor& x, std::string_view site, std::string_view shard) {
  WithStandardErrors([&] {
    const auto probe = Lookup(site);
    if (probe == nullptr) return;
    const c10::DeviceGuard guard(x.device());
    void* stream = c10::cuda::getCurrentCUDAStream(x.device().index()).stream();
    if (OptionsOf(*probe).mode == ProbeMode::kCapture && !IsCapturing(stream)) return;
    ObserveTensor(*probe, x, shard, stream);
  });
}

// Torch keeps blocks that the job freed. Each belongs to a stream, in most jobs the default one,
// and its last use may still be queued there.
void* AllocateFromTorch(std::uint64_t bytes, int device) noexcept {
  void* memory = nullptr;
  try {
    const auto stream = c10::cuda::getDefaultCUDAStream(static_cast<c10::DeviceIndex>(device));
    memory = c10::cuda::CUDACachingAllocator::raw_alloc_with_stream(bytes, stream.stream());
    stream.synchronize();
    return memory;
  } catch (...) {  // torch has none either, or the stream takes part in a capture
    if (memory != nullptr) c10::cuda::CUDACachingAllocator::raw_delete(memory);
    return nullptr;
  }
}
void FreeToTorch(void* memory) noexcept {
  try {
    c10::cuda::CUDACachingAllocator::raw_delete(memory);
  } catch (...) {  // torch no longer knows it, because the process ends
  }
}
const bool is_installed = [] {
  SetFallbackAllocator({&AllocateFromTorch, &FreeToTorch});
  return true;
}();
#endif

using OnDevice = void (*)(const at::Tensor& x, std::string_view site, std::string_view shard);

template <OnDevice kObserve>
void ObserveTag(const at::Tensor& x, const at::Tensor& tag, std::string_view path,
                std::string_view shard) {
  const auto sight = SightOf(TagNumber(tag.const_data_ptr(), tag.is_cuda()), path);
  if (sight != nullptr) kObserve(x, sight->site, shard.empty() ? sight->shard : shard);
}

void PrepareAny(const at::Tensor& x, std::string_view site, std::string_view shard) {
  WithStandardErrors([&] {
    const auto probe = Lookup(site);
    if (probe == nullptr) throw ProbeError(ErrorKind::kClosed, "the probe to prepare is closed");
    Prepare(*probe, Describe(*probe, Facts(x), shard));
  });
}

void DoNothing(const at::Tensor&, std::string_view, std::string_view) {}

void DoNothingAt(const at::Tensor&, const at::Tensor&, std::string_view, std::string_view) {}

void ObserveBatched(const at::Tensor&, std::string_view site, std::string_view) {
  WithStandardErrors([&] { RefuseBatched(site); });
}

}  // namespace

TORCH_LIBRARY(cgdebug, library) {
  library.def(kObserveSchema);
  library.def(kObserveAtSchema);
  library.def(kPrepareSchema);
}
TORCH_LIBRARY_IMPL(cgdebug, CPU, library) {
  library.impl("observe", &ObserveCpu);
  library.impl("observe_at", &ObserveTag<&ObserveCpu>);
  library.impl("prepare", &PrepareAny);
}
#ifdef CGDEBUG_TORCH_HAS_CUDA
TORCH_LIBRARY_IMPL(cgdebug, CUDA, library) {
  library.impl("observe", &ObserveCuda);
  library.impl("observe_at", &ObserveTag<&ObserveCuda>);
  library.impl("prepare", &PrepareAny);
}
#endif
TORCH_LIBRARY_IMPL(cgdebug, FuncTorchBatched, library) {
  library.impl("observe", &ObserveBatched);
  library.impl("observe_at", &ObserveTag<&ObserveBatched>);
}
TORCH_LIBRARY_IMPL(cgdebug, Meta, library) {
  library.impl("observe", &DoNothing);
  library.impl("observe_at", &DoNothingAt);
  library.impl("prepare", &DoNothing);
}
}  // namespace cgdebug::torch_op
