// direct_kernels.h: the arguments of the direct lane's kernels, and which kernel serves which
// tensor. The kernels are in direct_kernels.cu; direct_lane.h says how they fit into a graph.
#pragma once

#include <cstddef>
#include <cstdint>

#include "libprobe/capture/kernels/content_hash.h"
#include "proto/layout/device_stats.h"
#include "proto/layout/segment_layout.h"
#include "proto/layout/slot_control.h"

namespace cgdebug::capture {

// What the slots in the bodies of conditional nodes share, one per root graph and device. A kernel
// at the head of the root graph writes it in every replay, whether a body runs or not. In device
// memory.
struct RootTick {
  static constexpr std::size_t kMaxHeads = 1000;
  std::uint64_t replay;  // of the root graph, from 1
  std::uint64_t serial;  // of the replay, unless leaves of the root graph had a word for it before
  std::uint64_t head_count;
  layout::SlotHead* heads[kMaxHeads];  // of those slots: each learns how often the graph replayed
};

// Where the launches of an op log's page tell that they began (SlotHead::reached).
struct RowsHead {
  layout::SlotHead* head;
  std::int64_t clock_offset_ns;  // as DirectSlot
};

// One slot's own counters, in device memory: the GPU counts here, because it cannot count in host
// memory (no read-modify-write over PCIe), and stores the results there. Starts as zeros. Only the
// slot's leaf writes it, after all its blocks have finished with it; but see `unchanged.content`.
struct alignas(256) DirectState {
  std::uint64_t replay;
  std::uint64_t accepted;
  std::uint64_t index;  // of the next entry: accepted modulo capacity, without a division
  std::uint64_t suppressed;
  std::uint64_t last_serial;  // of the last replay
  std::uint64_t passed;       // comparisons on the device
  std::uint64_t runs;         // of the leaf, those of a closed probe included
  struct Now {                // about the replay under way
    std::uint64_t checksum;   // the blocks' parts, added up
    std::uint32_t blocks_done;
    std::uint32_t timed_out;
    std::uint32_t sent;     // kSent...
    std::uint32_t differs;  // its comparison has not passed
  } now;
  struct Next {              // for the next replay
    std::uint32_t skip;      // nobody wants it: the compute path need not even copy
    std::uint32_t computes;  // its statistics are wanted, or may be
    std::uint32_t disarmed;
  } next;
  struct Waits {  // for room in the ring
    std::uint64_t count;
    std::uint64_t ns;
    std::uint64_t overwrote_unread;
    std::uint64_t gave_up;  // layout::GaveUpMark() of the last one that failed; 0 = none
  } waits;
  // The serial of the current replay, for all leaves of the capture on this device; kept in the
  // state of the first of them.
  std::uint64_t shared_serial;
  std::uint64_t control_word;  // as `control` was read
  layout::SlotControl control;
  struct Digest {  // of the newest statistics, for ControlTrigger::kChanged
    std::uint64_t value;
    std::uint32_t is_known;
  } digest;
  struct Body {               // the slot is in the body of a conditional node
    std::uint64_t taken;      // replays of the root graph in which the slot ran
    std::uint32_t iteration;  // of its last run within that replay
  } body;
  struct Ring {                 // the slot has a ring in device memory (device_ring.h)
    std::uint64_t index;        // of the entry that the next replay writes
    std::uint64_t wanted;       // the ordinal whose values the next leaf sends; 0 = none
    std::uint64_t asked;        // the daemon's last request, as it was read
    std::uint32_t wants_every;  // the leaves send the values of every entry
    std::uint32_t frozen;       // the staging kernel left this replay out
  } ring;
  struct Unchanged {         // the slot skips unchanged tensors
    ContentHash content;     // of the replay under way; the kernel in front of the leaf adds it up
    ContentHash sent;        // of the newest payload, if `may_skip`
    std::uint64_t checksum;  // of that payload
    std::uint64_t payloads;  // sent so far: the number of the newest
    std::uint64_t place;     // of the next one: `payloads` modulo capacity
    std::uint64_t count;     // tensors that were not sent again
    std::uint64_t may_skip;  // the newest payload is a tensor, not statistics
  } unchanged;
  struct Page {                     // of an op log, for the launches before the leaf
    RowsHead rows;                  // written when the leaf is captured
    std::uint32_t blocks_done[64];  // by tensor of the batch under way, whose blocks count
  } page;
  // State of the next slot that reads the same parts (shared_parts.h); null: none.
  const DirectState* next_sharer;
};
static_assert(sizeof(DirectState) == 768);

// One per device: a daemon that hangs costs one deadline in total, not one per replay and slot. A
// slot that it does not read costs at most one (DirectState::Waits::gave_up).
struct DirectGate {
  std::uint64_t gave_up_at_progress;
  // The rings in device memory (device_ring.h).
  std::uint64_t frozen_at;      // serial of the last replay that they keep; 0 = they go on
  std::uint64_t fired;          // how often a registered trigger stopped them
  std::uint64_t stopped;        // ThawLine::stop that they have obeyed
  std::uint64_t thawed_in;      // serial of the replay in which they went on
  std::uint64_t newest_serial;  // of all graphs; its lowest bits are the device's
};

// What the blocks of a comparison find in one replay. A difference is the bits of a double, or for
// int64 an unsigned integer.
struct alignas(16) CompareFinding {
  std::uint64_t replay;      // 0, or that of a replay before: this block has found nothing
  std::uint64_t mismatched;  // elements
  std::uint64_t first;
  std::uint64_t max_abs, max_abs_index;
  std::uint64_t max_rel, max_rel_index;
  std::uint64_t reserved;
};
inline constexpr int kMostCompareBlocks = 1024;
// What a slot that compares on the device keeps in device memory. Starts as zeros.
struct CompareState {
  std::uint64_t compared;  // replays; written by the leaf
  std::uint64_t failed;    // likewise
  const std::byte* expected;
  std::uint64_t finding_count;                  // one for each block
  CompareFinding findings[kMostCompareBlocks];  // of the first replay that does not match
};

// Where one slot lies, as its device addresses it.
struct DirectSlot {
  DirectState* state;
  std::uint64_t* shared_serial;
  const RootTick* tick;  // in the body of a conditional node, else null
  DirectGate* gate;
  layout::SlotHead* head;
  const layout::SlotCredit* credit;
  layout::EntryHeader* headers;
  std::byte* payloads;
  layout::ProducerLine* producer;
  const layout::ConsumerLine* consumer;
  const layout::Refusal* refusal;  // this slot's word of the table
  const std::int64_t* step;        // in stream order; kNoStep until one was set
  std::uint64_t* runs;             // DirectState::runs for the host; null if it does not ask
  layout::Periods periods;
  std::uint32_t capacity;
  std::uint64_t payload_stride_bytes;
  std::uint64_t order;
  std::uint64_t deadline_ns;     // of a wait for room
  bool waits;                    // for room, even if no recording needs every snapshot
  CompareState* compare;         // on the device: replays that pass send nothing; else null
  layout::SlotFailure* failure;  // with `compare`
  bool skips_unchanged;
  bool compares_first;            // with the first replay that is sent
  std::int64_t clock_offset_ns;   // from the GPU's clock to CLOCK_REALTIME
  std::int64_t serial_offset_ns;  // from the GPU's clock to the clock of serials
  std::uint32_t serial_taker;     // layout::SerialTakerOf()
};

inline constexpr std::uint32_t kSentValues = 0;
inline constexpr std::uint32_t kSentStats = 1;
inline constexpr std::uint32_t kSentUnwanted = 2;  // values, no larger than their statistics

inline constexpr std::int64_t kNoStep = INT64_MIN;
inline constexpr int kLeafThreads = 512;
inline constexpr int kStageThreads = 256;
inline constexpr int kStatsThreads = 256;
inline constexpr int kStatsBlocksPerMultiprocessor = 4;
inline constexpr int kTensorCoreBlocksPerMultiprocessor = 2;
inline constexpr int kTensorCoreVectors = 8;  // of 16 bytes, that a lane adds at a time
inline constexpr int kStatsLeafThreads = 256;
inline constexpr int kMostLeafBlocks = 16;
// A leaf sends with one block: each block that runs beside a matmul keeps a multiprocessor from it,
// and those that form a cluster with it (tools/bench/RESULTS.md, "Large values"). With more
// threads, two such leaves delay copies on the compute path.
inline constexpr int kSendingThreads = 256;

// On the compute path: copies the tensor into the probe's own memory, `unit` bytes at a time (1, 2,
// 4, 8 or 16), to which `from` is aligned.
struct StageArgs {
  const std::byte* from;
  std::byte* to;  // aligned to 256
  std::uint64_t bytes;
  const DirectState* state;
  std::uint64_t from_stride;  // of GatherKernel: from one unit of `from` to the next, in units
};
const void* StageKernel(int unit);   // void(StageArgs)
const void* GatherKernel(int unit);  // likewise; a unit is an element

// On the compute path of a probe that compares on the device: stages the tensor as StageKernel
// does, and says in state->now.differs if an element is not close to the expected one. Of the first
// replay with such elements it says how far they are.
struct CompareArgs {
  const std::byte* from;
  std::byte* expected;  // aligned to 256
  std::byte* to;        // likewise
  std::uint64_t count;  // of elements
  double rtol, atol;
  float sure_rtol, sure_atol;  // a pair within these is within rtol and atol, whatever the rounding
  bool equal_nan;
  bool bitwise;
  bool vectors;  // `from` is aligned to 16
  bool first;    // the first replay that the slot accepts becomes the expected tensor
  bool scalar;   // it has no dimensions
  DirectState* state;
  CompareState* compare;
};
inline constexpr int kCompareThreads = 256;
const void* CompareKernel(layout::Dtype dtype);  // void(CompareArgs), kMostCompareBlocks at most

// On the compute path of a probe that wants only statistics.
struct StatsArgs {
  const std::byte* from;
  std::uint64_t count;
  layout::DeviceStats* parts;
  const DirectState* state;
  bool follows;   // directly another kernel of these
  bool followed;  // directly by another one; set when that is captured
};
const void* StatsKernel(layout::Dtype dtype);  // void(StatsArgs), kStatsThreads. A part per warp
// For large bfloat16 tensors (tensor_core_sums.cuh). A part per block.
const void* TensorCoreStatsKernel();  // void(StatsArgs), kStatsThreads

// In front of the leaf of a slot that skips unchanged tensors: adds up state->unchanged.content.
struct HashArgs {
  const std::byte* from;  // aligned to 16, readable to the next 16
  std::uint64_t bytes;
  DirectState* state;
};
inline constexpr int kHashThreads = 256;
const void* HashKernel();  // void(HashArgs)

// The leaf: sends the staged values or their statistics, whichever the actions and the control
// want. All blocks compute statistics; the last one to finish decides and sends alone.
struct LeafArgs {
  DirectSlot slot;
  const std::byte* staging;  // or the tensor itself, if that is stable
  std::uint64_t bytes;
  std::uint64_t count;
  layout::DeviceStats* parts;  // one per block, if there are several
  bool hash;
  bool only_stats;  // the slot never has values
};
const void* LeafKernel(layout::Dtype dtype);  // void(LeafArgs)

// The leaf of a probe that wants only statistics: adds the parts up and sends the sum. One block.
struct StatsLeafArgs {
  DirectSlot slot;
  const layout::DeviceStats* parts;
  std::uint32_t part_count;
  bool hash;
  bool starts_early;  // before the kernel in front of it on the compute path ends
  // Of an eager call (eager_calls.h), and the step when it began; 0: the slot counts its own uses.
  std::uint64_t call;
  std::int64_t step_of_call;
};
const void* StatsLeafKernel();  // void(StatsLeafArgs)

// Statistics of an eager call, and their leaf.
struct EagerStatsArgs {
  const std::byte* from;
  std::uint64_t count;
  layout::DeviceStats* parts;  // one for each block
  StatsLeafArgs leaf;          // of these parts
};
const void* EagerStatsKernel(layout::Dtype dtype);  // void(EagerStatsArgs), kStatsThreads

// Where an element lies in a tensor, by its place in memory. The tensor has no gaps, but another
// order of dimensions than memory. They are listed from the one that changes fastest in memory.
struct ElementOrder {
  static constexpr int kMaxDimensions = 4;
  std::uint32_t sizes[kMaxDimensions];
  std::uint32_t strides[kMaxDimensions];  // in elements, if the tensor were in the usual order
};

// Rows of an op log (op_log_lane.h): a part for each block, and a row for each tensor.
struct OpLogBatch {
  struct Tensor {
    const std::byte* from;
    std::uint64_t count;
    std::uint32_t first_block;  // its blocks end at the next tensor's first
    std::uint16_t row;
    std::uint8_t dtype;    // layout::Dtype
    bool is_permuted : 1;  // `order` is set
    bool is_tail : 1;      // the rows behind the first *tail_start alone are read
    ElementOrder order;
  };
  Tensor tensors[64];
  std::uint32_t elements_of_row[64];  // by tensor, if it is a tail
  std::uint32_t count;                // of tensors
  std::uint32_t blocks;
  std::uint32_t launch;  // layout::OpLogRow::launch
  bool to_host;          // the rows lie in host memory, and are there when their flags are
  const std::int64_t* tail_start;
  layout::DeviceStats* parts;
  layout::DeviceStats* rows;
  DirectState* state;
};
static_assert(sizeof(OpLogBatch) <= 4096);  // what a kernel's arguments may take
inline constexpr int kOpLogThreads = 256;
inline constexpr int kOpLogBlocksPerMultiprocessor = 4;
const void* OpLogPartsKernel();  // void(OpLogBatch), kOpLogThreads

const void* ClockKernel();  // void(std::uint64_t* globaltimer_ns)

// At the head of a root graph that has a probe in a conditional body: counts the replay, and gives
// it its serial. One warp.
struct TickArgs {
  RootTick* tick;
  std::uint64_t* shared_serial;  // as DirectSlot
  DirectGate* gate;              // and these
  std::int64_t serial_offset_ns;
  std::uint32_t serial_taker;
};
const void* TickKernel();  // void(TickArgs)
inline constexpr int kTickThreads = 32;

}  // namespace cgdebug::capture
