// segment_layout.h: the control file of a producer and its extents.
//
//   /dev/shm/cgdebug-<uid>-<uuid>      SegmentHeader | ProducerLine, MemoryLine, FreezeLine[]
//                                      | ConsumerLine, ReaderName, ThawLine[] | FindingText[]
//                                      | NotSeenBlock | refusals | directory
//   /dev/shm/cgdebug-<uid>-<uuid>.1    ExtentHeader | slot blocks, expected tensors,
//                                      tables of op logs, the table of graphs
//   /dev/shm/cgdebug-<uid>-<uuid>.2    ...
//
// The first is the control file, the others are its extents.
//
// A producer creates, fills and grows these files and does nothing else: it has no socket and no
// thread. The control file gets its name only when it is complete and locked (it is created under a
// temporary name, then renamed), so no reader ever sees a file that is not ready.
//
// Liveness: the producer holds a POSIX record lock on byte kProducerLockByte of the control file,
// the daemon that reads it holds one on kReaderLockByte. The kernel drops them at death, also after
// SIGKILL, and shows them across PID namespaces. A process opens a control file once: closing
// any other descriptor of the same file would drop its lock.
//
// Versions: a reader refuses another major; a new minor only adds what an old reader may ignore.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/layout/ring_layout.h"

namespace cgdebug::layout {

inline constexpr std::uint64_t kSegmentMagic = 0x3167627564676763;  // "cggdubg1"
inline constexpr std::uint64_t kExtentMagic = 0x3174786567646763;   // "cgdgext1"
inline constexpr std::uint16_t kAbiMajor = 11;
inline constexpr std::uint16_t kAbiMinor = 0;
inline constexpr std::uint32_t kMaxSlots = 1u << 17;
inline constexpr std::uint32_t kRefusals = 16384;  // words
// A control file is as long as its directory can get. Only this many entries at a time are backed
// by memory, so that a small /dev/shm has room for more than a directory.
inline constexpr std::uint32_t kDirectoryStep = 2048;
inline constexpr std::uint32_t kMaxExtents = 4096;  // of one segment; their numbers may be any
inline constexpr std::int64_t kProducerLockByte = 0;
inline constexpr std::int64_t kReaderLockByte = 1;
inline constexpr const char* kShmDirectory = "/dev/shm";
inline constexpr const char* kNamePrefix = "cgdebug-";

// Written once, before the file appears under its name.
struct SegmentHeader {
  std::uint64_t magic;
  std::uint16_t abi_major;
  std::uint16_t abi_minor;
  std::uint32_t header_bytes;   // sizeof(SegmentHeader)
  std::uint64_t control_bytes;  // size of the control file
  std::uint8_t uuid[16];
  std::uint32_t uid;
  std::int32_t pid;               // in the producer's own PID namespace
  std::uint64_t pid_namespace;    // inode of /proc/self/ns/pid; 0 = unknown
  std::uint64_t pid_start_ticks;  // field 22 of /proc/self/stat: tells a reused pid
  std::int64_t created_ns;        // CLOCK_REALTIME
  std::int32_t rank;              // -1 when the job is not distributed
  std::int32_t world_size;
  std::int32_t restart_count;
  std::uint32_t max_slots;  // entries of the directory
  char version[32];         // of the probe library
  char run_id[128];         // the launcher's, empty when none
  char command[512];        // the job's argv, joined with spaces, cut
  char hostname[64];
  char socket[112];  // of the daemon it was told to use (CGDEBUG_SOCKET); empty: any
  // The same number in every rank that one launcher started on this machine, for jobs without a
  // run id; 0 = not distributed, or unknown.
  std::uint64_t launch;
  std::int32_t local_rank;        // -1 = unknown
  std::int32_t local_world_size;  // ranks on this machine; 0 = unknown
  std::uint8_t reserved[72];
  // Absolute directory of the recordings that the job asks for; empty if it is not known.
  char recordings[3072];
};
static_assert(sizeof(SegmentHeader) == kPageBytes);

// Written by the producer's host code only.
struct alignas(kCacheLineBytes) ProducerLine {
  std::uint64_t slot_count;  // directory entries in use, store-release after the entry itself (D1)
  std::uint64_t extent_count;  // store-release after the extent is ready
  // Grows with every commit: an idle poll of the daemon reads this line only.
  std::uint64_t activity;
  std::int64_t step;              // current step marker, -1 when none
  std::uint64_t exited;           // 1 after a clean exit
  std::uint64_t released_unread;  // entries given up unread to make room for others
  std::uint64_t device_activity;  // a different number at each commit of a GPU, which cannot count
                                  // in host memory: made of its clock and the slot
  std::uint64_t graphs;  // where the table of graphs lies (graph_layout.h), store-release; 0 = none
};
static_assert(sizeof(ProducerLine) == 64);

// What the producer says of memory. Written by its host code only.
struct alignas(kCacheLineBytes) MemoryLine {
  // A producer that finds /dev/shm full asks the daemon to remove what dead jobs left there.
  std::uint64_t request;  // the number of its last one, from 1; store-release after `request_bytes`
  std::uint64_t request_bytes;  // that must be free
  std::uint64_t device_bytes;   // of device memory, that its probes take
  std::uint64_t reserved[5];
};
static_assert(sizeof(MemoryLine) == 64);

// The rings of one device stand still from the next replay on. There is one line for each device,
// because devices do not stop at the same moment and must not overwrite each other's line. Written
// by that device.
struct alignas(kCacheLineBytes) FreezeLine {
  std::uint64_t serial;   // of the last replay that the rings keep; stored last (T1, T2)
  std::uint64_t order;    // of the slot that stopped them
  std::uint64_t replay;   // of that slot
  std::uint64_t trigger;  // ControlTrigger of that slot; kNone: the daemon asked (ThawLine::stop)
  std::uint64_t live;     // 1 = the trigger is the live control's, not the registered one
  std::uint64_t reserved[3];
};
static_assert(sizeof(FreezeLine) == 64);
inline constexpr std::uint32_t kMaxFreezeDevices = 16;  // rings of other devices never stop

// One for each device, as FreezeLine. Written by the daemon only.
struct alignas(kCacheLineBytes) ThawLine {
  std::uint64_t serial;  // of the freeze that is over; the rings go on
  // The daemon asks the rings of this device to stop; another number for each time. 0 = it does
  // not.
  std::uint64_t stop;
  std::uint64_t reserved[6];
};
static_assert(sizeof(ThawLine) == 64);

// What the daemon found first in this job, in words: one for the first NaN, the first Inf and the
// first failed comparison. Written by the daemon only. `version` is a seqlock: odd while the rest
// is being written, 0 as long as nothing was found. What was found in a row of an op log gives way
// to what was found elsewhere.
// kReplica: not the same as on the other ranks of its node.
enum class FindingKind : std::uint8_t { kNan = 0, kInf = 1, kMismatch = 2, kReplica = 3 };
inline constexpr std::uint32_t kFindingKinds = 4;
struct alignas(kCacheLineBytes) FindingText {
  std::uint64_t version;
  std::uint64_t serial;  // of the replay: an earlier one replaces a later one
  std::uint64_t order;   // of the slot
  std::uint32_t bytes;
  std::uint32_t is_of_row;  // 1: in a row of an op log, where it may have an excuse
  char text[992];           // UTF-8, not terminated
};
static_assert(sizeof(FindingText) == 1024);

// What the job asked to see and nobody can: it needs no room for a slot, which is what is missing
// when a place is refused. Written by the producer's host code only. When the texts change, `first`
// is 0 meanwhile; its number of the text is never that of before.
struct alignas(kCacheLineBytes) NotSeenBlock {
  std::uint64_t refused_places;  // probes, modules and the like that were refused at least once
  std::uint64_t refused_calls;   // of them, that left no snapshot
  std::uint64_t first;           // NotSeenFirst() of the first one; 0 = none
  std::uint64_t wanted_places;   // those, and the probes that have had a slot
  // Of the three, what nobody wants any longer: eager places of probes and watches that are gone.
  std::uint64_t gone_places;
  std::uint64_t gone_calls;
  std::uint64_t gone_wanted;
  // Rows of eager op logs, and those of them that no longer wait in the process. When it has ended,
  // the others are lost.
  std::uint64_t rows_begun;
  std::uint64_t rows_sent;
  // The highest order of a slot that there was when the last place went: it may have been wanted
  // beside that slot and those before it.
  std::uint64_t gone_order;
  // Variables of the environment that the job goes on without. Written after `setting`, which is
  // about the first of them and stays. 0 = none.
  std::uint64_t malformed;
  std::uint64_t setting_bytes;
  std::uint64_t reserved[20];  // for other words of this account; 0 = nothing to tell
  char name[512];              // UTF-8, not terminated
  char reason[1024];           // UTF-8, not terminated
  char setting[256];           // UTF-8, not terminated
};
static_assert(sizeof(NotSeenBlock) == 2048);
constexpr std::uint64_t NotSeenFirst(std::uint32_t number, std::uint32_t name_bytes,
                                     std::uint32_t reason_bytes) {
  return std::uint64_t{1} << 63 | std::uint64_t{name_bytes} << 32 |
         std::uint64_t{number & 0xffff} << 16 | reason_bytes;
}
constexpr std::size_t NameBytesOf(std::uint64_t first) { return first >> 32 & 0x7fffffff; }
constexpr std::size_t ReasonBytesOf(std::uint64_t first) { return first & 0xffff; }

// Written by the daemon only.
struct alignas(kCacheLineBytes) ConsumerLine {
  std::uint64_t generation;  // grows by one with each daemon that attaches
  // Grows with every consumed entry, so that a writer that gave up waiting tries again (G1).
  std::uint64_t progress;
  std::int64_t attached_ns;
  std::int32_t pid;  // 0 = it went away in order
  std::uint32_t reserved0;
  std::uint64_t printed_lines;   // lines the daemon rendered for this job
  std::uint64_t terminal_lines;  // of those, the ones that reached the job's own stderr
  std::uint64_t room_answered;   // MemoryLine::request of the last request it dealt with
  std::uint64_t reserved[1];
};
static_assert(sizeof(ConsumerLine) == 64);

// Where clients find the daemon that reads the segment. That daemon writes it before it raises
// ConsumerLine::generation. It stays when the daemon is gone, so check who holds the reader's lock.
struct alignas(kCacheLineBytes) ReaderName {
  char socket[128];  // absolute path, terminated
};
static_assert(sizeof(ReaderName) == 128);

enum class SlotState : std::uint8_t {
  kEmpty = 0,
  kLive = 1,
  kRetired = 2,  // its graph is gone: nothing new comes, but its entries stay readable
  kFree = 3,     // the block may be reused; nothing in it may be read
};

// The generation tells a reader that the block was given to another slot while it was reading.
constexpr std::uint64_t DirectoryWord(std::uint64_t generation, SlotState state) {
  return generation << 8 | static_cast<std::uint64_t>(state);
}
constexpr SlotState DirectoryState(std::uint64_t word) {
  return static_cast<SlotState>(word & 0xff);
}
constexpr std::uint64_t DirectoryGeneration(std::uint64_t word) { return word >> 8; }

struct DirectoryEntry {
  std::uint64_t word;    // DirectoryWord; store-release (D1), load-acquire (D2)
  std::uint64_t offset;  // of the slot block, in its extent
  std::uint64_t bytes;   // of the slot block
  std::uint32_t extent;  // from 1
  std::uint32_t order;   // the low 32 bits of SlotRegistration::order
};
static_assert(sizeof(DirectoryEntry) == 32);

// Slots that the daemon cannot open. Word `order % kRefusals` holds the low 32 bits of the order of
// a slot that nobody reads, so that its writer does not wait. Written by the daemon only. It lies
// in the control file, because the most likely reason is an extent that cannot be mapped. If two
// such slots share a word, the one whose word was overwritten waits once, for one deadline.
using Refusal = std::uint32_t;

// What a writer remembers of a wait that it gave up. It does not wait again until another daemon
// comes or the slot's SlotCredit::consumed changes. Never 0. `consumed` is the bare word, not the
// result of CreditedOrdinal(), which is 0 while the word changes.
constexpr std::uint64_t GaveUpMark(std::uint64_t generation, std::uint64_t consumed) {
  return (generation << 56 ^ consumed) | std::uint64_t{1} << 63;
}

struct ExtentHeader {
  std::uint64_t magic;
  std::uint8_t uuid[16];  // the control file's
  std::uint32_t index;
  std::uint32_t reserved;
  std::uint64_t bytes;  // size of the extent file
};
static_assert(sizeof(ExtentHeader) == 40);

inline constexpr std::size_t kProducerLineOffset = kPageBytes;
inline constexpr std::size_t kMemoryLineOffset = kProducerLineOffset + sizeof(ProducerLine);
inline constexpr std::size_t kFreezeLineOffset = kMemoryLineOffset + sizeof(MemoryLine);
inline constexpr std::size_t kConsumerLineOffset = 2 * kPageBytes;
inline constexpr std::size_t kReaderNameOffset = kConsumerLineOffset + sizeof(ConsumerLine);
inline constexpr std::size_t kThawLineOffset = kReaderNameOffset + sizeof(ReaderName);
inline constexpr std::size_t kFindingTextOffset = 3 * kPageBytes;
inline constexpr std::size_t kNotSeenOffset = 4 * kPageBytes;
inline constexpr std::size_t kRefusalsOffset = 5 * kPageBytes;
inline constexpr std::size_t kDirectoryOffset = kRefusalsOffset + kRefusals * sizeof(Refusal);
static_assert(kFreezeLineOffset + kMaxFreezeDevices * sizeof(FreezeLine) <= kConsumerLineOffset);
static_assert(kThawLineOffset + kMaxFreezeDevices * sizeof(ThawLine) <= kFindingTextOffset);
static_assert(kFindingTextOffset + kFindingKinds * sizeof(FindingText) <= kNotSeenOffset);
static_assert(kNotSeenOffset + sizeof(NotSeenBlock) <= kRefusalsOffset);
inline constexpr std::size_t kControlBytes = kDirectoryOffset + kMaxSlots * sizeof(DirectoryEntry);
// How much of a control file is backed by memory when its directory had room for so many entries.
constexpr std::size_t ControlBytesFor(std::uint32_t slots) {
  return kDirectoryOffset +
         AlignUp(slots == 0 ? 1 : slots, kDirectoryStep) * sizeof(DirectoryEntry);
}
static_assert(kDirectoryOffset % kPageBytes == 0 && kMaxSlots % kDirectoryStep == 0);
inline constexpr std::size_t kExtentDataOffset = kPageBytes;

}  // namespace cgdebug::layout
