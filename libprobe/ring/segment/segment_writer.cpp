#include "libprobe/ring/segment/segment_writer.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>

#include "libprobe/ring/record_lock.h"
#include "libprobe/ring/segment/process_origin.h"
#include "libprobe/ring/segment/segment_names.h"
#include "libprobe/ring/shared_copy.h"
#include "libprobe/ring/utf8.h"
#include "proto/layout/graph_layout.h"
#include "proto/layout/realtime.h"

namespace cgdebug::ring {
namespace {

constexpr std::uint64_t kMinExtentBytes = 4ull << 20;
// What an extent reserves beyond what is needed now: as much as the extent before it, but at most
// this, and at most a part of what the job has, so that most of what is reserved is used.
constexpr std::uint64_t kHeadroomBytes = 64ull << 20;
constexpr std::uint64_t kHeadroomPart = 4;
constexpr int kNameAttempts = 16;

void CopyText(char* to, std::size_t bytes, const std::string& text) {
  const std::size_t length = CutLength(text, bytes - 1);
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
}

std::string Hex(const std::uint8_t (&bytes)[16]) {
  std::string text;
  for (const std::uint8_t byte : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", byte);
    text += digits;
  }
  return text;
}

layout::SegmentHeader MakeHeader(const Identity& identity) {
  layout::SegmentHeader header = {};
  header.magic = layout::kSegmentMagic;
  header.abi_major = layout::kAbiMajor;
  header.abi_minor = layout::kAbiMinor;
  header.header_bytes = sizeof(header);
  header.control_bytes = layout::kControlBytes;
  header.uid = geteuid();
  header.pid = getpid();
  header.pid_namespace = OwnPidNamespace();
  header.pid_start_ticks = StartTicks(getpid());
  header.created_ns = layout::RealtimeNs();
  header.rank = identity.rank;
  header.world_size = identity.world_size;
  header.restart_count = identity.restart_count;
  header.launch = identity.launch;
  header.local_rank = identity.local_rank;
  header.local_world_size = identity.local_world_size;
  header.max_slots = layout::kMaxSlots;
  CopyText(header.version, sizeof(header.version), identity.version);
  CopyText(header.run_id, sizeof(header.run_id), identity.run_id);
  CopyText(header.command, sizeof(header.command), identity.command);
  CopyText(header.hostname, sizeof(header.hostname), identity.hostname);
  CopyText(header.socket, sizeof(header.socket), identity.socket);
  if (identity.recordings.size() < sizeof(header.recordings)) {
    CopyText(header.recordings, sizeof(header.recordings), identity.recordings);
  }
  return header;
}

void FillRandom(void* out, std::size_t bytes) {
  std::size_t filled = 0;
  while (filled < bytes) {
    const ssize_t got = getrandom(static_cast<std::byte*>(out) + filled, bytes - filled, 0);
    if (got > 0) filled += static_cast<std::size_t>(got);
    if (got <= 0 && errno != EINTR) {
      throw SharedMemoryError(std::string("the system gives no random bytes for a segment name: ") +
                                  std::strerror(errno),
                              false);
    }
  }
}

// The file gets its final name only when it is complete and locked. Until the lock is taken, a
// process that cleans up (ReclaimDeadSegments) may take it for a dead producer's.
// Fails: nullopt if such a process removed it.
std::optional<SharedFile> TryCreateControlFile(const layout::SegmentHeader& header) {
  const std::string name = OwnPrefix() + Hex(header.uuid);
  SharedFile control =
      SharedFile::Create("." + name, layout::kControlBytes, layout::ControlBytesFor(0));
  try {
    const bool locked = TryLockByte(control.fd(), layout::kProducerLockByte);
    if (!locked && errno != EAGAIN && errno != EACCES) {
      throw SharedMemoryError("cannot lock " + ShmPath(control.name()) + ": " +
                                  std::strerror(errno) + ". cgdebug needs file locks in /dev/shm",
                              false);
    }
    struct stat info = {};
    if (!locked || fstat(control.fd(), &info) != 0 || info.st_nlink == 0) return std::nullopt;
    std::memcpy(control.data(), &header, sizeof(header));
    reinterpret_cast<layout::ProducerLine*>(control.data() + layout::kProducerLineOffset)->step =
        -1;
    control.Rename(name);
  } catch (...) {
    control.Unlink();
    throw;
  }
  return control;
}

SharedFile CreateControlFile(layout::SegmentHeader header) {
  constexpr int kAttempts = 1000;
  for (int i = 0; i < kAttempts; ++i) {
    FillRandom(header.uuid, sizeof(header.uuid));
    if (auto control = TryCreateControlFile(header)) return *std::move(control);
    const timespec nap = {0, 100'000};  // the process that cleans up is still at it
    nanosleep(&nap, nullptr);
  }
  throw SharedMemoryError("another process removes new files from /dev/shm again and again", false);
}

}  // namespace

SegmentWriter::SegmentWriter(const Identity& identity)
    : control_(CreateControlFile(MakeHeader(identity))),
      most_slots_(identity.most_slots),
      gate_(consumer(), refusals(), control_.fd()) {}

layout::ProducerLine* SegmentWriter::producer() const {
  return reinterpret_cast<layout::ProducerLine*>(control_.data() + layout::kProducerLineOffset);
}
layout::NotSeenBlock* SegmentWriter::not_seen() const {
  return reinterpret_cast<layout::NotSeenBlock*>(control_.data() + layout::kNotSeenOffset);
}
const layout::ConsumerLine* SegmentWriter::consumer() const {
  return reinterpret_cast<const layout::ConsumerLine*>(control_.data() +
                                                       layout::kConsumerLineOffset);
}
const layout::Refusal* SegmentWriter::refusals() const {
  return reinterpret_cast<const layout::Refusal*>(control_.data() + layout::kRefusalsOffset);
}
layout::DirectoryEntry* SegmentWriter::directory() const {
  return reinterpret_cast<layout::DirectoryEntry*>(control_.data() + layout::kDirectoryOffset);
}

std::uint64_t SegmentWriter::shm_bytes() const {
  std::uint64_t bytes = layout::ControlBytesFor(reserved_count_);
  for (const auto& [index, extent] : extents_) bytes += extent.bytes();
  return bytes;
}

void SegmentWriter::Grow(std::uint64_t bytes) {
  if (extents_.size() >= layout::kMaxExtents) {
    throw SharedMemoryError(
        "a job can have at most " + std::to_string(layout::kMaxExtents) + " extents", false);
  }
  const std::uint64_t needed =
      layout::AlignUp(bytes + layout::kExtentDataOffset, layout::kPageBytes);
  const std::uint64_t doubled =
      extents_.empty() ? kMinExtentBytes : 2 * extents_.at(last_extent_).bytes();
  const std::uint64_t most =
      layout::AlignUp(std::max(kHeadroomBytes, shm_bytes() / kHeadroomPart), layout::kPageBytes);
  std::uint64_t size = std::max(needed, std::min(doubled, most));
  std::uint32_t index = 0;
  SharedFile extent;
  while (extent.data() == nullptr) {
    try {
      extent = CreateExtent(size, &index);
    } catch (const SharedMemoryError& error) {
      if (!error.no_space() || size == needed) throw;
      // Less headroom, and at last none, but this probe works.
      size = std::max(needed, layout::AlignUp(size / 2, layout::kPageBytes));
    }
  }
  extent.CloseDescriptor();
  if (unlinked_) extent.Unlink();
  layout::ExtentHeader header = {};
  header.magic = layout::kExtentMagic;
  std::memcpy(header.uuid, control_.data() + offsetof(layout::SegmentHeader, uuid),
              sizeof(header.uuid));
  header.index = index;
  header.bytes = extent.bytes();
  std::memcpy(extent.data(), &header, sizeof(header));
  // Both or neither: if a free range were known without its extent, the next block would be written
  // behind the end of another.
  const std::uint64_t room = extent.bytes() - layout::kExtentDataOffset;
  try {
    extents_.emplace(index, std::move(extent));
  } catch (const std::bad_alloc&) {  // thrown before the extent was moved
    extent.Unlink();
    throw;
  }
  if (!free_.Give({index, layout::kExtentDataOffset}, room)) {
    extents_.at(index).Unlink();
    extents_.erase(index);
    throw std::bad_alloc();
  }
  last_extent_ = index;
  StoreRelease(producer()->extent_count, std::uint64_t{extents_.size()});
}

// The name of the control file is public, so another user may have taken names that follow from it.
// Nobody can take all of them.
SharedFile SegmentWriter::CreateExtent(std::uint64_t bytes, std::uint32_t* index) {
  *index = last_extent_ + 1;
  for (int attempt = 1;; ++attempt) {
    try {
      return SharedFile::Create(control_.name() + "." + std::to_string(*index), bytes);
    } catch (const SharedMemoryError& error) {
      if (error.code() != EEXIST || attempt == kNameAttempts) throw;
    }
    do {
      FillRandom(index, sizeof(*index));
    } while (*index == 0 || extents_.count(*index) != 0);
  }
}

Block SegmentWriter::Allocate(std::uint64_t bytes, std::uint64_t block_header_bytes) {
  bytes = layout::AlignUp(std::max<std::uint64_t>(bytes, 1), layout::kPageBytes);
  auto place = free_.Take(bytes);
  if (!place) {
    Grow(bytes);
    place = free_.Take(bytes);
  }
  Block block;
  block.extent = place->area;
  block.offset = place->offset;
  block.bytes = bytes;
  block.data = extents_.at(block.extent).data() + block.offset;
  std::memset(block.data, 0, std::min(block_header_bytes, bytes));
  return block;
}

void SegmentWriter::Free(const Block& block) noexcept {
  (void)free_.Give({block.extent, block.offset}, block.bytes);
}

std::uint32_t SegmentWriter::Reserve() {
  if (directory_full()) {
    throw SharedMemoryError(
        "this job can have at most " + std::to_string(most_slots_) +
            " probe slots at a time. Delete graphs that are no longer needed, or close probes" +
            (most_slots_ < layout::kMaxSlots ? ", or set CGDEBUG_MAX_SLOTS higher" : ""),
        false);
  }
  if (!free_indexes_.empty()) {
    const std::uint32_t index = free_indexes_.back();
    free_indexes_.pop_back();
    return index;
  }
  if (reserved_count_ != 0 && reserved_count_ % layout::kDirectoryStep == 0) {
    const std::size_t begin = layout::ControlBytesFor(reserved_count_);
    control_.Reserve(begin, layout::ControlBytesFor(reserved_count_ + 1) - begin);
  }
  return reserved_count_++;
}

void SegmentWriter::Unreserve(std::uint32_t index) noexcept {
  try {
    free_indexes_.push_back(index);
  } catch (const std::bad_alloc&) {  // the directory's entry is not used again
  }
}

void SegmentWriter::Publish(std::uint32_t index, const Block& block) {
  layout::DirectoryEntry& entry = directory()[index];
  const std::uint64_t generation = layout::DirectoryGeneration(entry.word) + 1;
  StoreRelaxed(entry.extent, block.extent);
  StoreRelaxed(entry.offset, block.offset);
  StoreRelaxed(entry.bytes, block.bytes);
  const auto* registration = reinterpret_cast<const layout::SlotRegistration*>(block.data);
  StoreRelaxed(entry.order, static_cast<std::uint32_t>(registration->order));
  StoreRelease(entry.word, layout::DirectoryWord(generation, layout::SlotState::kLive));  // D1
  if (index >= slot_count_) {  // those in between are empty until they are published
    slot_count_ = index + 1;
    StoreRelease(producer()->slot_count, std::uint64_t{slot_count_});
  }
  Add(producer()->activity, std::uint64_t{1});
}

void SegmentWriter::PublishGraphs(const Block& block) {
  StoreRelease(producer()->graphs, layout::GraphTablePlace(block.extent, block.offset));
}

void SegmentWriter::Retire(std::uint32_t index) {
  layout::DirectoryEntry& entry = directory()[index];
  StoreRelease(entry.word, layout::DirectoryWord(layout::DirectoryGeneration(entry.word),
                                                 layout::SlotState::kRetired));
  Add(producer()->activity, std::uint64_t{1});
}

void SegmentWriter::Release(std::uint32_t index, const Block& block) noexcept {
  layout::DirectoryEntry& entry = directory()[index];
  StoreRelaxed(entry.word, layout::DirectoryWord(layout::DirectoryGeneration(entry.word),
                                                 layout::SlotState::kFree));
  // Pairs with SlotRingReader::valid(): a reader that sees reused bytes also sees kFree.
  std::atomic_thread_fence(std::memory_order_release);
  Add(producer()->activity, std::uint64_t{1});
  Unreserve(index);
  Free(block);
}

SlotRingReader SegmentWriter::OpenSlot(std::uint32_t index, const Block& block) const {
  std::string reason;
  const layout::DirectoryEntry& entry = directory()[index];
  auto reader =
      SlotRingReader::Open(block.data, block.bytes, &entry, LoadAcquire(entry.word), &reason);
  if (!reader) throw SharedMemoryError("own slot " + std::to_string(index) + ": " + reason, false);
  return *reader;
}

layout::MemoryLine* SegmentWriter::memory_line() const {
  return reinterpret_cast<layout::MemoryLine*>(control_.data() + layout::kMemoryLineOffset);
}

void SegmentWriter::ShowDeviceBytes(std::uint64_t bytes) {
  StoreRelaxed(memory_line()->device_bytes, bytes);
}

bool SegmentWriter::AskForRoom(std::uint64_t bytes, std::chrono::nanoseconds patience) {
  if (!gate_.ReaderAlive()) return false;
  StoreRelaxed(memory_line()->request_bytes, bytes);
  StoreRelease(memory_line()->request, ++room_requests_);
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (LoadAcquire(consumer()->room_answered) != room_requests_) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    const timespec nap = {0, 1'000'000};
    nanosleep(&nap, nullptr);
  }
  return true;
}

void SegmentWriter::Close(bool unlink) {
  StoreRelease(producer()->exited, std::uint64_t{1});
  Add(producer()->activity, std::uint64_t{1});
  unlinked_ = unlinked_ || unlink;
  if (unlink) UnlinkSegment(control_.name());
}

}  // namespace cgdebug::ring
