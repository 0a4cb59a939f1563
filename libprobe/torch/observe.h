// observe.h: what cgdebug::observe and cgdebug::prepare do, whichever way torch calls them.
//
// observe_op.cpp is on torch's stable ABI, so one binary loads into torch 2.10 and later. It
// describes the tensor as a TorchTensor, and everything else is here. No Python anywhere in the op
// library, so one binary serves every Python version.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cgdebug/probe.h"

namespace cgdebug::torch_op {

// `shard` says which part of a distributed tensor x is; empty for others. `site` is
// Probe::site(), a constant for the compiler. The op returns nothing: new torch refuses an output
// that aliases its input.
inline constexpr const char* kObserveSchema = "observe(Tensor x, str site, str shard=\"\") -> ()";
// As observe, of the tensor `path` at the place that `tag` names: an input of compiled code, so
// that layers that are alike can share the code.
inline constexpr const char* kObserveAtSchema =
    "observe_at(Tensor x, Tensor tag, str path=\"\", str shard=\"\") -> ()";
inline constexpr const char* kPrepareSchema = "prepare(Tensor x, str site, str shard=\"\") -> ()";

// Describes a tensor, without the address of its data.
struct TorchTensor {
  Dtype dtype = Dtype::kInvalid;   // kInvalid: cgdebug does not take it
  std::string dtype_name;          // torch's, for messages
  bool is_of_later_torch = false;  // this build has no name for the dtype, which may be complex
  bool is_complex = false;
  bool is_strided = true;  // false: sparse and other layouts
  bool is_contiguous = true;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;  // empty where is_strided is false
  bool is_cuda = false;
  int device_index = 0;
};

// The probe that `site` names; nullptr if it was closed, in which case the call does nothing.
// Fails: throws ProbeError if `site` names no probe.
std::shared_ptr<ProbeState> Lookup(std::string_view site);

// What observe takes, for a tensor at a tagged place.
struct Sight {
  std::string site;
  std::string shard;
};
// nullptr if nobody looks at that tensor. The first call for a tensor of a place asks Python.
std::shared_ptr<const Sight> SightOf(std::int64_t tag, std::string_view path);

// The number of a tag whose data lie at `data`. On a GPU the address itself is the name: reading
// would wait for the GPU. 0: no such tag, which is counted as a call that nobody sees, unless it
// was one.
std::int64_t TagNumber(const void* data, bool is_cuda);

// `x` without its data.
// Fails: throws ProbeError if the probe does not take this tensor; the text says what to pass
//        instead.
TensorRef Describe(const ProbeState& probe, TorchTensor x, std::string_view shard);

// Where a whole tensor would begin of which `data` is this range; all of it if there is none.
const void* BeginOfWhole(const void* data, Dtype dtype, const std::optional<NeededRange>& range);

// Called inside torch.vmap, where torch itself would say that a batching rule is missing.
// Fails: always, unless the probe was closed.
void RefuseBatched(std::string_view site);

// Says for this thread whether its last failed call was the caller's mistake: from torch 2.15 on,
// the dispatcher turns every exception of an op on the stable ABI into a RuntimeError.
void RememberRefusal(bool refused);

// Calls `function`. Errors that the caller can fix become std::invalid_argument, which Python sees
// as ValueError; all others become std::runtime_error.
template <typename Function>
void WithStandardErrors(Function&& function) {
  try {
    std::forward<Function>(function)();
  } catch (const ProbeError& error) {
    const bool refused =
        error.kind() == ErrorKind::kBadArgument || error.kind() == ErrorKind::kUnsupported;
    RememberRefusal(refused);
    if (refused) throw std::invalid_argument(error.what());
    throw std::runtime_error(error.what());
  }
}

}  // namespace cgdebug::torch_op
