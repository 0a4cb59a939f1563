#include "libprobe/ring/slot_ring_reader.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string_view>
#include <thread>

#include "libprobe/ring/control.h"
#include "libprobe/ring/payload_checksum.h"
#include "libprobe/ring/shared_copy.h"
#include "libprobe/ring/utf8.h"
#include "proto/layout/op_log_layout.h"

namespace cgdebug::ring {
namespace {

using layout::EntryState;
using layout::EntryWord;

// A live daemon writes a verdict's text in a microsecond if it is scheduled.
constexpr auto kTextIsLostAfter = std::chrono::milliseconds(50);
constexpr int kMostAttempts = 1000;

template <typename T>
T* At(std::byte* block, std::size_t offset) {
  return reinterpret_cast<T*>(block + offset);
}

const layout::SlotHead& Head(std::byte* block) {
  return *At<layout::SlotHead>(block, layout::kSlotHeadOffset);
}
layout::SlotCredit& SharedCredit(std::byte* block) {
  return *At<layout::SlotCredit>(block, layout::kSlotCreditOffset);
}
layout::SlotVerdict& SharedVerdict(std::byte* block) {
  return *At<layout::SlotVerdict>(block, layout::kSlotVerdictOffset);
}

const layout::EntryHeader& HeaderOf(std::byte* block, const layout::SlotRegistration& r,
                                    std::uint64_t ordinal) {
  return At<layout::EntryHeader>(block, r.headers_offset)[(ordinal - 1) % r.capacity];
}

layout::SlotHistory& History(std::byte* block) {
  return *At<layout::SlotHistory>(block, layout::kSlotHistoryOffset);
}

layout::SlotHead CopyHead(const layout::SlotHead& shared, std::uint64_t accepted) {
  layout::SlotHead copy = {};
  copy.accepted = accepted;
  copy.replay = LoadRelaxed(shared.replay);
  copy.overwrote_unread = LoadRelaxed(shared.overwrote_unread);
  copy.waits = LoadRelaxed(shared.waits);
  copy.wait_ns = LoadRelaxed(shared.wait_ns);
  copy.last_timestamp_ns = LoadRelaxed(shared.last_timestamp_ns);
  copy.suppressed = LoadRelaxed(shared.suppressed);
  copy.graph_replays = LoadRelaxed(shared.graph_replays);
  copy.taken = LoadRelaxed(shared.taken);
  copy.reached = LoadRelaxed(shared.reached);
  copy.reached_ns = LoadRelaxed(shared.reached_ns);
  copy.passed = LoadRelaxed(shared.passed);
  copy.compared = LoadRelaxed(shared.compared);
  copy.failed = LoadRelaxed(shared.failed);
  copy.unchanged = LoadRelaxed(shared.unchanged);
  return copy;
}

// elements * element size, or nullopt when it does not fit.
std::optional<std::uint64_t> PayloadBytes(const layout::SlotFacts& r) {
  std::uint64_t bytes = layout::DtypeBytes(static_cast<layout::Dtype>(r.dtype));
  for (std::size_t i = 0; i < r.dims; ++i) {
    if (__builtin_mul_overflow(bytes, r.shape[i], &bytes)) return std::nullopt;
  }
  return bytes;
}

layout::DeviceWindow& Window(std::byte* block, const layout::SlotRegistration& r) {
  return *At<layout::DeviceWindow>(block, layout::GeometryOf(r).window_offset);
}
layout::WindowRequest& RequestOf(std::byte* block, const layout::SlotRegistration& r) {
  return *At<layout::WindowRequest>(
      block, layout::GeometryOf(r).window_offset + sizeof(layout::DeviceWindow));
}

// A slot whose payload is smaller than statistics never holds any; a slot made for statistics holds
// nothing else; statistics of an op log's rows would mean nothing. The entries of a slot on the
// device say so, and no others do.
bool MayHold(const layout::SlotFacts& r, std::uint32_t flags) {
  const bool stats = (flags & layout::kEntryIsStats) != 0;
  const bool on_device = (r.flags & layout::kSlotOnDevice) != 0;
  if (((flags & layout::kEntryOnDevice) != 0) != on_device) return false;
  if (on_device) return true;
  if (!stats) return (r.flags & layout::kSlotHoldsStats) == 0;
  return r.payload_bytes >= sizeof(layout::DeviceStats) && (r.flags & layout::kSlotHoldsOpLog) == 0;
}

// Empty unless the registration names an impossible page of an op log.
std::string CheckOpLog(const layout::SlotRegistration& r) {
  if ((r.flags & layout::kSlotHoldsOpLog) == 0) return {};
  const bool has_rows = r.dtype == static_cast<std::uint16_t>(layout::Dtype::kUint8) &&
                        r.dims == 2 && r.shape[1] == sizeof(layout::DeviceStats) &&
                        r.shape[0] != 0 && r.shape[0] <= layout::kMaxOpLogRows;
  const std::uint32_t other = layout::kActionCompare | layout::kActionPrint;
  if (!has_rows || (r.flags & layout::kSlotHoldsStats) != 0 || (r.actions & other) != 0) {
    return "not a page of an op log";
  }
  if (r.table_bytes < r.shape[0] * sizeof(layout::OpLogRow) ||
      r.table_bytes > layout::kMaxOpLogTableBytes) {
    return "the table of an op log's rows has an impossible size";
  }
  return {};
}

// Empty unless the registration names an impossible ring in device memory.
std::string CheckOnDevice(const layout::SlotRegistration& r) {
  if ((r.flags & layout::kSlotOnDevice) == 0) return {};
  const std::uint32_t other = layout::kSlotHoldsStats | layout::kSlotHoldsOpLog;
  const bool possible = r.device_capacity != 0 && r.device_capacity <= layout::kMaxCapacity &&
                        r.lane == static_cast<std::uint8_t>(layout::Lane::kDirect) &&
                        r.payload_bytes != 0 && (r.flags & other) == 0;
  return possible ? "" : "impossible ring in device memory";
}

bool Terminated(const char* text, std::size_t bytes) {
  return std::memchr(text, '\0', bytes) != nullptr;
}

void StoreVerdict(const Verdict& verdict, std::uint64_t order, layout::SlotVerdict* shared) {
  const std::uint64_t version = LoadRelaxed(shared->version);
  // A reader that sees one of the stores below sees that these numbers may change.
  std::atomic_thread_fence(std::memory_order_release);
  const std::string_view text =
      std::string_view(verdict.text).substr(0, CutLength(verdict.text, layout::kVerdictTextBytes));
  std::string stored(text.size(), '\0');
  CopyShared(stored.data(), shared->text, stored.size());
  if (stored != text) CopyShared(shared->text, text.data(), text.size());
  layout::VerdictNumbers& numbers = shared->numbers[(version + 1) % 2];
  StoreRelaxed(numbers.state, static_cast<std::uint32_t>(verdict.state));
  StoreRelaxed(numbers.text_bytes, static_cast<std::uint32_t>(text.size()));
  StoreRelaxed(numbers.compared, verdict.compared);
  StoreRelaxed(numbers.mismatched, verdict.mismatched);
  StoreRelaxed(numbers.lost, verdict.lost);
  StoreRelaxed(numbers.first_failed_replay, verdict.first_failed_replay);
  StoreRelaxed(numbers.covered_replay, verdict.covered_replay);
  StoreRelaxed(numbers.order, order);
  StoreRelaxed(numbers.text_sum, layout::TextSum(text));
  StoreRelease(shared->version, version + 1);
}

// Returns false if it changed meanwhile.
bool CopyVerdict(const layout::SlotVerdict& shared, layout::VerdictNumbers* numbers,
                 std::string* text) {
  const std::uint64_t version = LoadAcquire(shared.version);
  CopyShared(numbers, &shared.numbers[version % 2], sizeof(*numbers));
  text->resize(std::min<std::size_t>(numbers->text_bytes, layout::kVerdictTextBytes));
  CopyShared(text->data(), shared.text, text->size());
  std::atomic_thread_fence(std::memory_order_acquire);
  return LoadRelaxed(shared.version) == version;
}

Verdict LoadVerdict(const layout::SlotVerdict& shared, std::uint64_t order) {
  layout::VerdictNumbers numbers = {};
  Verdict verdict;
  const auto deadline = std::chrono::steady_clock::now() + kTextIsLostAfter;
  for (int attempt = 0;; ++attempt) {
    const bool whole = CopyVerdict(shared, &numbers, &verdict.text);
    if (whole && (verdict.text.empty() || layout::TextSum(verdict.text) == numbers.text_sum)) break;
    if (attempt >= kMostAttempts && std::chrono::steady_clock::now() > deadline) {
      if (!whole) return {};  // a job that writes over it without end
      verdict.text.clear();   // its writer died while it changed the text
      break;
    }
    std::this_thread::yield();
  }
  if (numbers.order != order) return {};  // nobody wrote any for this slot
  verdict.state = static_cast<layout::VerdictState>(
      std::min(numbers.state, static_cast<std::uint32_t>(layout::VerdictState::kError)));
  verdict.compared = numbers.compared;
  verdict.mismatched = numbers.mismatched;
  verdict.lost = numbers.lost;
  verdict.first_failed_replay = numbers.first_failed_replay;
  verdict.covered_replay = numbers.covered_replay;
  return verdict;
}

}  // namespace

void StoreFirst(const FirstNonfinite& first, std::uint64_t order, layout::SlotFirst* shared) {
  if (first.replay == 0) return;
  StoreRelaxed(shared->replay, first.replay);
  StoreRelaxed(shared->step, first.step);
  StoreRelaxed(shared->count, first.count);
  StoreRelaxed(shared->serial, first.serial);
  StoreRelease(shared->order, order);
}
FirstNonfinite LoadFirst(const layout::SlotFirst& shared, std::uint64_t order) {
  if (LoadAcquire(shared.order) != order) return {};
  return {LoadRelaxed(shared.replay), LoadRelaxed(shared.step), LoadRelaxed(shared.count),
          LoadRelaxed(shared.serial)};
}

bool IsPlausible(const layout::DeviceStats& stats, const layout::SlotFacts& r, bool of_part) {
  const std::uint64_t bytes = PayloadBytes(r).value_or(0);
  const std::uint64_t element_bytes = layout::DtypeBytes(static_cast<layout::Dtype>(r.dtype));
  if (element_bytes == 0) return false;  // CheckRegistration() refused such a slot
  const std::uint64_t count =
      bytes / element_bytes * layout::ValuesPerElement(static_cast<layout::Dtype>(r.dtype));
  const std::uint64_t seen = stats.count;
  return (seen == count || (of_part && seen < count)) && stats.nan <= seen &&
         stats.pos_inf <= seen && stats.neg_inf <= seen &&
         stats.nan + stats.pos_inf + stats.neg_inf <= seen && stats.zero <= seen &&
         layout::SubnormalOf(stats) <= seen && layout::SaturatedOf(stats) <= seen &&
         stats.first_nonfinite <= count;
}

std::string CheckRegistration(const layout::SlotRegistration& r, std::uint64_t block_bytes) {
  if (layout::FindDtype(static_cast<layout::Dtype>(r.dtype)) == nullptr) {
    return "unknown dtype " + std::to_string(r.dtype);
  }
  if (r.dims > layout::kMaxDims) return "too many dimensions";
  auto bytes = PayloadBytes(r);
  const bool fits = bytes && *bytes <= layout::kMaxPayloadBytes;
  if ((r.flags & layout::kSlotHoldsStats) != 0) bytes = sizeof(layout::DeviceStats);
  if (!fits || *bytes != r.payload_bytes)
    return "payload size does not follow from shape and dtype";
  if (r.capacity == 0 || r.capacity > layout::kMaxCapacity) return "impossible ring capacity";
  const std::uint64_t stride =
      layout::AlignUp(std::max<std::uint64_t>(*bytes, 1), layout::kPageBytes);
  std::uint64_t total = 0;
  if (__builtin_mul_overflow(stride, r.capacity, &total) || total > (std::uint64_t{1} << 60)) {
    return "impossible ring size";
  }
  if (std::string wrong = CheckOnDevice(r); !wrong.empty()) return wrong;
  const layout::SlotGeometry g = layout::GeometryOf(r);
  if (g.payload_stride_bytes != r.payload_stride_bytes || g.headers_offset != r.headers_offset ||
      g.payload_offset != r.payload_offset || g.block_bytes > block_bytes) {
    return "ring geometry does not follow from payload and capacity";
  }
  if (!Terminated(r.name, sizeof(r.name)) || !Terminated(r.site, sizeof(r.site)) ||
      !Terminated(r.shard, sizeof(r.shard)) || !Terminated(r.op, sizeof(r.op)) ||
      !Terminated(r.graph_label, sizeof(r.graph_label)) || !Terminated(r.part, sizeof(r.part))) {
    return "a text is not terminated";
  }
  if (r.name[0] == '\0') return "empty name";
  if (r.lane > static_cast<std::uint8_t>(layout::Lane::kDirect)) return "unknown lane";
  if (r.policy > static_cast<std::uint8_t>(layout::Policy::kWait)) return "unknown policy";
  if (r.device_type > static_cast<std::uint8_t>(layout::DeviceType::kCuda)) return "unknown device";
  if (!std::isfinite(r.compare_rtol) || !std::isfinite(r.compare_atol) || r.compare_rtol < 0 ||
      r.compare_atol < 0) {
    return "tolerances must be finite and not negative";
  }
  return CheckOpLog(r);
}

std::optional<SlotRingReader> SlotRingReader::Open(std::byte* block, std::uint64_t block_bytes,
                                                   const layout::DirectoryEntry* directory,
                                                   std::uint64_t word, std::string* reason) {
  SlotRingReader reader;
  reader.block_ = block;
  reader.directory_ = directory;
  reader.word_ = word;
  if (block_bytes < layout::kSlotHeadersOffset) {
    *reason = "slot block is too small";
    return std::nullopt;
  }
  CopyShared(&reader.registration_, block, sizeof(layout::SlotRegistration));
  *reason = CheckRegistration(reader.registration_, block_bytes);
  if (!reader.valid()) {  // the registration may have been another slot's
    reason->clear();
    return std::nullopt;
  }
  if (!reason->empty()) return std::nullopt;
  return reader;
}

bool SlotRingReader::valid() const {
  std::atomic_thread_fence(std::memory_order_acquire);  // pairs with SegmentWriter::Release()
  const std::uint64_t word = LoadRelaxed(directory_->word);
  const auto state = layout::DirectoryState(word);
  return layout::DirectoryGeneration(word) == generation() &&
         (state == layout::SlotState::kLive || state == layout::SlotState::kRetired);
}

bool SlotRingReader::retired() const {
  return layout::DirectoryState(LoadRelaxed(directory_->word)) != layout::SlotState::kLive;
}

// Cut off at the greatest ordinal that an entry can hold, so that loops over ordinals end.
std::uint64_t SlotRingReader::accepted() const {
  return std::min(LoadAcquire(Head(block_).accepted), layout::kMaxOrdinal);
}
std::uint64_t SlotRingReader::replay() const { return LoadRelaxed(Head(block_).replay); }
std::int64_t SlotRingReader::last_timestamp_ns() const {
  return LoadRelaxed(Head(block_).last_timestamp_ns);
}
std::uint64_t SlotRingReader::consumed() const {
  return CreditedOrdinal(SharedCredit(block_), registration_.order);
}

std::uint64_t SlotRingReader::oldest(std::uint64_t newest) const {
  return newest > registration_.capacity ? newest - registration_.capacity + 1 : 1;
}

HeadWatch SlotRingReader::head_watch() const { return HeadWatch(&Head(block_)); }

layout::SlotHead SlotRingReader::head() const {
  const std::uint64_t newest = accepted();  // R3
  return CopyHead(Head(block_), newest);
}

Credit SlotRingReader::credit() const {
  return LoadCredit(SharedCredit(block_), History(block_), registration_.order);
}

// Reads twice if needed: a GPU's stores may become visible late, some after the commit.
ReadStatus SlotRingReader::Read(std::uint64_t ordinal, Entry* out, PayloadId held) const {
  const ReadStatus status = ReadOnce(ordinal, out, held);
  return status == ReadStatus::kDamaged ? ReadOnce(ordinal, out, held) : status;
}

ReadStatus SlotRingReader::ReadOnce(std::uint64_t ordinal, Entry* out, PayloadId held) const {
  if (ordinal == 0 || ordinal > accepted()) {  // R3
    return valid() ? ReadStatus::kNone : ReadStatus::kGone;
  }
  const layout::EntryHeader* header = &HeaderOf(block_, registration_, ordinal);
  const std::uint64_t word = LoadAcquire(header->word);  // R1
  if (word != EntryWord(ordinal, EntryState::kReady)) {
    if (!valid()) return ReadStatus::kGone;
    // A GPU's stores of the head and of the word may come in either order.
    return layout::EntryOrdinal(word) > ordinal ? ReadStatus::kOverwritten : ReadStatus::kNone;
  }
  out->ordinal = ordinal;
  out->replay = LoadRelaxed(header->replay);
  out->timestamp_ns = LoadRelaxed(header->timestamp_ns);
  out->step = LoadRelaxed(header->step);
  out->serial = LoadRelaxed(header->serial);
  out->flags = LoadRelaxed(header->flags);
  out->iteration = LoadRelaxed(header->iteration);
  out->reference = LoadRelaxed(header->reference);
  const std::uint64_t checksum = LoadRelaxed(header->checksum);
  const bool is_stats = (out->flags & layout::kEntryIsStats) != 0;
  const bool skips = (registration_.flags & layout::kSlotSkipsUnchanged) != 0;
  const std::uint64_t number = skips ? out->reference : ordinal;  // of its payload
  const bool is_possible = MayHold(registration_, out->flags) && number != 0 && number <= ordinal;
  const bool has_checksum = (out->flags & layout::kEntryHasChecksum) != 0;
  out->is_held = skips && is_possible && !is_stats && has_checksum && number == held.number;
  const bool has_none = !is_possible || out->is_held || (on_device() && !is_stats);
  const std::uint64_t bytes = has_none   ? 0
                              : is_stats ? sizeof(out->stats)
                                         : registration_.payload_bytes;
  const std::uint64_t place =
      layout::PlaceOfPayload(std::max(number, std::uint64_t{1}), registration_.capacity);
  const std::byte* payload =
      block_ + registration_.payload_offset + place * registration_.payload_stride_bytes;
  if (!out->is_held) out->payload.resize(is_stats ? 0 : bytes);
  std::byte* copy = is_stats ? reinterpret_cast<std::byte*>(&out->stats) : out->payload.data();
  CopyShared(copy, payload, bytes);
  std::atomic_thread_fence(std::memory_order_acquire);  // R2, pairs with W2
  if (!valid()) return ReadStatus::kGone;
  if (LoadRelaxed(header->word) != word) return ReadStatus::kOverwritten;
  if (!is_possible) return ReadStatus::kDamaged;
  const bool needs_checksum =
      registration_.lane == static_cast<std::uint8_t>(layout::Lane::kDirect);
  const std::uint64_t header_sum =
      layout::HeaderSum(ordinal, out->replay, out->timestamp_ns, out->step, out->serial, out->flags,
                        out->iteration, skips ? number : 0);
  const std::uint64_t payload_sum = out->is_held   ? held.checksum
                                    : has_checksum ? PayloadChecksum(copy, bytes)
                                                   : 0;
  if (has_checksum ? payload_sum + header_sum != checksum : needs_checksum) {
    return LoadAcquire(header->word) == word ? ReadStatus::kDamaged : ReadStatus::kOverwritten;
  }
  out->payload_id = {skips && has_checksum && !is_stats ? number : 0, payload_sum};
  if (is_stats && !IsPlausible(out->stats, registration_)) return ReadStatus::kDamaged;
  if (on_device() && ReadWindow(ordinal, &out->payload)) {
    out->flags &= ~(layout::kEntryOnDevice | layout::kEntryIsStats);
  }
  return ReadStatus::kOk;
}

bool SlotRingReader::ReadWindow(std::uint64_t ordinal, std::vector<std::byte>* payload) const {
  if (!on_device()) return false;
  const layout::DeviceWindow& window = Window(block_, registration_);
  const std::uint64_t word = LoadAcquire(window.word);  // V2
  if (word != EntryWord(ordinal, EntryState::kReady)) return false;
  const std::uint64_t checksum = LoadRelaxed(window.checksum);
  const auto* values = reinterpret_cast<const std::byte*>(&window) + layout::kWindowPayloadOffset;
  payload->resize(registration_.payload_bytes);
  CopyShared(payload->data(), values, payload->size());
  std::atomic_thread_fence(std::memory_order_acquire);
  if (valid() && LoadRelaxed(window.word) == word &&
      PayloadChecksum(payload->data(), payload->size()) +
              layout::WindowSum(ordinal, registration_.order) ==
          checksum) {
    return true;
  }
  payload->clear();
  return false;
}

std::uint64_t SlotRingReader::window() const {
  if (!on_device()) return 0;
  const std::uint64_t word = LoadAcquire(Window(block_, registration_).word);
  const std::uint64_t ordinal = layout::EntryOrdinal(word);
  return word == EntryWord(ordinal, EntryState::kReady) ? ordinal : 0;
}

std::uint64_t SlotRingReader::refused() const {
  return on_device() ? LoadRelaxed(Window(block_, registration_).refused) : 0;
}

void SlotRingReader::Request(std::uint64_t ordinal, bool every) {
  if (!on_device() || !valid()) return;
  layout::WindowRequest& request = RequestOf(block_, registration_);
  if (LoadRelaxed(request.order) != registration_.order) StoreRelaxed(request.ordinal, 0ul);
  StoreRelaxed(request.every, std::uint64_t{every});
  StoreRelease(request.order, registration_.order);
  StoreRelease(request.ordinal, ordinal);  // V3, pairs with V4
}

std::uint64_t SlotRingReader::FindReplay(std::uint64_t replay,
                                         std::optional<std::uint32_t> iteration) const {
  const std::uint64_t newest = accepted();
  for (std::uint64_t ordinal = newest; ordinal != 0 && ordinal >= oldest(newest); --ordinal) {
    const layout::EntryHeader& header = HeaderOf(block_, registration_, ordinal);
    const std::uint64_t word = LoadAcquire(header.word);  // R1
    const std::uint64_t found = LoadRelaxed(header.replay);
    const std::uint32_t found_iteration = LoadRelaxed(header.iteration);
    std::atomic_thread_fence(std::memory_order_acquire);  // R2, pairs with W2
    if (word != EntryWord(ordinal, EntryState::kReady) || LoadRelaxed(header.word) != word)
      continue;
    if (found < replay) return 0;  // they ascend
    if (found > replay || (iteration && found_iteration > *iteration)) continue;
    const bool is_meant = !iteration || found_iteration == *iteration;
    return is_meant && valid() ? ordinal : 0;
  }
  return 0;
}

void SlotRingReader::SetControl(const layout::SlotControl& control) {
  StoreControl(SharedCredit(block_), registration_.order, control);
}

layout::SlotControl SlotRingReader::control() const {
  layout::SlotControl control;
  LoadControl(SharedCredit(block_), registration_.order, &control);
  return control;
}

bool SlotRingReader::HasUncommitted() const {
  const std::uint64_t ordinal = accepted() + 1;
  const layout::EntryHeader& header = HeaderOf(block_, registration_, ordinal);
  return layout::EntryOrdinal(LoadAcquire(header.word)) == ordinal;
}

void SlotRingReader::SetConsumed(std::uint64_t ordinal, std::uint64_t lost) {
  StoreCredit(SharedCredit(block_), History(block_), registration_.order, ordinal,
              lost);  // W4, pairs with R4
}

void SlotRingReader::SetVerdict(const Verdict& verdict) {
  StoreVerdict(verdict, registration_.order, &SharedVerdict(block_));
}

Verdict SlotRingReader::verdict() const {
  return LoadVerdict(SharedVerdict(block_), registration_.order);
}

void SlotRingReader::SetFirsts(const FirstNonfinites& firsts) {
  StoreFirst(firsts.nan, registration_.order, &History(block_).nan);
  StoreFirst(firsts.inf, registration_.order, &History(block_).inf);
}

FirstNonfinites SlotRingReader::firsts() const {
  return {LoadFirst(History(block_).nan, registration_.order),
          LoadFirst(History(block_).inf, registration_.order)};
}

std::optional<layout::SlotFailure> SlotRingReader::failure() const {
  const auto* shared = At<layout::SlotFailure>(block_, layout::kSlotFailureOffset);
  if (LoadAcquire(shared->order) != registration_.order) return std::nullopt;  // X2, pairs with X1
  layout::SlotFailure copy;
  CopyShared(&copy, shared, sizeof(copy));
  return copy;
}

}  // namespace cgdebug::ring
