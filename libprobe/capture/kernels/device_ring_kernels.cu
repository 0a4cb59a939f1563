// The kernels of rings in device memory. The labels V1 to V4 are those of ring_layout.h, T1 and T2
// those of segment_layout.h.
//
// Why grids may overlap here: a leaf may start before the leaf in front of it has ended, and waits
// for it only at its own end. Both are leaves of the same replay and of different slots, and a
// replay begins when all of the one before it has ended. So of what a leaf reads and writes before
// it waits
//   - the slot's state, parts and ring belong to its own staging kernel, which an ordinary edge
//     puts in front of it, and to the leaf of the replay before;
//   - its block in shared memory belongs to this leaf alone, apart from what the daemon writes. The
//     daemon may write at any time, so it does not matter when that is read;
//   - the serial of the replay and the DirectGate belong to all leaves of the capture and of the
//     device. They are changed by atomic operations only, and any order of the leaves will do: the
//     leaf that comes first takes the serial or stops the rings, the others find that it is done.
// A staging kernel waits before it reads anything.
#include "libprobe/capture/kernels/device_ring_kernels.h"
#include "libprobe/capture/kernels/direct_leaf.cuh"
#include "libprobe/capture/kernels/element_types.cuh"
#include "libprobe/capture/kernels/tensor_core_sums.cuh"

namespace cgdebug::capture {
namespace {

__device__ std::uint64_t LoadDevice(const std::uint64_t& word) {
  return *const_cast<const volatile std::uint64_t*>(&word);
}

// What a staging kernel must know, loaded at once. Through the first-level cache: past it,
// thousands of warps would queue for these two lines. Nothing is missed, because what an earlier
// replay left is there, and a freeze that begins meanwhile may be seen or not.
struct StageWords {
  std::uint32_t skip;
  std::uint32_t computes;
  std::uint64_t ring_index;
  std::uint64_t frozen_at;
};

__device__ StageWords ReadStageWords(const DeviceStageArgs& args) {
  return {args.state->next.skip, args.state->next.computes, args.state->ring.index,
          args.gate->frozen_at};
}

// Whether this replay is later than the one at which the rings stopped. It is not if the leaves of
// this capture have that replay's serial and this slot's own leaf has not run in it yet.
__device__ bool IsFrozen(const DeviceStageArgs& args, const StageWords& words) {
  if (words.frozen_at == 0) return false;
  __threadfence();  // the leaf that set it had the capture's serial before
  return LoadDevice(*args.shared_serial) != words.frozen_at ||
         args.state->last_serial == words.frozen_at;
}

// If the blocks disagree because a freeze begins meanwhile, the leaf sees that one left it out.
template <typename Unit>
__global__ void __launch_bounds__(kStageThreads) DeviceStage(DeviceStageArgs args) {
  WaitForGridsBefore();
  const auto* from = reinterpret_cast<const Unit*>(args.from);
  const std::uint64_t count = args.bytes / sizeof(Unit);
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  Unit ahead = {};  // as in Stage
  if (i < count) ahead = from[i];
  const StageWords words = ReadStageWords(args);
  if (words.skip != 0) return;
  if (IsFrozen(args, words)) {
    if (threadIdx.x == 0) args.state->ring.frozen = 1;
    return;
  }
  auto* to = reinterpret_cast<Unit*>(args.ring.entries + words.ring_index * args.ring.stride_bytes);
  if (i < count) to[i] = ahead;
#pragma unroll 4
  for (i += stride; i < count; i += stride) to[i] = from[i];
}

template <typename Unit>
__global__ void __launch_bounds__(kStageThreads) DeviceGather(DeviceStageArgs args) {
  WaitForGridsBefore();
  const StageWords words = ReadStageWords(args);
  if (words.skip != 0) return;
  if (IsFrozen(args, words)) {
    if (threadIdx.x == 0) args.state->ring.frozen = 1;
    return;
  }
  const auto* from = reinterpret_cast<const Unit*>(args.from);
  auto* to = reinterpret_cast<Unit*>(args.ring.entries + words.ring_index * args.ring.stride_bytes);
  const std::uint64_t count = args.bytes / sizeof(Unit);
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
#pragma unroll 4
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    to[i] = from[i * args.from_stride];
  }
}

// Stages the tensor. If statistics are wanted, computes this thread's part and returns true.
template <typename Ahead, typename Type>
__device__ bool StageAndComputePart(const DeviceStatsArgs& args, Part<Type>* part) {
  const std::uint64_t start = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  const DeviceStageArgs& stage = args.stage;
  WaitForGridsBefore();
  Ahead ahead(Span<typename Type::Raw>(stage.from, args.count), start, stride);  // as in Stage
  *part = Part<Type>(ShiftOf<Type>(stage.from, args.count));
  const StageWords words = ReadStageWords(stage);
  if (words.skip != 0) return false;
  if (__syncthreads_or(IsFrozen(stage, words))) {  // a block adds up its parts together
    if (threadIdx.x == 0) stage.state->ring.frozen = 1;
    return false;
  }
  std::byte* const to = stage.ring.entries + words.ring_index * stage.ring.stride_bytes;
  return AddOrPass(ahead, CopyTo{stage.from, to}, args.always || words.computes != 0, part);
}

template <typename Type>
__global__ void __launch_bounds__(kStatsThreads, kStatsBlocksPerMultiprocessor)
    DeviceStatsStage(DeviceStatsArgs args) {
  Part<Type> part(0);
  if (!StageAndComputePart<ThreadVectors<Type>>(args, &part)) return;
  const unsigned warp = (blockIdx.x * kStatsThreads + threadIdx.x) / 32;
  StoreWarpSumAtOnce(part, args.count, args.parts + warp);
}

__global__ void __launch_bounds__(kStatsThreads, kTensorCoreBlocksPerMultiprocessor)
    DeviceTensorCoreStatsStage(DeviceStatsArgs args) {
  __shared__ LanesOfBlock<kStatsThreads> lanes;
  Part<Bfloat16> part(0);
  if (!StageAndComputePart<WarpGroups<kTensorCoreVectors>>(args, &part)) return;
  StoreBlockSum<kStatsThreads>(part, args.count, lanes, args.parts + blockIdx.x);
}

// Which values this leaf sends through the window.
struct Parcel {
  std::uint64_t ordinal;  // 0: none
  const std::byte* from;
  bool waits;  // for the daemon to have read the window
};

__device__ Parcel MakeParcel(const DeviceLeafArgs& args, const Plan& plan) {
  const DirectState& state = *args.slot.state;
  const bool sends_entry = plan.outcome != Outcome::kSkip;
  const std::uint64_t newest = state.accepted + (sends_entry ? 1 : 0);
  const bool lossless = IsLossless(args.slot.periods, state.control);
  Parcel parcel = {};
  if (sends_entry && (lossless || state.ring.wants_every != 0)) {
    parcel.ordinal = newest;
    parcel.waits = lossless;
  } else if (state.ring.wanted == layout::kWantsNewest) {
    parcel.ordinal = newest;
  } else if (state.ring.wanted != 0 && state.ring.wanted <= newest &&
             newest - state.ring.wanted < args.ring.capacity) {
    parcel.ordinal = state.ring.wanted;
  }
  if (parcel.ordinal == 0) return parcel;
  const std::uint64_t index = (parcel.ordinal - 1) % (std::uint64_t{args.ring.capacity} + 1);
  parcel.from = args.ring.entries + index * args.ring.stride_bytes;
  return parcel;
}

// Sends the values and returns their checksum.
__device__ std::uint64_t SendParcel(const DeviceLeafArgs& args, const Parcel& parcel) {
  if (threadIdx.x == 0) {
    if (parcel.waits && parcel.ordinal > 1) {
      DirectSlot window = args.slot;  // a ring of one entry
      window.capacity = 1;
      WaitForRoom(window, parcel.ordinal, /*counts=*/true);
    }
    // As Claim(): a reader of what was here finds a changed word or a wrong checksum.
    Store(args.window->word, EntryWord(parcel.ordinal, EntryState::kFilling));
  }
  __syncthreads();
  const std::uint64_t sum =
      SumInBlock(CopyOut(parcel.from, args.window_payload, args.bytes, threadIdx.x, blockDim.x));
  __syncthreads();  // SumInBlock's sum may be used again
  return sum;
}

// Called by thread 0.
__device__ void CommitParcel(const DeviceLeafArgs& args, const Parcel& parcel, std::uint64_t sum) {
  Store(args.window->checksum, sum + layout::WindowSum(parcel.ordinal, args.slot.order));
  __threadfence_system();  // V1, pairs with V2
  Store(args.window->word, EntryWord(parcel.ordinal, EntryState::kReady));
}

// What the daemon may change.
struct DeviceWords {
  std::uint64_t ordinal;
  std::uint64_t order;
  std::uint64_t every;
  std::uint64_t thawed;
  std::uint64_t stop;
};

__device__ DeviceWords ReadDeviceWords(const DeviceLeafArgs& args) {
  DeviceWords words = {};
  if (args.thaw != nullptr && LoadDevice(args.slot.gate->frozen_at) != 0) {
    // The daemon lets the rings go on before it asks them to stop again. A leaf that sees the new
    // request must not miss that they may go on.
    words.stop = LoadAcquire(args.thaw->stop);
    words.thawed = Load(args.thaw->serial);
  } else if (args.thaw != nullptr) {
    words.stop = Load(args.thaw->stop);
  }
  words.ordinal = LoadAcquire(args.request->ordinal);  // V4
  words.order = Load(args.request->order);
  words.every = Load(args.request->every);
  return words;
}

// Decides what the next leaf sends. `newest`: the newest ordinal that the ring has now.
__device__ void TakeRequest(const DeviceLeafArgs& args, const DeviceWords& words,
                            std::uint64_t newest, std::uint64_t sent) {
  DirectState& state = *args.slot.state;
  const bool mine = words.order == args.slot.order;
  state.ring.wants_every = mine && words.every != 0;
  const bool is_new = words.ordinal != state.ring.asked;
  state.ring.asked = words.ordinal;
  if ((words.ordinal & layout::kWantsNewest) != 0) {
    state.ring.wanted = mine && is_new ? layout::kWantsNewest : 0;
    return;
  }
  state.ring.wanted = mine && words.ordinal != sent ? words.ordinal : 0;
  // The next replay overwrites one more.
  if (state.ring.wanted != 0 && state.ring.wanted <= newest &&
      newest - state.ring.wanted >= args.ring.capacity) {
    Store(args.window->refused, state.ring.wanted);
    state.ring.wanted = 0;
  }
}

struct Held {
  layout::ControlTrigger trigger = layout::ControlTrigger::kNone;
  bool live = false;  // it is the live control's
};

// Stops the rings of this device behind this replay, unless they stand still already.
__device__ void Stop(const DeviceLeafArgs& args, Held held, std::uint64_t replay,
                     std::uint64_t serial) {
  DirectGate& gate = *args.slot.gate;
  if (atomicCAS(reinterpret_cast<unsigned long long*>(&gate.frozen_at), 0ull,
                static_cast<unsigned long long>(serial)) != 0) {
    return;
  }
  // Counted before the daemon learns of it and lets them go on.
  if (held.trigger != layout::ControlTrigger::kNone && !held.live) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&gate.fired), 1ull);
  }
  Store(args.freeze->order, args.slot.order);
  Store(args.freeze->replay, replay);
  Store(args.freeze->trigger, static_cast<std::uint64_t>(held.trigger));
  Store(args.freeze->live, held.live ? 1 : 0);
  __threadfence_system();  // T1, pairs with T2
  Store(args.freeze->serial, serial);
}

// Registered triggers stop the rings of a device no more often than they were registered for. The
// daemon ends a trigger of the live control when the rings have stopped.
__device__ void Fire(const DeviceLeafArgs& args, Held held, std::uint64_t replay,
                     std::uint64_t serial) {
  if (held.trigger == layout::ControlTrigger::kNone || args.freeze == nullptr) return;
  if (!held.live && LoadDevice(args.slot.gate->fired) >= args.trigger_times) return;
  Stop(args, held, replay, serial);
}

// Stops the rings if the daemon asks for it. Leaves of several graphs may read the same request. A
// replay in which the rings went on has been kept in part only, so the next one obeys.
// Requires: Thaw() was called before; otherwise rings that still stand still would miss it.
__device__ void Obey(const DeviceLeafArgs& args, std::uint64_t stop, std::uint64_t replay,
                     std::uint64_t serial) {
  if (stop == 0) return;
  DirectGate& gate = *args.slot.gate;
  __threadfence();  // whoever found that the rings go on finds in which replay, too
  if (args.slot.state->ring.frozen != 0 || LoadDevice(gate.thawed_in) == serial) return;
  auto* stopped = reinterpret_cast<unsigned long long*>(&gate.stopped);
  if (atomicExch(stopped, static_cast<unsigned long long>(stop)) == stop) return;
  Stop(args, {}, replay, serial);
}

// Lets the rings go on, in the replay with this serial.
__device__ void Thaw(DirectGate* gate, std::uint64_t thawed, std::uint64_t serial) {
  if (thawed == 0 || LoadDevice(gate->frozen_at) != thawed) return;
  atomicExch(reinterpret_cast<unsigned long long*>(&gate->thawed_in),
             static_cast<unsigned long long>(serial));
  __threadfence();
  atomicCAS(reinterpret_cast<unsigned long long*>(&gate->frozen_at),
            static_cast<unsigned long long>(thawed), 0ull);
}

// The trigger that holds for these statistics. The live control's comes before the registered one.
__device__ Held HoldingTrigger(const DeviceLeafArgs& args, const Plan& plan,
                               const layout::DeviceStats& stats) {
  const bool changed = NoteChange(args.slot.state, args.trigger, stats);
  const layout::SlotControl& control = args.slot.state->control;
  if (plan.outcome == Outcome::kTriggered && TriggerHolds(control, stats, changed)) {
    return {control.trigger, /*live=*/true};
  }
  if (args.trigger == layout::ControlTrigger::kNone) return {};
  layout::SlotControl registered = {};
  registered.trigger = args.trigger;
  registered.threshold = args.threshold;
  if (!TriggerHolds(registered, stats, changed)) return {};
  return {args.trigger, /*live=*/false};
}

__device__ bool WantsStatistics(const DeviceLeafArgs& args, const Plan& plan) {
  if (plan.outcome == Outcome::kSkip) return false;
  return Computes(plan.outcome) || args.trigger != layout::ControlTrigger::kNone ||
         args.slot.periods.WantStats(plan.replay);
}

// How a leaf gets the statistics of its replay, if they are wanted. Every thread calls Compute();
// thread 0 gets them.

// From the entry of the ring: a second pass over the tensor.
template <typename Type>
struct FromEntry {
  __device__ static layout::DeviceStats Compute(const DeviceLeafArgs& args, const std::byte* values,
                                                layout::DeviceStats* warps) {
    return ComputeInBlock<Type>(values, args.count, threadIdx.x, blockDim.x, warps);
  }
};

// From the parts that the staging kernel left.
struct FromParts {
  __device__ static layout::DeviceStats Compute(const DeviceLeafArgs& args, const std::byte*,
                                                layout::DeviceStats* warps) {
    return SumParts(args.parts, args.part_count, warps);
  }
};

template <typename Statistics>
__device__ void RunDeviceLeaf(const DeviceLeafArgs& args, layout::DeviceStats* warps) {
  __shared__ __align__(16) layout::DeviceStats stats;
  __shared__ Plan plan;
  __shared__ Parcel parcel;
  __shared__ HostWords words;
  __shared__ DeviceWords device_words;
  __shared__ bool computes;
  DirectState* state = args.slot.state;
  const std::byte* values = args.ring.entries + state->ring.index * args.ring.stride_bytes;
  if (threadIdx.x == 0) {
    plan = MakePlan(args.slot);
    if (state->ring.frozen != 0) plan.outcome = Outcome::kSkip;
    parcel = MakeParcel(args, plan);
    computes = WantsStatistics(args, plan);
    // A leaf that sends no values leaves the link alone. It waits for a multiprocessor with room,
    // behind the kernels of the job, and the next one should wait and compute beside it.
    if (parcel.ordinal == 0) LetNextGridStart();
  }
  // The link is slower than adding up parts, so both are done at once.
  if (threadIdx.x == 32) words = ReadHostWords(args.slot);
  if (threadIdx.x == 64) device_words = ReadDeviceWords(args);
  __syncthreads();
  const std::uint64_t parcel_sum = parcel.ordinal == 0 ? 0 : SendParcel(args, parcel);
  if (computes) {
    const layout::DeviceStats total = Statistics::Compute(args, values, warps);
    if (threadIdx.x == 0) {
      stats = total;
      Close(&stats, args.hash);
    }
  }
  if (threadIdx.x == 0 && plan.outcome != Outcome::kSkip) {
    Claim(args.slot, plan, /*counts=*/true);
  }
  __syncthreads();
  const std::uint64_t sum = SumInBlock(computes ? SendStats(stats, plan.payload) : 0);
  if (threadIdx.x == 0) {
    LetNextGridStart();
    if (parcel.ordinal != 0) CommitParcel(args, parcel, parcel_sum);
    Thaw(args.slot.gate, device_words.thawed, words.serial);
    if (computes) {
      state->now.sent = kSentStats;
      Fire(args, HoldingTrigger(args, plan, stats), plan.replay, words.serial);
    }
    const bool sent_entry = plan.outcome != Outcome::kSkip;
    TakeRequest(args, device_words, state->accepted + (sent_entry ? 1 : 0), parcel.ordinal);
    Obey(args, device_words.stop, plan.replay, words.serial);
    state->ring.frozen = 0;
    if (sent_entry) {
      state->ring.index = state->ring.index == args.ring.capacity ? 0 : state->ring.index + 1;
    }
    Finish(args.slot, plan, words, sum, layout::kEntryOnDevice);
  }
  EndBlock();
}

template <typename Type>
__global__ void __launch_bounds__(kLeafThreads) DeviceLeaf(DeviceLeafArgs args) {
  __shared__ layout::DeviceStats warps[kLeafThreads / 32];
  RunDeviceLeaf<FromEntry<Type>>(args, warps);
}

__global__ void __launch_bounds__(kStatsLeafThreads) DeviceStatsLeaf(DeviceLeafArgs args) {
  __shared__ layout::DeviceStats warps[kStatsLeafThreads / 32];
  if (args.starts_early) WaitForGridsBefore();
  RunDeviceLeaf<FromParts>(args, warps);
}

template <typename Type>
struct DeviceLeafOf {
  static const void* Get() { return reinterpret_cast<const void*>(&DeviceLeaf<Type>); }
};

template <typename Type>
struct DeviceStatsOf {
  static const void* Get() { return reinterpret_cast<const void*>(&DeviceStatsStage<Type>); }
};

template <typename Unit>
struct DeviceStageOf {
  static const void* Get() { return reinterpret_cast<const void*>(&DeviceStage<Unit>); }
};
template <typename Unit>
struct DeviceGatherOf {
  static const void* Get() { return reinterpret_cast<const void*>(&DeviceGather<Unit>); }
};

}  // namespace

const void* DeviceLeafKernel(layout::Dtype dtype) { return KernelForDtype<DeviceLeafOf>(dtype); }

const void* DeviceStatsLeafKernel() { return reinterpret_cast<const void*>(&DeviceStatsLeaf); }

const void* DeviceStatsKernel(layout::Dtype dtype) { return KernelForDtype<DeviceStatsOf>(dtype); }
const void* DeviceTensorCoreStatsKernel() {
  return reinterpret_cast<const void*>(&DeviceTensorCoreStatsStage);
}

const void* DeviceStageKernel(int unit) { return KernelForUnit<DeviceStageOf>(unit); }
const void* DeviceGatherKernel(int unit) { return KernelForUnit<DeviceGatherOf>(unit); }

}  // namespace cgdebug::capture
