#include "libprobe/torch/observe.h"

#include <pthread.h>

#include <map>
#include <mutex>
#include <unordered_map>

namespace cgdebug::torch_op {
namespace {

thread_local bool last_was_refusal = false;

// Asks Python, which calls cgdebug_tag_set().
using AskForSight = void (*)(std::int64_t tag, const char* path);

// What Python has said of tags. Never destroyed: code may run while the process ends.
struct Tags {
  using ByPath = std::map<std::string, std::shared_ptr<const Sight>, std::less<>>;
  std::mutex mutex;
  std::unordered_map<std::int64_t, ByPath> sights;
  std::unordered_map<const void*, std::int64_t> on_gpu;  // 0: was one
  AskForSight ask = nullptr;
};
Tags& AllTags() {
  static Tags* const tags = [] {
    auto* made = new Tags;
    pthread_atfork([] { AllTags().mutex.lock(); }, [] { AllTags().mutex.unlock(); },
                   [] { AllTags().mutex.unlock(); });
    return made;
  }();
  return *tags;
}

// False if Python has not been asked.
bool FindSight(Tags& tags, std::int64_t tag, std::string_view path,
               std::shared_ptr<const Sight>* sight) {
  const std::lock_guard<std::mutex> lock(tags.mutex);
  const auto place = tags.sights.find(tag);
  if (place == tags.sights.end()) return false;
  const auto found = place->second.find(path);
  if (found == place->second.end()) return false;
  *sight = found->second;
  return true;
}

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

std::shared_ptr<const Sight> SightOf(std::int64_t tag, std::string_view path) {
  Tags& tags = AllTags();
  std::shared_ptr<const Sight> sight;
  if (tag == 0 || FindSight(tags, tag, path, &sight)) return sight;
  // Without the lock: Python's own may be held by a thread that waits for it.
  if (tags.ask != nullptr) tags.ask(tag, std::string(path).c_str());
  (void)FindSight(tags, tag, path, &sight);
  return sight;
}

std::int64_t TagNumber(const void* data, bool is_cuda) {
  if (!is_cuda) return *static_cast<const std::int64_t*>(data);
  Tags& tags = AllTags();
  {
    const std::lock_guard<std::mutex> lock(tags.mutex);
    const auto found = tags.on_gpu.find(data);
    if (found != tags.on_gpu.end()) return found->second;
  }
  CountNotSeen("compiled code", "it passes copies of the tensors that name its places");
  return 0;
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

#define CGDEBUG_FOR_PYTHON extern "C" __attribute__((visibility("default")))

CGDEBUG_FOR_PYTHON void cgdebug_tag_ask(void (*ask)(std::int64_t tag, const char* path)) {
  cgdebug::torch_op::AllTags().ask = ask;
}
// An empty `site`: nobody looks at that tensor.
CGDEBUG_FOR_PYTHON void cgdebug_tag_set(std::int64_t tag, const char* path, const char* site,
                                        const char* shard) {
  using cgdebug::torch_op::Sight;
  auto& tags = cgdebug::torch_op::AllTags();
  std::shared_ptr<const Sight> sight;
  if (*site != '\0') sight = std::make_shared<const Sight>(Sight{site, shard});
  const std::lock_guard<std::mutex> lock(tags.mutex);
  tags.sights[tag][path] = std::move(sight);
}
// The tag's data on a GPU; `tag` 0 when they are gone.
CGDEBUG_FOR_PYTHON void cgdebug_tag_on_gpu(const void* data, std::int64_t tag) {
  auto& tags = cgdebug::torch_op::AllTags();
  const std::lock_guard<std::mutex> lock(tags.mutex);
  tags.on_gpu[data] = tag;
}
CGDEBUG_FOR_PYTHON void cgdebug_tag_forget(std::int64_t tag) {
  auto& tags = cgdebug::torch_op::AllTags();
  const std::lock_guard<std::mutex> lock(tags.mutex);
  tags.sights.erase(tag);
}

// For the Python package: 1 if the last failed call on this thread was the caller's mistake. Asking
// clears it, so that a later exception of torch's own is not taken for one.
CGDEBUG_FOR_PYTHON int cgdebug_op_refused() {
  return std::exchange(cgdebug::torch_op::last_was_refusal, false) ? 1 : 0;
}
