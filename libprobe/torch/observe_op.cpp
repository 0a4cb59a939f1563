// observe_op.cpp: cgdebug::observe(Tensor x, str site, str shard) -> (), the only file that knows
// libtorch, and cgdebug::prepare, which allocates for a later observe.
//
// `shard` says which part of a distributed tensor x is, and is empty for others. `site` is "<probe
// id>:<name>": a constant for the compiler, and a lookup without hashing names. The op returns
// nothing: an output that aliases its input is an error in new torch. No Python in here, so one
// binary serves every Python version.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <charconv>
#include <memory>
#include <string>

#include "cgdebug/probe.h"

#ifdef CGDEBUG_TORCH_HAS_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace cgdebug {
namespace {

Dtype FromTorch(at::ScalarType type) {
  switch (type) {
    case at::kBool:
      return Dtype::kBool;
    case at::kByte:
      return Dtype::kUint8;
    case at::kChar:
      return Dtype::kInt8;
    case at::kShort:
      return Dtype::kInt16;
    case at::kInt:
      return Dtype::kInt32;
    case at::kLong:
      return Dtype::kInt64;
    case at::kHalf:
      return Dtype::kFloat16;
    case at::kBFloat16:
      return Dtype::kBfloat16;
    case at::kFloat:
      return Dtype::kFloat32;
    case at::kDouble:
      return Dtype::kFloat64;
    case at::kFloat8_e4m3fn:
      return Dtype::kFloat8E4m3fn;
    case at::kFloat8_e5m2:
      return Dtype::kFloat8E5m2;
    default:
      return Dtype::kInvalid;
  }
}

std::shared_ptr<ProbeState> Lookup(std::string_view site) {
  std::uint64_t id = 0;
  const auto parsed = std::from_chars(site.data(), site.data() + site.size(), id);
  if (parsed.ec != std::errc()) {
    throw Error(ErrorKind::kBadArgument, "cgdebug::observe: '" + std::string(site) +
                                             "' names no probe. Call the probe, not the op");
  }
  return FindProbe(id);  // nullptr once it was closed: the call then does nothing
}

// Errors reach Python as ValueError (the caller can mend it) or RuntimeError. The text is one ready
// string: torch then needs no stream to put it together.
template <typename Function>
void AsTorchErrors(Function&& function) {
  try {
    function();
  } catch (const Error& error) {
    const bool value =
        error.kind() == ErrorKind::kBadArgument || error.kind() == ErrorKind::kUnsupported;
    const std::string text = error.what();
    TORCH_CHECK_VALUE(!value, text);
    TORCH_CHECK(false, text);
  }
}

std::string Text(at::IntArrayRef numbers) {
  std::string text = "[";
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(numbers[i]);
  }
  return text + "]";
}

// Empty when the probe takes this tensor, otherwise what is wrong with it and what to pass instead.
std::string WhyRefused(const ProbeState& probe, const at::Tensor& x, bool contiguous) {
  const std::string name = "probe '" + NameOf(probe) + "': ";
  if (x.layout() != at::kStrided) {
    return name +
           "sparse and other tensors that are not strided are not supported; probe "
           "x.to_dense() or x.values()";
  }
  if (FromTorch(x.scalar_type()) == Dtype::kInvalid) {
    return name + "dtype " + c10::toString(x.scalar_type()) +
           " is not supported (supported: bool, uint8, int8, int16, int32, int64, float16, "
           "bfloat16, float32, float64, float8_e4m3fn, float8_e5m2); probe " +
           (x.is_complex() ? "torch.view_as_real(x)" : "x.to(...)");
  }
  if (!contiguous && !OptionsOf(probe).copy_non_contiguous) {
    return name + "the tensor " + Text(x.sizes()) + " with strides " + Text(x.strides()) +
           " is not contiguous. Pass x.contiguous(), or CudaGraphTensorProbe(..., "
           "non_contiguous=\"copy\")";
  }
  return {};
}

// Everything but where the data lies.
// Fails: throws Error when the probe does not take this tensor.
TensorRef Describe(const ProbeState& probe, const at::Tensor& x, std::string_view shard) {
  const bool contiguous =
      x.layout() == at::kStrided && x.is_contiguous() && !x.is_conj() && !x.is_neg();
  const std::string refused = WhyRefused(probe, x, contiguous);
  if (!refused.empty()) throw Error(ErrorKind::kUnsupported, refused);
  TensorRef tensor;
  tensor.dtype = FromTorch(x.scalar_type());
  tensor.shape = x.sizes().vec();
  tensor.device_type = x.is_cuda() ? DeviceType::kCuda : DeviceType::kCpu;
  tensor.device_index = x.is_cuda() ? x.device().index() : 0;
  tensor.packed_from_strided = !contiguous;
  tensor.shard = shard;
  return tensor;
}

void ObserveTensor(ProbeState& probe, const at::Tensor& x, std::string_view shard, void* stream) {
  TensorRef tensor = Describe(probe, x, shard);
  const at::Tensor dense = tensor.packed_from_strided ? x.contiguous() : x;
  tensor.data = dense.const_data_ptr();
  Observe(probe, tensor, stream);
}

void ObserveCpu(const at::Tensor& x, std::string_view site, std::string_view shard) {
  AsTorchErrors([&] {
    const auto probe = Lookup(site);
    if (probe == nullptr || OptionsOf(*probe).mode == ProbeMode::kCapture) return;
    ObserveTensor(*probe, x, shard, nullptr);
  });
}

#ifdef CGDEBUG_TORCH_HAS_CUDA
void ObserveCuda(const at::Tensor& x, std::string_view site, std::string_view shard) {
  AsTorchErrors([&] {
    const auto probe = Lookup(site);
    if (probe == nullptr) return;
    const c10::DeviceGuard guard(x.device());
    void* stream = c10::cuda::getCurrentCUDAStream(x.device().index()).stream();
    if (OptionsOf(*probe).mode == ProbeMode::kCapture && !IsCapturing(stream)) return;
    ObserveTensor(*probe, x, shard, stream);
  });
}

// Blocks that torch keeps of what the job freed belong to a stream, the default one in most jobs,
// on which their last use may still be queued.
void* AllocateFromTorch(std::uint64_t bytes, int device) noexcept {
  void* memory = nullptr;
  try {
    const auto stream = c10::cuda::getDefaultCUDAStream(static_cast<c10::DeviceIndex>(device));
    memory = c10::cuda::CUDACachingAllocator::raw_alloc_with_stream(bytes, stream.stream());
    stream.synchronize();
    return memory;
  } catch (...) {  // it has none either, or the stream takes part in a capture
    if (memory != nullptr) c10::cuda::CUDACachingAllocator::raw_delete(memory);
    return nullptr;
  }
}
void FreeToTorch(void* memory) noexcept {
  try {
    c10::cuda::CUDACachingAllocator::raw_delete(memory);
  } catch (...) {  // torch no longer knows it: the process ends
  }
}
const bool is_installed = [] {
  SetFallbackAllocator({&AllocateFromTorch, &FreeToTorch});
  return true;
}();
#endif

void PrepareAny(const at::Tensor& x, std::string_view site, std::string_view shard) {
  AsTorchErrors([&] {
    const auto probe = Lookup(site);
    if (probe == nullptr) throw Error(ErrorKind::kClosed, "the probe to prepare is closed");
    Prepare(*probe, Describe(*probe, x, shard));
  });
}

void DoNothing(const at::Tensor&, std::string_view, std::string_view) {}

// Inside torch.vmap, where torch itself would say that a batching rule is missing.
void ObserveBatched(const at::Tensor&, std::string_view site, std::string_view) {
  AsTorchErrors([&] {
    const auto probe = Lookup(site);
    if (probe == nullptr) return;
    throw Error(ErrorKind::kUnsupported,
                "probe '" + NameOf(*probe) +
                    "' is called inside torch.vmap, where a tensor is one of many that do not "
                    "exist by themselves. Probe the whole batch: what goes into the mapped "
                    "function, or what comes out of it");
  });
}

}  // namespace

TORCH_LIBRARY(cgdebug, library) {
  library.def("observe(Tensor x, str site, str shard=\"\") -> ()");
  library.def("prepare(Tensor x, str site, str shard=\"\") -> ()");
}
TORCH_LIBRARY_IMPL(cgdebug, CPU, library) {
  library.impl("observe", &ObserveCpu);
  library.impl("prepare", &PrepareAny);
}
#ifdef CGDEBUG_TORCH_HAS_CUDA
TORCH_LIBRARY_IMPL(cgdebug, CUDA, library) {
  library.impl("observe", &ObserveCuda);
  library.impl("prepare", &PrepareAny);
}
#endif
TORCH_LIBRARY_IMPL(cgdebug, FuncTorchBatched, library) { library.impl("observe", &ObserveBatched); }
TORCH_LIBRARY_IMPL(cgdebug, Meta, library) {
  library.impl("observe", &DoNothing);
  library.impl("prepare", &DoNothing);
}
// A probe is no part of the gradient: autograd has nothing to do for it.
TORCH_LIBRARY_IMPL(cgdebug, Autograd, library) {
  library.impl("observe", torch::CppFunction::makeFallthrough());
  library.impl("prepare", torch::CppFunction::makeFallthrough());
}

}  // namespace cgdebug
