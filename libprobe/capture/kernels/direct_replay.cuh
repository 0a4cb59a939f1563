// direct_replay.cuh: what a leaf does around its copy: it picks this replay's entry, waits for room
// if it must, and commits. The device's side of libprobe/ring/slot_ring_writer.h, with the same
// labels.
#pragma once

#include <cstdint>

#include "libprobe/capture/kernels/direct_kernels.h"
#include "proto/layout/serial.h"

namespace cgdebug::capture {

using layout::EntryState;
using layout::EntryWord;
using layout::Outcome;

// --- memory of the host ------------------------------------------------------------------------

template <typename T>
__device__ std::uint64_t Load(const T& field) {
  static_assert(sizeof(T) == 8);
  std::uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(&field) : "memory");
  return value;
}
template <typename T>
__device__ std::uint64_t LoadAcquire(const T& field) {
  static_assert(sizeof(T) == 8);
  std::uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(&field) : "memory");
  return value;
}
template <typename T>
__device__ void Store(T& field, std::uint64_t value) {
  static_assert(sizeof(T) == 8);
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(&field), "l"(value) : "memory");
}
__device__ inline std::uint64_t GlobalTimer() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// --- one replay --------------------------------------------------------------------------------

constexpr bool Computes(Outcome outcome) {
  return outcome == Outcome::kStats || outcome == Outcome::kTriggered;
}

// What every block works out for itself, from numbers that do not change until all blocks are done.
struct Plan {
  Outcome outcome;
  std::uint64_t replay;
  std::uint32_t iteration;
  std::uint64_t ordinal;
  layout::EntryHeader* header;
  std::byte* payload;
  bool compared;   // on the device
  bool failed;     // that comparison
  bool passed;     // likewise, and there is nothing to send
  bool unchanged;  // the newest payload in the ring is this tensor: only the header is sent
  bool in_body;    // the next one may be of the same replay or call, or of any later one
};

// R4: the ordinal up to which this slot's reader has consumed it; never another slot's.
__device__ inline std::uint64_t Credited(const DirectSlot& slot) {
  const std::uint64_t consumed = LoadAcquire(slot.credit->consumed);
  if (LoadAcquire(slot.credit->order) != slot.order) return 0;
  return Load(slot.credit->consumed) == consumed ? consumed : 0;
}

// Whether a daemon may read the segment, as far as a GPU can tell: false if it left in order or
// never came. A daemon that was killed costs one wait of one deadline.
__device__ inline bool MayBeRead(const DirectSlot& slot) {
  const std::uint32_t pid = *const_cast<const volatile std::int32_t*>(&slot.consumer->pid);
  return Load(slot.consumer->generation) != 0 && pid != 0;
}

__device__ inline bool Refused(const DirectSlot& slot) {
  return *const_cast<const volatile layout::Refusal*>(slot.refusal) ==
         static_cast<layout::Refusal>(slot.order);
}

// Policy wait. Every block waits by itself, because none may depend on another being scheduled.
// Only the block with `counts` adds to the counters.
__device__ inline void WaitForRoom(const DirectSlot& slot, std::uint64_t ordinal, bool counts) {
  const std::uint64_t needed = ordinal - slot.capacity;
  if (Credited(slot) >= needed) return;
  const std::uint64_t start = GlobalTimer();
  bool gave_up = false;
  bool has_waited = false;
  unsigned nap_ns = 100;
  auto* own = reinterpret_cast<unsigned long long*>(&slot.state->waits.gave_up);
  while (Credited(slot) < needed) {
    const std::uint64_t progress = LoadAcquire(slot.consumer->progress);  // G2
    auto* known = reinterpret_cast<unsigned long long*>(&slot.gate->gave_up_at_progress);
    const std::uint64_t mark =
        layout::GaveUpMark(Load(slot.consumer->generation), Load(slot.credit->consumed));
    gave_up =
        atomicAdd(known, 0ull) == progress + 1 || atomicAdd(own, 0ull) == mark || Refused(slot);
    const bool too_long = GlobalTimer() - start >= slot.deadline_ns;
    if (!gave_up && (too_long || !MayBeRead(slot))) {
      atomicExch(known, progress + 1);  // zero means never
      if (too_long) atomicExch(own, mark);
      has_waited |= too_long;
      gave_up = true;
    }
    if (gave_up) break;
    has_waited = true;
    __nanosleep(nap_ns);
    nap_ns = nap_ns < 5000 ? nap_ns * 2 : nap_ns;
  }
  if (gave_up) atomicExch(&slot.state->now.timed_out, 1u);
  if (counts && has_waited) {
    ++slot.state->waits.count;
    slot.state->waits.ns += GlobalTimer() - start;
  }
}

// `call`: StatsLeafArgs::call.
__device__ inline Plan MakePlan(const DirectSlot& slot, std::uint64_t call = 0) {
  const DirectState& state = *slot.state;
  Plan plan;
  plan.in_body = slot.tick != nullptr || call != 0;
  plan.replay = call != 0 ? call : plan.in_body ? __ldcg(&slot.tick->replay) : state.replay + 1;
  // Stays at the greatest number there is; no body comes near it.
  plan.iteration = !plan.in_body || plan.replay != state.replay ? 0
                   : state.body.iteration == UINT32_MAX         ? UINT32_MAX
                                                                : state.body.iteration + 1;
  plan.outcome =
      state.next.disarmed != 0 ? Outcome::kSkip : Decide(slot.periods, state.control, plan.replay);
  const bool is_reference = slot.compares_first && state.accepted == 0;
  plan.compared = slot.compare != nullptr && plan.outcome != Outcome::kSkip && !is_reference;
  plan.failed = plan.compared && state.now.differs != 0;
  plan.passed = plan.compared && !plan.failed && plan.outcome == Outcome::kFull &&
                !Holds(state.control, plan.replay) && !IsLossless(slot.periods, state.control);
  if (plan.passed) plan.outcome = Outcome::kSkip;
  plan.unchanged = slot.skips_unchanged && plan.outcome == Outcome::kFull &&
                   state.unchanged.may_skip != 0 &&
                   state.unchanged.content.low == state.unchanged.sent.low &&
                   state.unchanged.content.high == state.unchanged.sent.high;
  plan.ordinal = state.accepted + 1;
  plan.header = slot.headers + state.index;
  const std::uint64_t place = slot.skips_unchanged ? state.unchanged.place : state.index;
  plan.payload = slot.payloads + place * slot.payload_stride_bytes;
  return plan;
}

// Whether the slot waits for room in its ring.
__device__ inline bool MayWait(const DirectSlot& slot) {
  return slot.waits || IsLossless(slot.periods, slot.state->control);
}

// Called before the first store to the entry.
__device__ inline void Claim(const DirectSlot& slot, const Plan& plan, bool counts) {
  const bool waits = MayWait(slot);
  if (waits && plan.ordinal > slot.capacity) WaitForRoom(slot, plan.ordinal, counts);
  // W2, pairs with R2. Each block stores the same word. No fence follows, because a fence costs a
  // microsecond on the link. If a byte of the payload overtakes the word, a reader of the entry
  // that was here finds a checksum that does not match.
  Store(plan.header->word, EntryWord(plan.ordinal, EntryState::kFilling));
}

// Adds the checksum of a block that `wrote` to the grid's. Returns true in the last block, which
// then has the whole sum and acts for all. Requires: thread 0, after the block's barrier.
__device__ inline bool AddToGrid(DirectState* state, bool wrote, std::uint64_t* sum) {
  if (gridDim.x == 1) return true;
  if (wrote) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&state->now.checksum),
              static_cast<unsigned long long>(*sum));
    __threadfence_system();
  }
  if (atomicInc(&state->now.blocks_done, gridDim.x - 1) != gridDim.x - 1) return false;
  __threadfence();
  *sum = state->now.checksum;
  return true;
}

// Reads the live control as ring::LoadControl does (C2).
__device__ inline void RefreshControl(const DirectSlot& slot, std::uint64_t word) {
  if (word == slot.state->control_word || layout::ControlVersion(word) % 2 != 0) return;
  LoadAcquire(slot.credit->control);
  layout::SlotControl fresh = layout::UnpackControl(word);
  fresh.from = Load(slot.credit->control_from);
  fresh.until = Load(slot.credit->control_until);
  fresh.expires_ns = static_cast<std::int64_t>(Load(slot.credit->control_expires_ns));
  fresh.threshold =
      __longlong_as_double(static_cast<long long>(Load(slot.credit->control_threshold)));
  const bool mine = Load(slot.credit->order) == slot.order;
  __threadfence_system();
  if (Load(slot.credit->control) != word) return;
  slot.state->control = mine ? fresh : layout::SlotControl{};
  slot.state->control_word = word;
}

// ring::NextSerial() on the device: one that nobody has taken. `of` is a DirectSlot or a TickArgs.
template <typename Of>
__device__ std::uint64_t NextSerial(const Of& of) {
  auto* newest = reinterpret_cast<unsigned long long*>(&of.gate->newest_serial);
  const unsigned long long now = layout::SerialAt(
      GlobalTimer() + static_cast<std::uint64_t>(of.serial_offset_ns), of.serial_taker);
  if (atomicMax(newest, now) < now) return now;
  return atomicAdd(newest, layout::kSerialTakers) + layout::kSerialTakers;
}

// ring::SharedSerial on the device: the leaf that finds the serial of its own last replay is the
// first of this replay and takes a new serial for all. The blocks of a grid agree in the same way.
__device__ inline std::uint64_t TakeSerial(const DirectSlot& slot) {
  const unsigned long long last = slot.state->last_serial;
  auto* shared = reinterpret_cast<unsigned long long*>(slot.shared_serial);
  const unsigned long long seen = *const_cast<const volatile unsigned long long*>(shared);
  if (seen != last) return seen;
  const unsigned long long mine = NextSerial(slot);
  const unsigned long long found = atomicCAS(shared, last, mine);
  return found == last ? mine : found;
}

// What is read while the values are in flight: what the host may change about a slot, and the
// replay's serial.
struct HostWords {
  std::uint64_t serial;
  std::uint64_t control;
  std::uint64_t disarmed;
  std::uint64_t step;
};

__device__ inline HostWords ReadHostWords(const DirectSlot& slot) {
  HostWords words;
  words.serial = TakeSerial(slot);  // first: the next leaf may have started
  words.control = Load(slot.credit->control);
  words.disarmed = Load(slot.head->disarmed);
  const std::uint64_t step = Load(*slot.step);
  const std::uint64_t step_of_cpu = Load(slot.producer->step);  // at once: one trip over the link
  words.step = static_cast<std::int64_t>(step) == kNoStep ? step_of_cpu : step;
  return words;
}

// Counts the payload. If the slot skips it as unchanged, takes the checksum of the one that is in
// the ring already. Returns the number of the entry's payload.
__device__ inline std::uint64_t NotePayload(const DirectSlot& slot, const Plan& plan,
                                            std::uint64_t* checksum) {
  DirectState& state = *slot.state;
  if (plan.unchanged) {
    *checksum = state.unchanged.checksum;
    Store(slot.head->unchanged, ++state.unchanged.count);
    return state.unchanged.payloads;
  }
  state.unchanged.place =
      state.unchanged.place + 1 == slot.capacity ? 0 : state.unchanged.place + 1;
  state.unchanged.checksum = *checksum;
  state.unchanged.sent = state.unchanged.content;
  state.unchanged.may_skip = state.now.sent == kSentValues;
  return ++state.unchanged.payloads;
}

// Called by the last block's thread 0 when everything is sent.
__device__ inline void Finish(const DirectSlot& slot, const Plan& plan, const HostWords& words,
                              std::uint64_t checksum, std::uint32_t more_flags = 0) {
  DirectState& state = *slot.state;
  const std::int64_t now_ns = static_cast<std::int64_t>(GlobalTimer()) + slot.clock_offset_ns;
  if (plan.outcome != Outcome::kSkip) {
    std::uint32_t flags = layout::kEntryHasChecksum | more_flags;
    if (plan.failed) flags |= layout::kEntryDiffers;
    if (state.now.sent == kSentStats) flags |= layout::kEntryIsStats;
    if (state.now.sent == kSentUnwanted) flags |= layout::kEntryDropValues;
    if (Holds(state.control, plan.replay)) flags |= layout::kEntryForced;
    layout::EntryHeader& header = *plan.header;
    std::uint64_t payload = 0;
    if (slot.skips_unchanged) {
      payload = NotePayload(slot, plan, &checksum);
      Store(header.reference, payload);
    }
    Store(header.replay, plan.replay);
    Store(header.timestamp_ns, static_cast<std::uint64_t>(now_ns));
    Store(header.step, words.step);
    Store(header.serial, words.serial);
    Store(header.checksum,
          checksum + layout::HeaderSum(plan.ordinal, plan.replay, now_ns,
                                       static_cast<std::int64_t>(words.step), words.serial, flags,
                                       plan.iteration, payload));
    *const_cast<volatile std::uint32_t*>(&header.flags) = flags;
    *const_cast<volatile std::uint32_t*>(&header.iteration) = plan.iteration;
    // W1, pairs with R1. The block's other threads stored before its barrier; the fence covers
    // their stores.
    __threadfence_system();
    Store(header.word, EntryWord(plan.ordinal, EntryState::kReady));
    if (state.now.timed_out != 0) ++state.waits.overwrote_unread;
    state.accepted = plan.ordinal;
    state.index = state.index + 1 == slot.capacity ? 0 : state.index + 1;
  } else if (plan.passed) {
    Store(slot.head->passed, ++state.passed);
  } else if (state.next.disarmed == 0 &&
             Decide(slot.periods, Ended(state.control), plan.replay) != Outcome::kSkip) {
    ++state.suppressed;
  }
  if (plan.compared) Store(slot.head->compared, ++slot.compare->compared);
  if (plan.failed) Store(slot.head->failed, ++slot.compare->failed);
  if (state.next.disarmed == 0) {
    state.replay = plan.replay;
    state.body.iteration = plan.iteration;
    Store(slot.head->replay, state.replay);
    if (slot.tick != nullptr && plan.iteration == 0) Store(slot.head->taken, ++state.body.taken);
    Store(slot.head->overwrote_unread, state.waits.overwrote_unread);
    Store(slot.head->waits, state.waits.count);
    Store(slot.head->wait_ns, state.waits.ns);
    Store(slot.head->suppressed, state.suppressed);
  }
  if (plan.outcome != Outcome::kSkip) {
    Store(slot.head->last_timestamp_ns, static_cast<std::uint64_t>(now_ns));
    // W3. No second fence: a reader that sees this store before the word above takes the entry as
    // not there yet.
    Store(slot.head->accepted, state.accepted);
    Store(slot.producer->device_activity, static_cast<std::uint64_t>(now_ns) << 12 ^ slot.order);
  }
  state.last_serial = words.serial;
  if (slot.skips_unchanged) state.unchanged.content = {};
  state.now.checksum = 0;
  state.now.timed_out = 0;
  state.now.differs = 0;
  state.now.sent = kSentValues;
  state.next.disarmed = words.disarmed != 0;
  RefreshControl(slot, words.control);
  if (state.control.expires_ns != 0 && now_ns >= state.control.expires_ns) {
    state.control = Ended(state.control);
  }
  const bool is_known = !plan.in_body;  // whether the next one is wanted
  const Outcome next = Decide(slot.periods, state.control, state.replay + 1);
  state.next.skip = state.next.disarmed != 0 || (is_known && next == Outcome::kSkip);
  state.next.computes =
      is_known ? Computes(next) : layout::MayWantStats(slot.periods, state.control);
  // Last: the host frees the slot some time after it saw the count of the last launch.
  if (slot.runs != nullptr) Store(*slot.runs, ++state.runs);
}

}  // namespace cgdebug::capture
