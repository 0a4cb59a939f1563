// The kernels of rings in device memory. The labels V1 to V4 are those of ring_layout.h, T1 and T2
// those of segment_layout.h.
#include "libprobe/capture/device_ring_kernels.h"
#include "libprobe/capture/direct_leaf.cuh"
#include "libprobe/capture/element_types.cuh"

namespace cgdebug::capture {
namespace {

__device__ std::uint64_t LoadDevice(const std::uint64_t& word) {
  return *const_cast<const volatile std::uint64_t*>(&word);
}

// Whether this replay is later than the one at which the rings stopped. It is not if the leaves of
// this capture have that replay's serial and this slot's own leaf has not run in it yet.
__device__ bool IsFrozen(const DeviceStageArgs& args) {
  const std::uint64_t frozen_at = LoadDevice(args.gate->frozen_at);
  if (frozen_at == 0) return false;
  __threadfence();  // the leaf that set it had the capture's serial before
  return LoadDevice(*args.shared_serial) != frozen_at || args.state->last_serial == frozen_at;
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
  if (args.state->skip != 0) return;
  if (IsFrozen(args)) {
    if (threadIdx.x == 0) args.state->frozen = 1;
    return;
  }
  auto* to =
      reinterpret_cast<Unit*>(args.ring.entries + args.state->ring_index * args.ring.stride_bytes);
  if (i < count) to[i] = ahead;
#pragma unroll 4
  for (i += stride; i < count; i += stride) to[i] = from[i];
}

template <typename Type>
__global__ void __launch_bounds__(kStatsThreads, kStatsBlocksPerMultiprocessor)
    DeviceStatsStage(DeviceStatsArgs args) {
  const std::uint64_t start = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  WaitForGridsBefore();
  const DeviceStageArgs& stage = args.stage;
  const Span<typename Type::Raw> span(stage.from, args.count);
  const typename Part<Type>::First first(span, start, stride);  // as in Stage
  Part<Type> part(ShiftOf<Type>(stage.from, args.count));
  if (stage.state->skip != 0) return;
  if (__any_sync(0xffffffffu, IsFrozen(stage))) {  // a warp adds up its part together
    if (threadIdx.x % 32 == 0) stage.state->frozen = 1;
    return;
  }
  std::byte* const to = stage.ring.entries + stage.state->ring_index * stage.ring.stride_bytes;
  part.AddAll(first, span, start, stride, CopyTo{stage.from, to});
  StoreWarpSum(part, args.count, args.parts + start / 32);
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
  if (sends_entry && (lossless || state.wants_every != 0)) {
    parcel.ordinal = newest;
    parcel.waits = lossless;
  } else if (state.wanted == layout::kWantsNewest) {
    parcel.ordinal = newest;
  } else if (state.wanted != 0 && state.wanted <= newest &&
             newest - state.wanted < args.ring.capacity) {
    parcel.ordinal = state.wanted;
  }
  if (parcel.ordinal == 0) return parcel;
  const std::uint64_t index = (parcel.ordinal - 1) % (std::uint64_t{args.ring.capacity} + 1);
  parcel.from = args.ring.entries + index * args.ring.stride_bytes;
  return parcel;
}

// Sends this block's part of the values.
__device__ void SendParcel(const DeviceLeafArgs& args, const Parcel& parcel) {
  if (threadIdx.x == 0) {
    if (parcel.waits && parcel.ordinal > 1) {
      DirectSlot window = args.slot;  // a ring of one entry
      window.capacity = 1;
      WaitForRoom(window, parcel.ordinal, blockIdx.x == 0);
    }
    // As Claim(): a reader of what was here finds a changed word or a wrong checksum.
    Store(args.window->word, EntryWord(parcel.ordinal, EntryState::kFilling));
  }
  __syncthreads();
  std::uint64_t sum = 0;
  if (threadIdx.x < args.sending_threads) {
    sum = CopyOut(parcel.from, args.window_payload, args.bytes,
                  std::uint64_t{blockIdx.x} * args.sending_threads + threadIdx.x,
                  std::uint64_t{args.sending_blocks} * args.sending_threads);
  }
  sum = SumInBlock(sum);
  if (threadIdx.x == 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&args.slot.state->window_sum),
              static_cast<unsigned long long>(sum));
    __threadfence_system();
  }
  __syncthreads();  // SumInBlock's sum may be used again
}

// Called by the last block's thread 0.
__device__ void CommitParcel(const DeviceLeafArgs& args, const Parcel& parcel) {
  DirectState& state = *args.slot.state;
  const std::uint64_t sum = LoadDevice(state.window_sum);
  state.window_sum = 0;
  Store(args.window->checksum, sum + layout::WindowSum(parcel.ordinal, args.slot.order));
  __threadfence_system();  // V1, pairs with V2
  Store(args.window->word, EntryWord(parcel.ordinal, EntryState::kReady));
}

// What the daemon may change, read while nothing else is in flight.
struct DeviceWords {
  std::uint64_t ordinal;
  std::uint64_t order;
  std::uint64_t every;
  std::uint64_t thawed;
  std::uint64_t stop;
};

__device__ DeviceWords ReadDeviceWords(const DeviceLeafArgs& args) {
  DeviceWords words = {};
  if (args.thaw != nullptr) {
    words.stop = Load(args.thaw->stop);
    if (LoadDevice(args.slot.gate->frozen_at) != 0) words.thawed = Load(args.thaw->serial);
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
  state.wants_every = mine && words.every != 0;
  const bool is_new = words.ordinal != state.asked;
  state.asked = words.ordinal;
  if ((words.ordinal & layout::kWantsNewest) != 0) {
    state.wanted = mine && is_new ? layout::kWantsNewest : 0;
    return;
  }
  state.wanted = mine && words.ordinal != sent ? words.ordinal : 0;
  // The next replay overwrites one more.
  if (state.wanted != 0 && state.wanted <= newest && newest - state.wanted >= args.ring.capacity) {
    Store(args.window->refused, state.wanted);
    state.wanted = 0;
  }
}

struct Held {
  layout::ControlTrigger trigger = layout::ControlTrigger::kNone;
  bool live = false;  // it is the live control's
};

// Stops the rings of this device behind this replay, unless they stand still already.
__device__ bool Stop(const DeviceLeafArgs& args, Held held, std::uint64_t replay,
                     std::uint64_t serial) {
  if (atomicCAS(reinterpret_cast<unsigned long long*>(&args.slot.gate->frozen_at), 0ull,
                static_cast<unsigned long long>(serial)) != 0) {
    return false;
  }
  Store(args.freeze->order, args.slot.order);
  Store(args.freeze->replay, replay);
  Store(args.freeze->trigger, static_cast<std::uint64_t>(held.trigger));
  Store(args.freeze->live, held.live ? 1 : 0);
  __threadfence_system();  // T1, pairs with T2
  Store(args.freeze->serial, serial);
  return true;
}

// Registered triggers stop the rings of a device no more often than they were registered for. The
// daemon ends a trigger of the live control when the rings have stopped.
__device__ void Fire(const DeviceLeafArgs& args, Held held, std::uint64_t replay,
                     std::uint64_t serial) {
  if (held.trigger == layout::ControlTrigger::kNone || args.freeze == nullptr) return;
  DirectGate& gate = *args.slot.gate;
  if (!held.live && LoadDevice(gate.fired) >= args.trigger_times) return;
  if (!Stop(args, held, replay, serial) || held.live) return;
  atomicAdd(reinterpret_cast<unsigned long long*>(&gate.fired), 1ull);
}

// Stops the rings if the daemon asks for it. Leaves of several graphs may read the same request.
__device__ void Obey(const DeviceLeafArgs& args, std::uint64_t stop, std::uint64_t replay,
                     std::uint64_t serial) {
  if (stop == 0) return;
  auto* stopped = reinterpret_cast<unsigned long long*>(&args.slot.gate->stopped);
  if (atomicExch(stopped, static_cast<unsigned long long>(stop)) == stop) return;
  Stop(args, {}, replay, serial);
}

__device__ void Thaw(DirectGate* gate, std::uint64_t thawed) {
  if (thawed == 0) return;
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

template <typename Type>
__global__ void __launch_bounds__(kLeafThreads) DeviceLeaf(DeviceLeafArgs args) {
  __shared__ layout::DeviceStats warps[kLeafThreads / 32];
  __shared__ __align__(16) layout::DeviceStats stats;
  __shared__ Plan plan;
  __shared__ Parcel parcel;
  __shared__ HostWords words;
  __shared__ DeviceWords device_words;
  __shared__ bool computes;
  __shared__ bool last;
  DirectState* state = args.slot.state;
  const std::byte* values = args.ring.entries + state->ring_index * args.ring.stride_bytes;
  if (threadIdx.x == 0) {
    plan = MakePlan(args.slot);
    if (state->frozen != 0) plan.outcome = Outcome::kSkip;
    parcel = MakeParcel(args, plan);
    computes = WantsStatistics(args, plan);
    // Those that only add up parts are short. They wait for a multiprocessor with room, behind the
    // kernels of the job, and the next one should wait beside them.
    if (parcel.ordinal == 0 && (!computes || args.part_count != 0)) LetNextGridStart();
  }
  __syncthreads();
  if (parcel.ordinal != 0 && blockIdx.x < args.sending_blocks) SendParcel(args, parcel);
  layout::DeviceStats total;
  const bool adds_parts = args.part_count != 0;
  if (computes && !adds_parts) {
    LeafArgs leaf = {};
    leaf.slot.state = state;
    leaf.staging = values;
    leaf.count = args.count;
    leaf.parts = args.parts;
    if (!ComputeInGrid<Type>(leaf, warps, &total)) {
      EndBlock();
      return;
    }
  } else {
    std::uint64_t nothing = 0;
    if (threadIdx.x == 0) last = AddToGrid(state, /*wrote=*/false, &nothing);
    __syncthreads();
    if (!last) {
      EndBlock();
      return;
    }
    if (computes) total = SumParts(args.parts, args.part_count, warps);
  }
  if (threadIdx.x == 0) {
    if (computes) {
      Close(&total, args.hash);
      stats = total;
    }
    if (plan.outcome != Outcome::kSkip) Claim(args.slot, plan, /*counts=*/true);
  }
  if (threadIdx.x == 32) words = ReadHostWords(args.slot);
  if (threadIdx.x == 64) device_words = ReadDeviceWords(args);
  __syncthreads();
  const std::uint64_t sum = SumInBlock(computes ? SendStats(stats, plan.payload) : 0);
  if (threadIdx.x == 0) {
    LetNextGridStart();
    if (parcel.ordinal != 0) CommitParcel(args, parcel);
    if (computes) {
      state->sent = kSentStats;
      Fire(args, HoldingTrigger(args, plan, stats), plan.replay, words.serial);
    }
    const bool sent_entry = plan.outcome != Outcome::kSkip;
    TakeRequest(args, device_words, state->accepted + (sent_entry ? 1 : 0), parcel.ordinal);
    Obey(args, device_words.stop, plan.replay, words.serial);
    Thaw(args.slot.gate, device_words.thawed);
    state->frozen = 0;
    if (sent_entry) {
      state->ring_index = state->ring_index == args.ring.capacity ? 0 : state->ring_index + 1;
    }
    Finish(args.slot, plan, words, sum, layout::kEntryOnDevice);
  }
  EndBlock();
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

}  // namespace

const void* DeviceLeafKernel(layout::Dtype dtype) { return KernelForDtype<DeviceLeafOf>(dtype); }

const void* DeviceStatsKernel(layout::Dtype dtype) { return KernelForDtype<DeviceStatsOf>(dtype); }

const void* DeviceStageKernel(int unit) { return KernelForUnit<DeviceStageOf>(unit); }

}  // namespace cgdebug::capture
