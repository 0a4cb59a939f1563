// ring_layout.h: every byte that one slot shares with the daemon.
//
// A slot is (probe, capture id, invocation): one call of a probe in one captured graph, or the
// eager calls of a probe with one shape. Its tensor size is fixed, so its ring is K equal entries
// with one writer and one reader: no allocator, no compare-and-swap, no lock.
//
//   slot block := SlotRegistration | SlotHead | SlotCredit | SlotVerdict | SlotHistory
//                 | SlotFailure | EntryHeader[K] | payload[K]
//                 | DeviceWindow | WindowRequest | one tensor        (kSlotOnDevice)
//
//   writer  what                order                     what its reader knows (partner)
//   probe   registration        before the directory (D1) it is whole (D2, segment_layout.h)
//   replay  entry word Filling  store, then fence    (W2) a changed word rejects the copy (R2)
//   replay  entry word Ready    store-release        (W1) the payload is complete (R1)
//   replay  head.accepted       store-release        (W3) entries up to it were Ready (R3)
//   replay  failure.order       store, after fence (X1) the rest of it is complete (X2)
//   replay  window word Ready   store-release        (V1) the tensor in the window is complete (V2)
//   daemon  request.ordinal     store-release        (V3) its order is this slot's (V4)
//   daemon  verdict.version     store-release,            its numbers are complete (acquire)
//                               before W4
//   daemon  first NaN, Inf      order last, before W4
//   daemon  losses in a credit  before W4
//   daemon  credit.consumed     store-release        (W4) the entry may be overwritten, and the
//                                                         verdict covers it (R4)
//
//   Readers use load-acquire; R2 is an acquire fence followed by a second look at the word.
//
// An entry's `ordinal` n counts accepted snapshots from 1; entry n lies at index (n - 1) % K, and
// its word carries n, so a reader that asks for n recognises an entry that was overwritten.
// `replay` counts the runs of the slot from 1. A replay that no action wanted (`every`) has a
// number but no ordinal.
//
// A slot in the body of a conditional node (IF, WHILE) runs 0 to n times in one replay of its
// graph. Its `replay` counts the replays of the root graph, and `iteration` its own runs within
// that replay, from 0. A replay in which the body did not run has no entry, and is no loss.
//
// An eager slot with kSlotInBody counts calls: `replay` is the number of the call in the process,
// from 1, which all slots share that ran in it, `step` is the one that was set when the call began,
// and `iteration` counts the slot's own runs within the call. Other eager slots count their own
// runs.
//
// Each slot of a graph counts its own replays, so the numbers of two graphs do not say which came
// first. `serial` does: it is the time at which the replay began, in ns since the epoch, by a clock
// that the process sets once and that never jumps. The slots of one replay of a graph share it, and
// each replay of the process has its own, so (serial, order) sorts all snapshots of a process. Each
// further iteration of a body takes a new one, which what runs after it in that replay shares. Its
// lowest bits say who took it (serial.h).
//
// With kSlotOnDevice the values stay in a ring of `device_capacity` tensors in the memory of the
// device. An entry then has a header, and statistics if they are wanted. A value travels through
// the window, one at a time, when the daemon asks for its ordinal or wants all of them.
//
// With kSlotSkipsUnchanged a tensor that equals the one before it is not sent again: its entry has
// a header of its own and the same payload. So payloads are counted by themselves (EntryHeader::
// reference), and payload n lies at place (n - 1) % K. The payload of an entry is whole as long as
// its header is: an entry adds at most one payload, so the one that takes the place of payload n
// belongs to an entry that comes K or more after the last one with payload n.
//
// Rules: fixed-width integers only, offsets never pointers, little-endian, no bool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <type_traits>

#include "proto/layout/dtype.h"

namespace cgdebug::layout {

inline constexpr std::size_t kCacheLineBytes = 64;
inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kMaxDims = 16;
// Limits of one slot; a reader refuses more.
inline constexpr std::uint64_t kMaxPayloadBytes = std::uint64_t{1} << 44;
inline constexpr std::uint32_t kMaxCapacity = 1u << 20;
inline constexpr std::size_t kMaxNameBytes = 255;  // a probe's name, without the terminating zero
inline constexpr std::size_t kMaxShardBytes = 511;
inline constexpr std::size_t kMaxOpBytes = 511;
inline constexpr std::size_t kMaxPartBytes = 383;
inline constexpr std::size_t kMaxGraphLabelBytes = 63;  // likewise
inline constexpr std::size_t kVerdictTextBytes = 888;

// --- the entry -------------------------------------------------------------------------------

// The name at `place`, which may come from another process.
template <std::size_t kCount>
constexpr std::string_view NameAt(const std::string_view (&names)[kCount], std::size_t place) {
  return place < kCount ? names[place] : "unknown";
}

enum class EntryState : std::uint8_t { kFree = 0, kFilling = 1, kReady = 2 };

constexpr std::uint64_t EntryWord(std::uint64_t ordinal, EntryState state) {
  return ordinal << 8 | static_cast<std::uint64_t>(state);
}
constexpr std::uint64_t EntryOrdinal(std::uint64_t word) { return word >> 8; }
inline constexpr std::uint64_t kMaxOrdinal = EntryOrdinal(~std::uint64_t{0});

inline constexpr std::uint32_t kEntryHasChecksum = 1u << 0;
// The payload is a DeviceStats (device_stats.h): the values stayed on the GPU.
inline constexpr std::uint32_t kEntryIsStats = 1u << 1;
// The live control wants only the statistics, and the lane cannot compute them itself.
inline constexpr std::uint32_t kEntryDropValues = 1u << 2;
// The same, unless the live control's trigger holds for these values.
inline constexpr std::uint32_t kEntryTriggered = 1u << 3;
// Written because of the live control: sinks treat it as wanted, whatever their period is.
inline constexpr std::uint32_t kEntryForced = 1u << 4;
// The values are in the ring in device memory. With kEntryIsStats the payload is their statistics,
// without it there is none.
inline constexpr std::uint32_t kEntryOnDevice = 1u << 5;
// With kSlotComparesOnDevice: the GPU has found that the values do not match.
inline constexpr std::uint32_t kEntryDiffers = 1u << 6;

struct alignas(kCacheLineBytes) EntryHeader {
  std::uint64_t word;         // EntryWord; the commit
  std::uint64_t replay;       // from 1; of the root graph, if the slot is in a body
  std::int64_t timestamp_ns;  // CLOCK_REALTIME of the commit; a GPU drifts from it
  std::int64_t step;          // the user's own step marker, -1 when none was set
  // With kEntryHasChecksum: the payload's checksum (ring/payload_checksum.h) plus HeaderSum().
  // Every entry of the direct lane has one.
  std::uint64_t checksum;
  std::uint32_t flags;
  std::uint32_t iteration;  // with kSlotInBody: of the slot within the replay, from 0; else 0
  std::uint64_t serial;     // of the replay
  // With kCompareProbe, of an eager call: the ordinal of the other slot's entry; 0 = it kept none.
  // With kSlotSkipsUnchanged: the number of its payload, from 1, which may be that of the entry
  // before it.
  std::uint64_t reference;
};

// The header's part of a checksum: each field times an odd number of its own, so that a field of an
// older entry cannot be mistaken for this entry's. `payload`: its number with kSlotSkipsUnchanged,
// else 0.
constexpr std::uint64_t HeaderSum(std::uint64_t ordinal, std::uint64_t replay,
                                  std::int64_t timestamp_ns, std::int64_t step,
                                  std::uint64_t serial, std::uint32_t flags,
                                  std::uint32_t iteration, std::uint64_t payload = 0) {
  return ordinal * 0x9e3779b97f4a7c15 + replay * 0xbf58476d1ce4e5b9 +
         static_cast<std::uint64_t>(timestamp_ns) * 0x94d049bb133111eb +
         static_cast<std::uint64_t>(step) * 0xd6e8feb86659fd93 + serial * 0xc4ceb9fe1a85ec53 +
         flags * 0xff51afd7ed558ccd + iteration * 0xc2b2ae3d27d4eb4f + payload * 0x9fb21c651e98df25;
}

// --- the window of a ring in device memory ----------------------------------------------------

// Written by the producer: by a replay or, when none can be under way, by its host code.
struct alignas(kCacheLineBytes) DeviceWindow {
  std::uint64_t word;      // EntryWord of the snapshot whose values are in the window (V1)
  std::uint64_t checksum;  // of the payload, plus WindowSum()
  std::uint64_t refused;   // the newest ordinal asked for that the device had overwritten
  std::uint64_t reserved[5];
};
static_assert(sizeof(DeviceWindow) == 64);

// Written by the daemon only.
struct alignas(kCacheLineBytes) WindowRequest {
  // Whose values are wanted; 0 = none (V3). kWantsNewest plus any number that was not used before:
  // once, those of the newest entry there is then.
  std::uint64_t ordinal;
  std::uint64_t order;  // as SlotCredit::order
  std::uint64_t every;  // 1 = the values of every new entry are wanted
  std::uint64_t reserved[5];
};
static_assert(sizeof(WindowRequest) == 64);
inline constexpr std::uint64_t kWantsNewest = std::uint64_t{1} << 63;

// The slot's order is in it, because the block may have been another slot's.
constexpr std::uint64_t WindowSum(std::uint64_t ordinal, std::uint64_t order) {
  return ordinal * 0xa0761d6478bd642f + order * 0xe7037ed1a0b428db;
}

// --- control lines of a slot -------------------------------------------------------------------

// Written by the slot's one writer only.
struct alignas(kCacheLineBytes) SlotHead {
  std::uint64_t accepted;          // ordinal of the newest Ready entry (W3)
  std::uint64_t replay;            // the newest one seen, whether it had an entry or not
  std::uint64_t overwrote_unread;  // entries given up unread, policy kWait
  std::uint64_t waits;             // times the writer waited for a free entry
  std::uint64_t wait_ns;           // time spent in them
  std::int64_t last_timestamp_ns;
  std::uint64_t disarmed;    // 1 = the probe was closed; written by the producer's host code only
  std::uint64_t suppressed;  // replays that an action wanted but the live control left out
  // Written if the slot is in the body of a conditional node; else 0.
  std::uint64_t graph_replays;  // replays of the root graph that began; written at its start
  std::uint64_t taken;          // of those, the ones in which the body ran
  // Written if the slot is a page of an op log in a graph: the page's newest launch that began, as
  // a ReachedWord (op_log_layout.h), and when it began (CLOCK_REALTIME); else 0. Relaxed.
  std::uint64_t reached;
  std::int64_t reached_ns;
  // With kSlotComparesOnDevice: replays that matched and have no entry; all that were compared, and
  // of those the ones that did not match.
  std::uint64_t passed;
  std::uint64_t compared;
  std::uint64_t failed;
  // With kSlotSkipsUnchanged: snapshots that were not sent again.
  std::uint64_t unchanged;
};

// Written by the daemon only.
struct alignas(kCacheLineBytes) SlotCredit {
  std::uint64_t consumed;  // ordinal up to which every entry was consumed or counted as lost (W4)
  std::uint64_t reserved;
  std::uint64_t control;  // live control (slot_control.h); 0 = as registered
  std::uint64_t order;    // SlotRegistration::order of the slot that this line is about: a daemon
                          // stopped in mid-store may wake up when the block is another slot's
  std::uint64_t control_from;       // the control holds for replays from..until
  std::uint64_t control_until;      // 0 = without end
  std::int64_t control_expires_ns;  // CLOCK_REALTIME after which it does not hold; 0 = never
  double control_threshold;         // of the trigger
};

enum class VerdictState : std::uint32_t { kNone = 0, kPass = 1, kFail = 2, kError = 3 };
constexpr std::string_view NameOf(VerdictState state) {
  constexpr std::string_view kNames[] = {"none", "pass", "fail", "error"};
  return NameAt(kNames, static_cast<std::size_t>(state));
}

struct VerdictNumbers {
  std::uint32_t state;  // VerdictState; a failure is sticky
  std::uint32_t text_bytes;
  std::uint64_t compared;             // snapshots compared
  std::uint64_t mismatched;           // of those, the ones that failed
  std::uint64_t lost;                 // snapshots that could not be compared
  std::uint64_t first_failed_replay;  // 0 when none failed
  std::uint64_t covered_replay;       // every replay up to this one is in the counts above
  std::uint64_t order;                // as SlotCredit::order
  std::uint64_t text_sum;             // TextSum() of the text
};

// Written by the daemon only: the numbers that `version` does not name, and then the version. So a
// daemon that is killed while it writes leaves the verdict before. The text, of which there is no
// room for two, has a checksum. It changes before the numbers that belong to it.
struct alignas(kCacheLineBytes) SlotVerdict {
  std::uint64_t version;
  VerdictNumbers numbers[2];     // those of `version` % 2 hold
  char text[kVerdictTextBytes];  // of the first failure, UTF-8, not terminated
};

// FNV-1a (Fowler, Noll, Vo).
inline std::uint64_t TextSum(std::string_view text) {
  std::uint64_t sum = 0xcbf29ce484222325;
  for (const char c : text) sum = (sum ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return sum;
}

// Each written once. `order` is stored last: if it is 0 or another slot's (SlotCredit::order),
// there was none.
struct SlotFirst {
  std::uint64_t replay;
  std::int64_t step;     // as EntryHeader::step
  std::uint64_t count;   // elements
  std::uint64_t serial;  // as EntryHeader::serial
  std::uint64_t order;
};
// How many of the entries that a credit covers were overwritten before they could be read. It holds
// only for the credit with this `consumed` and `order`.
struct SlotLost {
  std::uint64_t consumed;  // SlotCredit::consumed
  std::uint64_t lost;
  std::uint64_t order;
};

// Written by the daemon only, for daemons that come after it.
//
// Why two counts of losses: the count and the credit cannot be stored in one step. The daemon
// writes the one that the current credit does not use, then moves the credit. If it is killed in
// between, the next daemon still finds the count of the current credit, so no loss is counted
// twice.
struct alignas(kCacheLineBytes) SlotHistory {
  SlotFirst nan;
  SlotFirst inf;
  SlotLost lost[2];
};

// With kSlotComparesOnDevice: the first replay that did not match. Written once, by the GPU. A
// difference is a double, or for the dtype int64 an unsigned integer; NaN is the greatest. Indexes
// are flat.
struct alignas(kCacheLineBytes) SlotFailure {
  std::uint64_t order;  // stored last (X1, X2): if it is not the slot's, none has failed yet
  std::uint64_t replay;
  std::uint64_t mismatched;  // elements
  std::uint64_t first;       // of them
  std::uint64_t actual;      // its bits
  std::uint64_t expected;    // likewise
  std::uint64_t max_abs;     // the greatest difference
  std::uint64_t max_abs_index;
  std::uint64_t max_rel;  // a double: the difference over the magnitude of the expected element
  std::uint64_t max_rel_index;
  std::uint64_t reserved[6];
};
static_assert(sizeof(SlotFailure) == 128);

// --- registration ------------------------------------------------------------------------------

enum class Policy : std::uint8_t {
  kOverwrite = 0,  // a flight recorder: the writer never waits
  kWait = 1,       // the writer waits for a free entry, with a deadline, while a daemon is alive
};
constexpr std::string_view NameOf(Policy policy) {
  constexpr std::string_view kNames[] = {"overwrite", "wait"};
  return NameAt(kNames, static_cast<std::size_t>(policy));
}
enum class Lane : std::uint8_t { kHost = 0, kCallback = 1, kDirect = 2 };
constexpr std::string_view NameOf(Lane lane) {
  constexpr std::string_view kNames[] = {"host", "callback", "direct"};
  return NameAt(kNames, static_cast<std::size_t>(lane));
}
enum class DeviceType : std::uint8_t { kCpu = 0, kCuda = 1 };

inline constexpr std::uint32_t kActionPrint = 1u << 0;
inline constexpr std::uint32_t kActionRecord = 1u << 1;
inline constexpr std::uint32_t kActionCompare = 1u << 2;
inline constexpr std::uint32_t kActionStats = 1u << 3;
inline constexpr std::uint32_t kActionRecordToDisk = 1u << 4;
// By the number of their bit.
inline constexpr std::string_view kActionNames[] = {"print", "record", "compare", "stats"};

inline constexpr std::uint32_t kPrintSummary = 1u << 0;
inline constexpr std::uint32_t kCompareEqualNan = 1u << 1;
inline constexpr std::uint32_t kSourceNonContiguous = 1u << 2;  // packed before it was copied
inline constexpr std::uint32_t kCompareBitwise = 1u << 3;
// Every entry is a DeviceStats and payload_bytes is its size; dtype and shape are the tensor's.
inline constexpr std::uint32_t kSlotHoldsStats = 1u << 4;
inline constexpr std::uint32_t kStatsWithoutHash = 1u << 5;
// A recording waited for the job when the slot was made, so the slot is lossless until the daemon
// says otherwise (slot_control.h).
inline constexpr std::uint32_t kSlotLossless = 1u << 6;
// Every entry is a page of an op log (op_log_layout.h): shape is rows x 128 bytes.
inline constexpr std::uint32_t kSlotHoldsOpLog = 1u << 7;
// It runs any number of times in a replay: it lies in the body of a conditional node or, if it is
// eager, it counts calls (see above).
inline constexpr std::uint32_t kSlotInBody = 1u << 8;
// Its values stay in device memory until somebody asks for them.
inline constexpr std::uint32_t kSlotOnDevice = 1u << 9;
// The GPU compares each replay with the expected tensor. An entry is one that may not match: the
// daemon compares it.
inline constexpr std::uint32_t kSlotComparesOnDevice = 1u << 10;
// The slot's first snapshot is the expected tensor of the others, and there is no other one.
inline constexpr std::uint32_t kCompareFirst = 1u << 11;
// Another slot's snapshot of the same replay is the expected tensor (SlotRegistration::reference).
inline constexpr std::uint32_t kCompareProbe = 1u << 12;
// Others are compared with it.
inline constexpr std::uint32_t kSlotIsReference = 1u << 13;
// A tensor that equals the one before it is not sent again.
inline constexpr std::uint32_t kSlotSkipsUnchanged = 1u << 14;
// The leaf reads the tensor itself: the user has promised that nothing writes it until the replay
// ends.
inline constexpr std::uint32_t kSlotUnstaged = 1u << 15;
// Code that torch.compile made handed the tensor over.
inline constexpr std::uint32_t kSlotCompiled = 1u << 16;

// Why a slot is not in the direct lane; texts in libprobe/README.md.
enum class LaneReason : std::uint8_t {
  kNone = 0,
  kAsked = 1,          // lane="callback"
  kNotBuilt = 2,       // no kernels for the device, or no CUDA compiler when cgdebug was built
  kNoMapping = 3,      // the device cannot map the host's memory
  kNotRegistered = 4,  // cudaHostRegister refused: locked-memory limit
  kEager = 5,          // not in a graph
};
// For people; empty where there is nothing to say.
constexpr std::string_view TextOf(LaneReason reason) {
  constexpr std::string_view kTexts[] = {
      "",
      "asked for",
      "cgdebug has no kernels for it: built without nvcc, or for other devices",
      "the device cannot map memory of the host",
      "shared memory cannot be locked: ulimit -l unlimited",
      "eager call"};
  const auto place = static_cast<std::size_t>(reason);
  return place < std::size(kTexts) ? kTexts[place] : "";
}

// The numbers of a registration.
struct SlotFacts {
  std::uint64_t probe_id;    // unique in the process
  std::uint64_t graph_id;    // cudaStreamGetCaptureInfo's id; 0 = eager
  std::uint32_t invocation;  // which call of the probe in the capture, from 0
  std::uint32_t actions;     // kAction* bits
  std::uint32_t flags;       // kPrintSummary ...
  std::uint16_t dtype;       // Dtype
  std::uint8_t dims;
  std::uint8_t lane;         // Lane
  std::uint8_t policy;       // Policy
  std::uint8_t device_type;  // DeviceType
  std::int16_t device_index;
  std::uint32_t capacity;  // K
  std::uint64_t shape[kMaxDims];
  std::uint64_t payload_bytes;         // of one tensor, contiguous
  std::uint64_t payload_stride_bytes;  // from one entry's payload to the next
  std::uint64_t headers_offset;        // EntryHeader[K], from the start of the block
  std::uint64_t payload_offset;
  std::int64_t created_ns;    // CLOCK_REALTIME
  std::uint32_t print_every;  // 0 = action absent
  std::uint32_t print_max_items;
  std::uint32_t record_every;
  std::uint32_t compare_every;
  double compare_rtol;
  double compare_atol;
  std::uint32_t expected_extent;  // where the expected tensor lies: extent, offset in it;
                                  // same dtype, shape and bytes as the slot's payload
  std::uint32_t table_bytes;      // with kSlotHoldsOpLog the table of rows lies there instead
  std::uint64_t expected_offset;
  std::uint32_t wait_deadline_ms;
  // Of an eager slot that counts calls: the thread on which they began, as a number in the process.
  // 1 is the main one; a number is used again when its thread has ended. 0: of no call.
  std::uint32_t thread;
  std::uint64_t order;          // of registration in the process, from 1: graph order
  std::uint32_t stats_every;    // 0 = action absent
  std::uint8_t lane_reason;     // LaneReason
  std::uint8_t trigger;         // ControlTrigger (slot_control.h) that freezes the job's rings
  std::uint16_t trigger_times;  // it does so if they were frozen less often than that
  // With kSlotOnDevice: entries of the ring in device memory whose values are whole, and the bytes
  // that it takes there.
  std::uint32_t device_capacity;
  std::uint32_t reserved3;
  std::uint64_t device_bytes;
  double trigger_threshold;
  // With kCompareProbe: the slot that this one is compared with.
  std::uint64_t reference_order;
  std::uint32_t reference_index;  // in the directory
  std::uint32_t reserved4;
};

// Written once, before the slot is published. It holds everything a reader needs to interpret the
// ring; a reader takes sizes and offsets ONLY from its validated copy.
struct SlotRegistration : SlotFacts {
  char name[kMaxNameBytes + 1];
  char site[kMaxNameBytes + 1];  // "file.py:12", empty when unknown
  // The user's label of the graph, or empty. Several graphs may have the same label.
  char graph_label[kMaxGraphLabelBytes + 1];
  std::uint8_t reserved[128];
  // Which part of a distributed tensor this is, as text (python/cgdebug/sharding.py); empty if it
  // is not part of one.
  char shard[kMaxShardBytes + 1];
  // For a row of an op log: its number, the op that wrote it and the numbers of the rows that the
  // op read, as in "17 aten.mm.default 3 5". It ends in " ..." if some of those are left out. Empty
  // if the slot is not a row of an op log.
  char op[kMaxOpBytes + 1];
  // Which elements of the tensor the slot has, and the shape of the whole one, as in
  // "rows:0:8 of [8192,4096]" (libprobe/slots/tensor_part.h). `shape` is then the shape of the
  // part. Empty if the slot has all of them.
  char part[kMaxPartBytes + 1];
};

// Offsets in a slot block. The parts before the entries take 3904 bytes, of which 1984 are texts of
// the registration and 888 that of the verdict. A block is whole pages, because large payloads are
// aligned to pages, and readers refuse a smaller one (GeometryOf). So a ring with one entry of up
// to 64 bytes takes 4 KiB, and one with two takes 8: less needs shorter texts, or another major.
inline constexpr std::size_t kSlotHeadOffset = sizeof(SlotRegistration);
inline constexpr std::size_t kSlotCreditOffset = kSlotHeadOffset + sizeof(SlotHead);
inline constexpr std::size_t kSlotVerdictOffset = kSlotCreditOffset + sizeof(SlotCredit);
inline constexpr std::size_t kSlotHistoryOffset = kSlotVerdictOffset + sizeof(SlotVerdict);
inline constexpr std::size_t kSlotFailureOffset = kSlotHistoryOffset + sizeof(SlotHistory);
inline constexpr std::size_t kSlotHeadersOffset = kSlotFailureOffset + sizeof(SlotFailure);

static_assert(sizeof(EntryHeader) == 64);
static_assert(sizeof(SlotHead) == 128);
static_assert(sizeof(SlotCredit) == 64);
static_assert(sizeof(SlotVerdict) == 1024);
static_assert(sizeof(SlotHistory) == 128);
static_assert(sizeof(SlotRegistration) == 2432);
static_assert(std::is_trivially_copyable_v<SlotFacts>);
static_assert(kSlotHeadersOffset == 3904 && kSlotHeadersOffset % kCacheLineBytes == 0);
static_assert(std::is_trivially_copyable_v<SlotRegistration>);

// Whether an action with this period wants `replay`: it wants 1, 1 + every, ...
constexpr bool Wants(std::uint32_t every, std::uint64_t replay) {
  return every == 1 || (every != 0 && (replay - 1) % every == 0);  // a GPU divides in software
}

// How many replays up to `replay` it wants.
constexpr std::uint64_t WantedUpTo(std::uint32_t every, std::uint64_t replay) {
  return every == 0 || replay == 0 ? 0 : (replay - 1) / every + 1;
}

// Where a block's parts lie for a given tensor: the writer allocates by it, the reader checks by
// it.
struct SlotGeometry {
  std::uint64_t payload_stride_bytes;
  std::uint64_t headers_offset;
  std::uint64_t payload_offset;
  std::uint64_t window_offset;  // of a ring in device memory; else the end of the payloads
  std::uint64_t block_bytes;
};

inline constexpr std::size_t kStatsBytes = 128;  // sizeof(DeviceStats)
// Entries of a ring of statistics: two pages with the rest.
inline constexpr std::uint32_t kStatsCapacity = 22;
// The same if the ring loses nothing: its writer seldom waits for the daemon.
inline constexpr std::uint32_t kLosslessStatsCapacity = 256;
inline constexpr std::size_t kWindowPayloadOffset = sizeof(DeviceWindow) + sizeof(WindowRequest);

constexpr std::uint64_t AlignUp(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

// Requires: capacity > 0, and payload_bytes * capacity does not overflow (callers limit both).
constexpr SlotGeometry ComputeGeometry(std::uint64_t payload_bytes, std::uint32_t capacity) {
  const std::uint64_t alignment = payload_bytes >= kPageBytes ? kPageBytes : kCacheLineBytes;
  SlotGeometry g{};
  g.payload_stride_bytes = AlignUp(payload_bytes, alignment);
  g.headers_offset = kSlotHeadersOffset;
  g.payload_offset = AlignUp(g.headers_offset + capacity * sizeof(EntryHeader), alignment);
  g.window_offset = g.payload_offset + capacity * g.payload_stride_bytes;
  g.block_bytes = AlignUp(g.window_offset, kPageBytes);
  return g;
}

constexpr SlotGeometry GeometryOf(const SlotFacts& r) {
  if ((r.flags & kSlotOnDevice) == 0) return ComputeGeometry(r.payload_bytes, r.capacity);
  SlotGeometry g = ComputeGeometry(kStatsBytes, r.capacity);
  const std::uint64_t value_bytes = AlignUp(r.payload_bytes, kCacheLineBytes);
  g.block_bytes = AlignUp(g.window_offset + kWindowPayloadOffset + value_bytes, kPageBytes);
  return g;
}

// Where payload `number`, from 1, lies in a ring of `capacity` payloads.
constexpr std::uint64_t PlaceOfPayload(std::uint64_t number, std::uint32_t capacity) {
  return (number - 1) % capacity;
}

// The oldest ordinal whose values a ring in device memory still has whole, if `newest` is the
// newest. The ring has one more entry, which the next replay writes.
constexpr std::uint64_t OldestOnDevice(std::uint64_t newest, std::uint32_t device_capacity) {
  return newest > device_capacity ? newest - device_capacity + 1 : 1;
}

}  // namespace cgdebug::layout
