// recording_layout.h: every byte of a recording's segment files, except the meta blocks, whose
// schema is proto/recording.proto.
//
//   NAME.cgrec/segment-000001.cgd   FileHeader | record | record | ... | end record
//              segment-000002.cgd   ...
//              catalogue.sqlite     an index for SQL, rebuilt from the segments at any time
//              lock                 held by the process that writes
//
//   record := RecordHeader | meta | zeros | payload | zeros      starts at a multiple of 64 bytes
//
// Segments only grow: a record is never moved or changed. A missing end is normal: the writer is at
// work or was killed. A CRC is checked before any length is used, a hash before any payload is
// returned.
//
// Versions: a reader refuses another major and an unknown feature bit, and skips record types that
// it does not know by their length. Types from kFirstPrivateType on are free for private use.
// Little-endian throughout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace cgdebug::layout {

inline constexpr std::uint64_t kRecordingMagic = 0x3167657264676763;  // "cggdreg1"
inline constexpr std::uint32_t kRecordMagic = 0x63657263;             // "crec"
inline constexpr std::uint16_t kRecordingMajor = 2;
inline constexpr std::uint16_t kRecordingMinor = 0;
inline constexpr std::size_t kFileHeaderBytes = 4096;
inline constexpr std::size_t kRecordAlignment = 64;
// Payloads of at least this size begin at a page; for smaller ones the padding would be too much.
inline constexpr std::size_t kLargePayloadBytes = 256u << 10;
inline constexpr std::size_t kLargePayloadAlignment = 4096;
inline constexpr std::size_t kMaxMetaBytes = 4u << 20;
inline constexpr std::uint16_t kFirstPrivateType = 0x8000;

struct FileHeader {
  std::uint64_t magic;
  std::uint16_t major;
  std::uint16_t minor;
  std::uint32_t features;  // 0; a reader refuses features it does not know
  std::uint8_t uuid[16];   // of the recording, the same in all of its segments
  std::uint32_t segment;   // from 1, as in the file's name
  std::uint32_t reserved0;
  std::int64_t created_ns;     // CLOCK_REALTIME
  std::uint64_t first_number;  // of the first record in this file
  std::uint8_t reserved[4036];
  std::uint32_t crc32c;  // of all bytes before it
};
static_assert(sizeof(FileHeader) == kFileHeaderBytes);

enum class RecordType : std::uint16_t {
  kSession = 1,   // meta: Session
  kSlot = 2,      // meta: Slot; the schema of one probe's snapshots
  kSnapshot = 3,  // meta: Snapshot; payload: the tensor, or none when only statistics were recorded
  kLoss = 4,      // meta: Loss
  kMark = 5,      // meta: Mark
  kCommit = 6,    // meta: Commit; written after fdatasync()
  kIndex = 7,     // meta: Index; payload: IndexRow[]
  kRoll = 8,      // meta: End; last record of a segment that has a successor
  kClose = 9,     // meta: End; last record of the recording
};

struct RecordHeader {
  std::uint32_t magic;
  std::uint32_t crc32c;  // of this header with 0 in this field, then the meta
  std::uint16_t type;    // RecordType
  std::uint16_t flags;   // 0
  std::uint32_t meta_bytes;
  std::uint64_t payload_bytes;
  std::uint64_t payload_hash;  // XXH3-64; 0 without a payload
  std::uint64_t number;        // of the record in the recording, from 1, without gaps
  std::uint64_t offset;        // of the record in its file: bytes that strayed here are told apart
  std::uint32_t segment;
  std::uint32_t tag;  // first four bytes of the recording's uuid
  std::uint64_t reserved;
};
static_assert(sizeof(RecordHeader) == 64);
static_assert(offsetof(RecordHeader, payload_bytes) == 16);
static_assert(offsetof(RecordHeader, offset) == 40);
static_assert(std::is_trivially_copyable_v<RecordHeader>);

// One snapshot of the segment; sorted by slot, then by ordinal.
struct IndexRow {
  std::uint32_t slot;
  std::uint32_t iteration;  // of a conditional body in that replay, from 0
  std::uint64_t ordinal;
  std::uint64_t replay;
  std::uint64_t offset;  // of its record
};
static_assert(sizeof(IndexRow) == 32);

// The size of kRoll and kClose records, so that the last bytes of a file tell whether it is
// complete.
inline constexpr std::size_t kEndRecordBytes = 256;

constexpr std::uint64_t RoundUp(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

// Where the payload of a record at `offset` begins, from the start of the file.
constexpr std::uint64_t PayloadOffset(std::uint64_t offset, std::uint32_t meta_bytes,
                                      std::uint64_t payload_bytes) {
  return RoundUp(offset + sizeof(RecordHeader) + meta_bytes,
                 payload_bytes >= kLargePayloadBytes ? kLargePayloadAlignment : kRecordAlignment);
}

// Where the next record begins.
// Requires: payload_bytes does not overflow (it is compared with the file's size first).
constexpr std::uint64_t NextRecord(std::uint64_t offset, std::uint32_t meta_bytes,
                                   std::uint64_t payload_bytes) {
  return RoundUp(PayloadOffset(offset, meta_bytes, payload_bytes) + payload_bytes,
                 kRecordAlignment);
}

}  // namespace cgdebug::layout
