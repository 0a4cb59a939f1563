#include "libprobe/ring/segment/segment_view.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "libprobe/ring/record_lock.h"
#include "libprobe/ring/shared_copy.h"
#include "proto/layout/realtime.h"

namespace cgdebug::ring {
namespace {

void Set(bool* flag, bool value) {
  if (flag != nullptr) *flag = value;
}

// Empty if this daemon can read such a segment.
std::string WrongWith(const layout::SegmentHeader& header) {
  if (header.magic != layout::kSegmentMagic) return "not a segment of cgdebug (wrong magic)";
  if (header.abi_major != layout::kAbiMajor) {
    return "written by a probe library of layout version " + std::to_string(header.abi_major) +
           ", this daemon reads version " + std::to_string(layout::kAbiMajor) +
           ". Install the same cgdebug for the job and for the daemon";
  }
  if (header.max_slots != layout::kMaxSlots || header.control_bytes != layout::kControlBytes) {
    return "damaged: its header names impossible sizes";
  }
  return "";
}

// The parts of a control file.
layout::ProducerLine& Producer(const SharedFile& control) {
  return *reinterpret_cast<layout::ProducerLine*>(control.data() + layout::kProducerLineOffset);
}
layout::ConsumerLine& Consumer(const SharedFile& control) {
  return *reinterpret_cast<layout::ConsumerLine*>(control.data() + layout::kConsumerLineOffset);
}
const layout::MemoryLine& Memory(const SharedFile& control) {
  return *reinterpret_cast<const layout::MemoryLine*>(control.data() + layout::kMemoryLineOffset);
}
layout::Refusal& RefusalOf(const SharedFile& control, std::uint32_t order) {
  auto* refusals = reinterpret_cast<layout::Refusal*>(control.data() + layout::kRefusalsOffset);
  return refusals[order % layout::kRefusals];
}

void Terminate(char* text, std::size_t bytes) { text[bytes - 1] = '\0'; }

}  // namespace

std::unique_ptr<SegmentView> SegmentView::Attach(const std::string& name, std::string* reason,
                                                 bool* may_pass) {
  std::unique_ptr<SegmentView> view;
  Set(may_pass, false);
  if (!IsControlName(name)) {
    *reason = "not the name of a segment of this user";
    return nullptr;
  }
  try {
    view.reset(new SegmentView(SharedFile::Open(name)));
  } catch (const SharedMemoryError& error) {
    *reason = error.what();
    Set(may_pass, error.code() != 0);
    return nullptr;
  }
  layout::SegmentHeader& header = view->header_;
  if (view->control_.bytes() < layout::kControlBytes) {
    *reason = "too short for a segment of cgdebug";
    return nullptr;
  }
  CopyShared(&header, view->control_.data(), sizeof(header));
  *reason = WrongWith(header);
  if (!reason->empty()) return nullptr;
  Terminate(header.version, sizeof(header.version));
  Terminate(header.run_id, sizeof(header.run_id));
  Terminate(header.command, sizeof(header.command));
  Terminate(header.hostname, sizeof(header.hostname));
  Terminate(header.socket, sizeof(header.socket));
  Terminate(header.recordings, sizeof(header.recordings));
  return view;
}

std::string SegmentView::uuid() const { return name().substr(name().size() - kUuidHexDigits); }

bool SegmentView::BecomeReader(const std::string& socket) {
  if (!TryLockByte(control_.fd(), layout::kReaderLockByte)) return false;
  auto* name = reinterpret_cast<layout::ReaderName*>(control_.data() + layout::kReaderNameOffset);
  layout::ReaderName own = {};
  socket.copy(own.socket, sizeof(own.socket) - 1);
  CopyShared(name, &own, sizeof(own));
  StoreRelaxed(Consumer(control_).pid, static_cast<std::int32_t>(getpid()));
  StoreRelaxed(Consumer(control_).attached_ns, layout::RealtimeNs());
  freezes().WithdrawStops();  // of a daemon that died
  Add(Consumer(control_).generation, std::uint64_t{1});
  // G1, pairs with G2: writers that gave up on the previous reader try again, and find this one.
  Add(Consumer(control_).progress, std::uint64_t{1});
  return true;
}

std::string SegmentView::ReaderSocket() const {
  layout::ReaderName copy = {};
  CopyShared(&copy, control_.data() + layout::kReaderNameOffset, sizeof(copy));
  Terminate(copy.socket, sizeof(copy.socket));
  return copy.socket;
}

void SegmentView::Leave() {
  freezes().WithdrawStops();
  StoreRelaxed(Consumer(control_).pid, std::int32_t{0});
}

bool SegmentView::ProducerAlive() const {
  return LockedByOther(control_.fd(), layout::kProducerLockByte);
}
pid_t SegmentView::ProducerPid() const {
  return LockHolder(control_.fd(), layout::kProducerLockByte);
}
bool SegmentView::ProducerExitedCleanly() const {
  return LoadRelaxed(Producer(control_).exited) == 1;
}
std::uint64_t SegmentView::activity() const {
  // Acquire, so that heads read later are not older than it. Two words, because a GPU cannot add to
  // host memory: it stores a different number each time.
  return host_activity() ^ LoadAcquire(Producer(control_).device_activity);
}
std::uint64_t SegmentView::host_activity() const {
  return LoadAcquire(Producer(control_).activity);
}
std::int64_t SegmentView::step() const { return LoadRelaxed(Producer(control_).step); }
std::uint64_t SegmentView::device_bytes() const {
  return LoadRelaxed(Memory(control_).device_bytes);
}
std::uint64_t SegmentView::released_unread() const {
  return LoadRelaxed(Producer(control_).released_unread);
}

std::uint32_t SegmentView::slot_count() const {
  const std::uint64_t count_untrusted = LoadAcquire(Producer(control_).slot_count);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(count_untrusted, layout::kMaxSlots));
}

std::uint64_t SegmentView::shm_bytes() const {
  return layout::ControlBytesFor(slot_count()) + extents_.bytes();
}

const layout::DirectoryEntry& SegmentView::entry(std::uint32_t index) const {
  return reinterpret_cast<const layout::DirectoryEntry*>(control_.data() +
                                                         layout::kDirectoryOffset)[index];
}

std::uint64_t SegmentView::directory_word(std::uint32_t index) const {
  return LoadAcquire(entry(index).word);
}

std::optional<SlotRingReader> SegmentView::OpenSlot(std::uint32_t index, std::string* reason,
                                                    bool* may_pass) {
  reason->clear();
  Set(may_pass, false);
  const layout::DirectoryEntry* entry = &this->entry(index);
  const std::uint64_t word = LoadAcquire(entry->word);  // D2, pairs with D1
  const auto state = layout::DirectoryState(word);
  if (state != layout::SlotState::kLive && state != layout::SlotState::kRetired)
    return std::nullopt;
  auto reader = OpenBlock(entry, word, reason, may_pass);
  // The registration that looked wrong was half of one slot and half of the next.
  std::atomic_thread_fence(std::memory_order_acquire);
  const std::uint64_t word_now = LoadRelaxed(entry->word);
  if (layout::DirectoryGeneration(word_now) != layout::DirectoryGeneration(word) ||
      layout::DirectoryState(word_now) == layout::SlotState::kFree) {
    reason->clear();
  }
  return reader;
}

std::optional<SlotRingReader> SegmentView::OpenBlock(const layout::DirectoryEntry* entry,
                                                     std::uint64_t word, std::string* reason,
                                                     bool* may_pass) {
  const std::uint32_t extent_untrusted = LoadRelaxed(entry->extent);
  const std::uint64_t offset_untrusted = LoadRelaxed(entry->offset);
  const std::uint64_t bytes_untrusted = LoadRelaxed(entry->bytes);
  const SharedFile* extent = extents_.Open(extent_untrusted, reason, may_pass);
  if (extent == nullptr) return std::nullopt;
  if (offset_untrusted < layout::kExtentDataOffset || offset_untrusted % layout::kPageBytes != 0 ||
      offset_untrusted > extent->bytes() || bytes_untrusted > extent->bytes() - offset_untrusted) {
    *reason = "slot block lies outside its extent";
    return std::nullopt;
  }
  return SlotRingReader::Open(extent->data() + offset_untrusted, bytes_untrusted, entry, word,
                              reason);
}

void SegmentView::Refuse(std::uint32_t index) {
  const std::uint32_t order_untrusted = LoadRelaxed(entry(index).order);
  StoreRelaxed(RefusalOf(control_, order_untrusted), order_untrusted);
}

void SegmentView::Accept(std::uint32_t index) {
  const std::uint32_t order_untrusted = LoadRelaxed(entry(index).order);
  layout::Refusal& shared = RefusalOf(control_, order_untrusted);
  if (LoadRelaxed(shared) == order_untrusted) StoreRelaxed(shared, layout::Refusal{0});
}

std::optional<std::vector<std::byte>> SegmentView::ReadExpected(
    const layout::SlotFacts& registration, std::string* reason) {
  return extents_.CopyBeside(registration, registration.payload_bytes, "expected tensor", reason);
}

std::optional<std::vector<OpLogRow>> SegmentView::ReadOpLog(const layout::SlotFacts& registration,
                                                            std::string* reason) {
  const auto table = extents_.CopyBeside(registration, registration.table_bytes,
                                         "the table of an op log's rows", reason);
  if (!table) return std::nullopt;
  if (registration.expected_offset % alignof(layout::OpLogRow) != 0) {
    *reason = "the table of an op log's rows is not aligned";
    return std::nullopt;
  }
  return DecodeOpLog(*table, registration.shape[0], reason);
}

layout::OpLogRow* SegmentView::SharedRow(const layout::SlotFacts& registration, std::size_t row) {
  std::string ignored;
  std::byte* shared = extents_.Beside(registration, registration.table_bytes, "", &ignored);
  return shared == nullptr ? nullptr : reinterpret_cast<layout::OpLogRow*>(shared) + row;
}

void SegmentView::SetFirsts(const layout::SlotFacts& registration, std::size_t row,
                            const FirstNonfinites& firsts) {
  layout::OpLogRow* shared = SharedRow(registration, row);
  if (shared == nullptr) return;
  StoreFirst(firsts.nan, registration.order + row, &shared->nan);
  StoreFirst(firsts.inf, registration.order + row, &shared->inf);
}

FirstNonfinites SegmentView::firsts(const layout::SlotFacts& registration, std::size_t row) {
  const layout::OpLogRow* shared = SharedRow(registration, row);
  if (shared == nullptr) return {};
  return {LoadFirst(shared->nan, registration.order + row),
          LoadFirst(shared->inf, registration.order + row)};
}

GraphCensus SegmentView::Graphs() {
  const std::uint64_t place_untrusted = LoadAcquire(Producer(control_).graphs);
  if (place_untrusted == 0) return {};
  std::string reason;
  const SharedFile* extent = extents_.Open(layout::GraphTableExtent(place_untrusted), &reason);
  const std::uint64_t offset = layout::GraphTableOffset(place_untrusted);
  if (extent == nullptr || offset < layout::kExtentDataOffset ||
      extent->bytes() < layout::kGraphTableBytes ||
      offset > extent->bytes() - layout::kGraphTableBytes) {
    return {};
  }
  return ReadGraphs(extent->data() + offset);
}

void SegmentView::AddProgress(std::uint64_t entries) { Add(Consumer(control_).progress, entries); }

void SegmentView::AddPrinted(std::uint64_t lines, std::uint64_t on_terminal) {
  Add(Consumer(control_).printed_lines, lines);
  Add(Consumer(control_).terminal_lines, on_terminal);
}

std::uint64_t SegmentView::RoomWanted() const {
  if (LoadAcquire(Memory(control_).request) == LoadRelaxed(Consumer(control_).room_answered))
    return 0;
  return LoadRelaxed(Memory(control_).request_bytes);
}

void SegmentView::AnswerRoom() {
  StoreRelease(Consumer(control_).room_answered, LoadAcquire(Memory(control_).request));
}

}  // namespace cgdebug::ring
