// Reads a slot's ring that its writer has damaged, and goes on damaging between the reads.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "libprobe/ring/slot_ring_reader.h"
#include "tests/fuzz/patches.h"

namespace {

using namespace cgdebug;

constexpr std::uint32_t kCapacity = 3;
constexpr std::size_t kBlockBytes = 4096;

// A whole ring of three tensors of five int32.
struct Template {
  Template() {
    layout::SlotRegistration r = {};
    r.probe_id = r.order = 1;
    r.dtype = static_cast<std::uint16_t>(layout::Dtype::kInt32);
    r.dims = 1;
    r.shape[0] = 5;
    r.payload_bytes = 20;
    r.capacity = kCapacity;
    r.actions = layout::kActionRecord;
    r.record_every = 1;
    const auto geometry = layout::ComputeGeometry(r.payload_bytes, kCapacity);
    r.payload_stride_bytes = geometry.payload_stride_bytes;
    r.headers_offset = geometry.headers_offset;
    r.payload_offset = geometry.payload_offset;
    std::memcpy(r.name, "x", 1);
    std::memcpy(bytes, &r, sizeof(r));
    layout::SlotHead head = {};
    head.accepted = head.replay = 7;
    std::memcpy(bytes + layout::kSlotHeadOffset, &head, sizeof(head));
    for (std::uint64_t ordinal = 5; ordinal <= 7; ++ordinal) {
      layout::EntryHeader entry = {};
      entry.word = layout::EntryWord(ordinal, layout::EntryState::kReady);
      entry.replay = ordinal;
      std::memcpy(bytes + r.headers_offset + (ordinal - 1) % kCapacity * sizeof(entry), &entry,
                  sizeof(entry));
    }
  }
  std::byte bytes[kBlockBytes] = {};
};

void Look(ring::SlotRingReader& reader, ring::Entry* entry) {
  const layout::SlotRegistration& r = reader.registration();
  const std::uint64_t accepted = reader.accepted();
  for (std::uint64_t back = 0; back < 5; ++back) {
    if (reader.Read(accepted - back, entry) != ring::ReadStatus::kOk) continue;
    const bool is_stats = (entry->flags & layout::kEntryIsStats) != 0;
    if (entry->ordinal != accepted - back) std::abort();
    if (!is_stats && entry->payload.size() != r.payload_bytes) std::abort();
  }
  (void)reader.oldest(accepted);
  (void)reader.head();
  (void)reader.FindReplay(accepted);
  (void)reader.credit();
  (void)reader.HasUncommitted();
  (void)reader.firsts();
  (void)reader.control();
  (void)reader.valid();
  (void)reader.retired();
  reader.SetConsumed(accepted, 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Template whole;
  // A reader must not touch anything behind it.
  alignas(4096) static std::byte block[kBlockBytes];
  std::memcpy(block, whole.bytes, sizeof(block));
  fuzz::Input input(data, size);
  layout::DirectoryEntry directory = {};
  const std::uint64_t word = layout::DirectoryWord(1, layout::SlotState::kLive);
  directory.word = word;
  fuzz::Patch(&input, block);
  std::string reason;
  auto reader = ring::SlotRingReader::Open(block, sizeof(block), &directory, word, &reason);
  if (!reader) {
    if (reason.empty()) std::abort();  // the block was not reassigned
    return 0;
  }
  ring::Entry entry;
  for (int pass = 0; pass < 3; ++pass) {
    Look(*reader, &entry);
    fuzz::Patch(&input, block);
  }
  return 0;
}
