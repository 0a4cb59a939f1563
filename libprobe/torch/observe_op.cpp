// observe_op.cpp: the ops on torch's stable ABI: one binary for torch 2.10 and every later one,
// with CUDA and without.
//
// Source: docs.pytorch.org/docs/stable/notes/libtorch_stable_abi.html. Headers of a newer torch
// restrict themselves to what TORCH_TARGET_VERSION has.
#include <dlfcn.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>

#include "libprobe/torch/observe.h"

namespace cgdebug::torch_op {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Fails: throws std::runtime_error naming the call; torch has logged why.
void Check(AOTITorchError status, const char* call) {
  if (status == AOTI_TORCH_SUCCESS) return;
  throw std::runtime_error(std::string("cgdebug::observe: torch's ") + call + " failed");
}

// An argument of type str, which belongs to the op. Torch's headers would make a std::string of it,
// but some versions leak one in each call (pytorch#191340).
class StringArgument {
 public:
  explicit StringArgument(StringHandle handle) : handle_(handle) {}
  ~StringArgument() { (void)torch_delete_string(handle_); }
  StringArgument(const StringArgument&) = delete;
  StringArgument& operator=(const StringArgument&) = delete;

  std::string_view view() const {
    const char* data = nullptr;
    std::size_t length = 0;
    Check(torch_string_c_str(handle_, &data), "torch_string_c_str");
    Check(torch_string_length(handle_, &length), "torch_string_length");
    return {data, length};
  }

 private:
  StringHandle handle_;
};

// cgdebug's type for torch's; kInvalid if cgdebug does not take it.
Dtype FromTorch(ScalarType type) {
  switch (type) {
#define CGDEBUG_FROM_TORCH(name, number, torch, ...) \
  case ScalarType::torch:                            \
    return Dtype::k##name;
    CGDEBUG_DTYPES(CGDEBUG_FROM_TORCH)
#undef CGDEBUG_FROM_TORCH
    default:
      return Dtype::kInvalid;
  }
}

TorchTensor Facts(const Tensor& x) {
  TorchTensor facts;
  std::int32_t type = 0;
  std::int32_t layout = 0;
  Check(aoti_torch_get_dtype(x.get(), &type), "aoti_torch_get_dtype");
  Check(aoti_torch_get_layout(x.get(), &layout), "aoti_torch_get_layout");
  // A type that this build's headers do not know yet is a mere number here, and is refused.
  const auto scalar = static_cast<ScalarType>(type);
  facts.dtype = FromTorch(scalar);
  facts.dtype_name = torch::headeronly::toString(scalar);
  facts.is_of_later_torch = facts.dtype_name == "UNKNOWN_SCALAR";
  if (facts.is_of_later_torch)
    facts.dtype_name = "number " + std::to_string(type) + " of this torch";
  facts.is_complex = type == aoti_torch_dtype_complex32() || type == aoti_torch_dtype_complex64() ||
                     type == aoti_torch_dtype_complex128();
  facts.is_strided = layout == aoti_torch_layout_strided();
  facts.is_contiguous = facts.is_strided && x.is_contiguous();
  const auto sizes = x.sizes();
  facts.sizes.assign(sizes.begin(), sizes.end());
  if (facts.is_strided) {
    const auto strides = x.strides();
    facts.strides.assign(strides.begin(), strides.end());
  }
  facts.is_cuda = x.is_cuda();
  facts.device_index = x.get_device_index();
  return facts;
}

// What the op is told beside the tensor.
struct Observed {
  std::string_view site;
  std::string_view shard;
  bool is_compiled = false;  // torch.compile made the code that calls it
};

// A tensor with the conjugate or the negative bit never comes here: torch's fallbacks for these
// bits resolve it first.
void ObserveTensor(ProbeState& probe, const Tensor& x, const Observed& what, void* stream) {
  TensorRef tensor = Describe(probe, Facts(x), what.shard);
  tensor.from_compiled_code = what.is_compiled;
  const auto range = tensor.packed_from_strided ? NeededFor(probe, tensor.shape) : std::nullopt;
  Tensor dense = x;
  if (range) {
    dense = torch::stable::narrow(dense, static_cast<std::int64_t>(range->dimension), range->start,
                                  range->length);
  }
  if (tensor.packed_from_strided) dense = torch::stable::contiguous(dense);
  tensor.data = BeginOfWhole(dense.const_data_ptr(), tensor.dtype, range);
  Observe(probe, tensor, stream);
}

void ObserveOnCpu(const Tensor& x, const Observed& what) {
  WithStandardErrors([&] {
    const auto probe = Lookup(what.site);
    if (probe == nullptr || OptionsOf(*probe).mode == ProbeMode::kCapture) return;
    ObserveTensor(*probe, x, what, nullptr);
  });
}

// What only a torch with CUDA has. Looked up instead of linked, so that this library loads into a
// torch without CUDA too.
struct CudaTorch {
  using Guard = struct CUDAStreamGuardOpaque*;
  AOTITorchError (*get_current_stream)(std::int32_t device, void** stream) = nullptr;
  AOTITorchError (*create_stream_guard)(void* stream, std::int32_t device, Guard*) = nullptr;
  AOTITorchError (*delete_stream_guard)(Guard) = nullptr;
  AOTITorchError (*raw_alloc)(std::uint64_t bytes, void** memory) = nullptr;
  AOTITorchError (*raw_delete)(void* memory) = nullptr;
  AOTITorchError (*synchronize)(void* stream, std::int32_t device) = nullptr;
};

// Null if this torch has no CUDA, or lacks one of the functions.
const CudaTorch* Cuda() {
  static const std::optional<CudaTorch> cuda = []() -> std::optional<CudaTorch> {
    // Not loaded here: a tensor on a GPU means that torch has loaded it.
    void* const library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) return std::nullopt;
    CudaTorch found;
    bool complete = true;
    const auto find = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      complete = complete && function != nullptr;
    };
    find(found.get_current_stream, "aoti_torch_get_current_cuda_stream");
    find(found.create_stream_guard, "aoti_torch_create_cuda_stream_guard");
    find(found.delete_stream_guard, "aoti_torch_delete_cuda_stream_guard");
    find(found.raw_alloc, "aoti_torch_cuda_caching_allocator_raw_alloc");
    find(found.raw_delete, "aoti_torch_cuda_caching_allocator_raw_delete");
    find(found.synchronize, "torch_cuda_stream_synchronize");
    if (!complete) return std::nullopt;
    return found;
  }();
  return cuda ? &*cuda : nullptr;
}

// Torch keeps blocks that the job freed. Each belongs to a stream, in most jobs the default one,
// and its last use may still be queued there.
void* AllocateFromTorch(std::uint64_t bytes, int device) noexcept {
  const CudaTorch* const cuda = Cuda();
  CudaTorch::Guard guard = nullptr;
  void* const default_stream = nullptr;
  if (cuda == nullptr || cuda->create_stream_guard(default_stream, device, &guard) != 0) {
    return nullptr;
  }
  void* memory = nullptr;
  if (cuda->raw_alloc(bytes, &memory) != AOTI_TORCH_SUCCESS) {
    memory = nullptr;  // torch has none either
  } else if (cuda->synchronize(default_stream, device) != AOTI_TORCH_SUCCESS) {
    (void)cuda->raw_delete(memory);  // the stream takes part in a capture
    memory = nullptr;
  }
  (void)cuda->delete_stream_guard(guard);
  return memory;
}
void FreeToTorch(void* memory) noexcept {
  const CudaTorch* const cuda = Cuda();
  if (cuda != nullptr)
    (void)cuda->raw_delete(memory);  // fails when the process ends: torch is gone
}

void ObserveOnCuda(const Tensor& x, const Observed& what) {
  WithStandardErrors([&] {
    const auto probe = Lookup(what.site);
    if (probe == nullptr) return;
    const CudaTorch* const cuda = Cuda();
    if (cuda == nullptr) {
      throw ProbeError(
          ErrorKind::kSystem,
          "cgdebug::observe: this torch's libtorch_cuda.so lacks functions of its stable ABI. "
          "cgdebug needs torch 2.10 or later, or a build from source for this torch");
    }
    static const bool is_installed = [] {
      SetFallbackAllocator({&AllocateFromTorch, &FreeToTorch});
      return true;
    }();
    (void)is_installed;
    const int device = x.get_device_index();
    const torch::stable::accelerator::DeviceGuard guard(device);
    void* stream = nullptr;
    Check(cuda->get_current_stream(device, &stream), "aoti_torch_get_current_cuda_stream");
    if (OptionsOf(*probe).mode == ProbeMode::kCapture && !IsCapturing(stream)) return;
    ObserveTensor(*probe, x, what, stream);
  });
}

using OnDevice = void (*)(const Tensor& x, const Observed& what);

template <OnDevice kObserve>
void ObserveSite(const Tensor& x, StringHandle site_text, StringHandle shard_text) {
  const StringArgument site(site_text), shard(shard_text);
  kObserve(x, {.site = site.view(), .shard = shard.view()});
}

template <OnDevice kObserve>
void ObserveTag(const Tensor& x, const Tensor& tag, StringHandle path_text,
                StringHandle shard_text) {
  const StringArgument path(path_text), shard(shard_text);
  const auto sight = SightOf(TagNumber(tag.const_data_ptr(), tag.is_cuda()), path.view());
  if (sight == nullptr) return;
  kObserve(x, {.site = sight->site,
               .shard = shard.view().empty() ? std::string_view(sight->shard) : shard.view(),
               .is_compiled = true});
}

void PrepareAny(const Tensor& x, StringHandle site_text, StringHandle shard_text) {
  const StringArgument site(site_text), shard(shard_text);
  WithStandardErrors([&] {
    const auto probe = Lookup(site.view());
    if (probe == nullptr) throw ProbeError(ErrorKind::kClosed, "the probe to prepare is closed");
    Prepare(*probe, Describe(*probe, Facts(x), shard.view()));
  });
}

void DoNothing(const Tensor&, StringHandle site_text, StringHandle shard_text) {
  const StringArgument site(site_text), shard(shard_text);
}

void ObserveBatched(const Tensor&, const Observed& what) {
  WithStandardErrors([&] { RefuseBatched(what.site); });
}

void DoNothingAt(const Tensor&, const Tensor&, StringHandle path_text, StringHandle shard_text) {
  const StringArgument path(path_text), shard(shard_text);
}

}  // namespace

STABLE_TORCH_LIBRARY(cgdebug, library) {
  library.def(kObserveSchema);
  library.def(kObserveAtSchema);
  library.def(kPrepareSchema);
}
STABLE_TORCH_LIBRARY_IMPL(cgdebug, CPU, library) {
  library.impl("observe", TORCH_BOX(&ObserveSite<&ObserveOnCpu>));
  library.impl("observe_at", TORCH_BOX(&ObserveTag<&ObserveOnCpu>));
  library.impl("prepare", TORCH_BOX(&PrepareAny));
}
STABLE_TORCH_LIBRARY_IMPL(cgdebug, CUDA, library) {
  library.impl("observe", TORCH_BOX(&ObserveSite<&ObserveOnCuda>));
  library.impl("observe_at", TORCH_BOX(&ObserveTag<&ObserveOnCuda>));
  library.impl("prepare", TORCH_BOX(&PrepareAny));
}
STABLE_TORCH_LIBRARY_IMPL(cgdebug, FuncTorchBatched, library) {
  // Not observe_at: code that torch.compile makes names its probes there (_tags.needs_name),
  // because a tag has no value while it is traced.
  library.impl("observe", TORCH_BOX(&ObserveSite<&ObserveBatched>));
}
STABLE_TORCH_LIBRARY_IMPL(cgdebug, Meta, library) {
  library.impl("observe", TORCH_BOX(&DoNothing));
  library.impl("observe_at", TORCH_BOX(&DoNothingAt));
  library.impl("prepare", TORCH_BOX(&DoNothing));
}

}  // namespace cgdebug::torch_op
