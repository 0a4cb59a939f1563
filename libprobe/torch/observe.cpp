#include "libprobe/torch/observe.h"

namespace cgdebug::torch_op {
namespace {

thread_local bool last_was_refusal = false;

std::string Text(const std::vector<std::int64_t>& numbers) {
  std::string text = "[";
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(numbers[i]);
  }
  return text + "]";
}

// Empty if the probe takes this tensor, else what is wrong with it and what to pass instead.
std::string WhyRefused(const ProbeState& probe, const TorchTensor& x) {
  const std::string name = "probe '" + NameOf(probe) + "': ";
  if (!x.is_strided) {
    return name +
           "sparse and other tensors that are not strided are not supported; probe "
           "x.to_dense() or x.values()";
  }
  if (x.dtype == Dtype::kInvalid) {
    return name + "dtype " + x.dtype_name +
           " is not supported (supported: " + layout::DtypeNames() + "); probe " +
           (x.is_complex          ? "torch.view_as_real(x)"
            : x.is_of_later_torch ? "torch.view_as_real(x) if it is complex, else x.to(...)"
                                  : "x.to(...)");
  }
  if (!x.is_contiguous && !OptionsOf(probe).copy_non_contiguous) {
    return name + "the tensor " + Text(x.sizes) + " with strides " + Text(x.strides) +
           " is not contiguous. Pass x.contiguous(), or CudaGraphTensorProbe(..., "
           "non_contiguous=\"copy\")";
  }
  return {};
}

}  // namespace

std::shared_ptr<ProbeState> Lookup(std::string_view site) {
  if (site.find(':') == site.npos) {
    throw ProbeError(ErrorKind::kBadArgument, "cgdebug::observe: '" + std::string(site) +
                                                  "' names no probe. Call the probe, not the op");
  }
  return FindProbe(site);
}

TensorRef Describe(const ProbeState& probe, TorchTensor x, std::string_view shard) {
  const std::string refused = WhyRefused(probe, x);
  if (!refused.empty()) throw ProbeError(ErrorKind::kUnsupported, refused);
  TensorRef tensor;
  tensor.dtype = x.dtype;
  tensor.shape = std::move(x.sizes);
  tensor.device_type = x.is_cuda ? DeviceType::kCuda : DeviceType::kCpu;
  tensor.device_index = x.is_cuda ? x.device_index : 0;
  tensor.packed_from_strided = !x.is_contiguous;
  tensor.shard = shard;
  return tensor;
}

const void* BeginOfWhole(const void* data, Dtype dtype, const std::optional<NeededRange>& range) {
  if (!range) return data;
  const std::uint64_t before = range->elements_before * layout::DtypeBytes(dtype);
  return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(data) - before);
}

void RememberRefusal(bool refused) { last_was_refusal = refused; }

void RefuseBatched(std::string_view site) {
  const auto probe = Lookup(site);
  if (probe == nullptr) return;
  throw ProbeError(
      ErrorKind::kUnsupported,
      "probe '" + NameOf(*probe) +
          "' is called inside torch.vmap, which shows each call a slice that does not "
          "exist in memory by itself. Probe the whole batch: what goes into the mapped "
          "function, or what comes out of it");
}

}  // namespace cgdebug::torch_op

// For the Python package: 1 if the last failed call on this thread was the caller's mistake. Asking
// clears it, so that a later exception of torch's own is not taken for one.
extern "C" __attribute__((visibility("default"))) int cgdebug_op_refused() {
  return std::exchange(cgdebug::torch_op::last_was_refusal, false) ? 1 : 0;
}
