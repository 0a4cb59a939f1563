#include "daemon/core/recording/segments/segment_file.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "daemon/core/base/terminate.h"
#include "daemon/core/recording/files/checksum.h"

namespace cgdebug::recording {
namespace {

using layout::FileHeader;
using layout::RecordHeader;

// A far jump reads little. What is read one after the other is read further and further ahead.
constexpr std::size_t kFarBytes = 4096;
constexpr std::size_t kMostAheadBytes = 256 << 10;

bool AllZero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(),
                     [](std::byte byte) { return byte == std::byte{}; });
}

Result<void> CheckHeader(const FileHeader& header, const std::string& path) {
  if (header.magic != layout::kRecordingMagic) {
    return Error{fmt::format("{} is not a segment of a recording", path)};
  }
  if (header.major != layout::kRecordingMajor) {
    return Error{
        fmt::format("{} was written in version {}.{} of the format, this cgdebug reads {}.x; "
                    "use the cgdebug that wrote it",
                    path, header.major, header.minor, layout::kRecordingMajor)};
  }
  const auto bytes = std::as_bytes(std::span(&header, 1));
  if (Crc32c(bytes.first(offsetof(FileHeader, crc32c))) != header.crc32c) {
    return Error{fmt::format("the first 4096 bytes of {} are damaged", path)};
  }
  if (header.features != 0) {
    return Error{
        fmt::format("{} uses features ({:#x}) that this cgdebug does not know; use a newer one",
                    path, header.features)};
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<SegmentFile>> SegmentFile::Open(const std::string& path) {
  auto bytes = ByteFile::Open(path);
  if (!bytes.ok()) return bytes.error();
  std::unique_ptr<SegmentFile> file(new SegmentFile(path, *std::move(bytes)));
  if (auto size = file->Refresh(); !size.ok()) return size.error();
  auto buffer = std::as_writable_bytes(std::span(&file->header_, 1));
  if (file->ReadAt(0, buffer) != buffer.size()) {
    if (const std::string failure = file->failure(); !failure.empty()) return Error{failure};
    return Error{fmt::format("{} is cut off within its first 4096 bytes", path)};
  }
  if (auto good = CheckHeader(file->header_, path); !good.ok()) return good.error();
  return file;
}

std::string SegmentFile::uuid() const { return fmt::format("{:02x}", fmt::join(header_.uuid, "")); }

Result<void> SegmentFile::Refresh() {
  const Result<std::uint64_t> size = file_->Size();
  if (!size.ok()) return size.error();
  bytes_ = *size;
  const std::scoped_lock lock(mutex_);
  window_.clear();
  return {};
}

std::string SegmentFile::failure() const {
  const std::scoped_lock lock(failure_mutex_);
  return failure_;
}

void SegmentFile::ForgetFailure() {
  const std::scoped_lock lock(failure_mutex_);
  failure_.clear();
}

std::size_t SegmentFile::ReadAt(std::uint64_t offset, std::span<std::byte> buffer) const {
  const Result<std::size_t> got = file_->ReadAt(offset, buffer);
  if (got.ok()) return *got;
  const std::scoped_lock lock(failure_mutex_);
  failure_ = got.error().message;
  return 0;
}

Result<void> SegmentFile::ReadAll(std::uint64_t offset, std::span<std::byte> buffer) const {
  if (ReadAt(offset, buffer) == buffer.size()) return {};
  const std::string why = failure();
  return why.empty() ? CutOff() : Error{why};
}

std::span<const std::byte> SegmentFile::Peek(std::uint64_t offset, std::size_t count) const {
  const bool inside = offset >= window_offset_ && offset - window_offset_ <= window_.size() &&
                      window_.size() - (offset - window_offset_) >= count;
  if (!inside) {
    // Behind a URL the file reads ahead by itself, and keeps what it has read.
    const bool near = file_->fd() >= 0 && offset >= window_offset_ &&
                      offset - window_offset_ <= 2 * window_.size();
    const std::size_t ahead =
        near ? std::clamp(2 * window_.size(), kFarBytes, kMostAheadBytes) : kFarBytes;
    window_.resize(std::max(count, ahead));
    window_.resize(ReadAt(offset, window_));
    window_offset_ = offset;
    if (window_.size() < count) return {};
  }
  return std::span(window_).subspan(offset - window_offset_, count);
}

ReadStatus SegmentFile::Read(std::uint64_t offset, Record* record) const {
  const std::scoped_lock lock(mutex_);
  if (offset >= bytes_) return ReadStatus::kEnd;
  const auto missing = [&] {
    // What is there was not read, if the window has nothing of a place within the file.
    return window_.empty() && !failure().empty() ? ReadStatus::kUnread : ReadStatus::kDamaged;
  };
  const auto header_bytes = Peek(offset, sizeof(RecordHeader));
  if (header_bytes.empty()) return missing();
  RecordHeader& header = record->header;
  std::memcpy(&header, header_bytes.data(), sizeof(header));
  record->offset = offset;
  if (header.magic != layout::kRecordMagic) {
    return AllZero(header_bytes) ? ReadStatus::kEnd : ReadStatus::kDamaged;
  }
  std::uint32_t tag = 0;
  std::memcpy(&tag, header_.uuid, sizeof(tag));
  if (header.offset != offset || header.segment != header_.segment || header.tag != tag ||
      header.meta_bytes > layout::kMaxMetaBytes || header.payload_bytes > bytes_) {
    return ReadStatus::kDamaged;
  }
  const auto whole = Peek(offset, sizeof(RecordHeader) + header.meta_bytes);
  if (whole.empty()) return missing();
  RecordHeader without_crc = header;
  without_crc.crc32c = 0;
  const auto meta = whole.subspan(sizeof(RecordHeader));
  if (Crc32c(meta, Crc32c(std::as_bytes(std::span(&without_crc, 1)))) != header.crc32c) {
    return ReadStatus::kDamaged;
  }
  if (record->payload_offset() + header.payload_bytes > bytes_) return ReadStatus::kDamaged;
  record->meta.assign(reinterpret_cast<const char*>(meta.data()), meta.size());
  return ReadStatus::kRecord;
}

std::optional<std::uint64_t> SegmentFile::FindRecord(std::uint64_t offset) const {
  offset = layout::RoundUp(std::max<std::uint64_t>(offset, layout::kFileHeaderBytes),
                           layout::kRecordAlignment);
  std::vector<std::byte> buffer(kMostAheadBytes);
  Record record;
  while (offset < bytes_) {
    // What was set aside and never written is skipped where the file system can tell.
    if (file_->fd() >= 0) {
      const off_t data = lseek(file_->fd(), static_cast<off_t>(offset), SEEK_DATA);
      if (data < 0 && errno == ENXIO) return std::nullopt;
      if (data > 0) {
        offset = std::max(offset, static_cast<std::uint64_t>(data) & ~std::uint64_t{63});
      }
    }
    const std::size_t got = ReadAt(offset, buffer);
    if (got < sizeof(RecordHeader)) return std::nullopt;
    for (std::size_t at = 0; at + sizeof(RecordHeader) <= got; at += layout::kRecordAlignment) {
      std::uint32_t magic = 0;
      std::memcpy(&magic, buffer.data() + at, sizeof(magic));
      if (magic == layout::kRecordMagic && Read(offset + at, &record) == ReadStatus::kRecord) {
        return offset + at;
      }
    }
    offset += got / layout::kRecordAlignment * layout::kRecordAlignment;
  }
  return std::nullopt;
}

std::optional<Record> SegmentFile::ReadEnd() const {
  if (bytes_ < layout::kFileHeaderBytes + layout::kEndRecordBytes) return std::nullopt;
  Record record;
  if (Read(bytes_ - layout::kEndRecordBytes, &record) != ReadStatus::kRecord) return std::nullopt;
  const bool is_end =
      record.type() == layout::RecordType::kRoll || record.type() == layout::RecordType::kClose;
  if (!is_end || record.next() != bytes_) return std::nullopt;
  return record;
}

Error SegmentFile::CutOff() const {
  return Error{fmt::format("{} was cut off while it was read", path_)};
}

Result<Payload> SegmentFile::ReadPayload(const Record& record) const {
  if (record.header.payload_bytes == 0) return Payload{};
  const auto bytes = static_cast<std::size_t>(record.header.payload_bytes);
  std::shared_ptr<std::byte[]> memory;
  try {
    const MayRunOutOfMemory large;
    memory.reset(new std::byte[bytes]);
  } catch (const std::bad_alloc&) {
    return Error{fmt::format("no memory for the {} bytes of values in {}", bytes, path_)};
  }
  const std::span<std::byte> values(memory.get(), bytes);
  if (auto read = ReadAll(record.payload_offset(), values); !read.ok()) return read.error();
  return Payload{values, memory};
}

Result<Payload> SegmentFile::MapPayload(const Record& record) const {
  if (file_->fd() < 0) return ReadPayload(record);
  if (record.header.payload_bytes == 0) return Payload{};
  struct stat status = {};
  if (fstat(file_->fd(), &status) != 0) return ErrnoError("cannot look at " + path_);
  const std::uint64_t end = record.payload_offset() + record.header.payload_bytes;
  if (end > static_cast<std::uint64_t>(status.st_size)) return CutOff();
  const std::uint64_t before =
      record.payload_offset() % static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t begin = record.payload_offset() - before;
  const auto bytes = static_cast<std::size_t>(end - begin);
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE,
                       file_->fd(), static_cast<off_t>(begin));
  if (address == MAP_FAILED) return ErrnoError("cannot map " + path_);
  const std::shared_ptr<const void> mapping(
      address, [bytes](const void* mapped) { munmap(const_cast<void*>(mapped), bytes); });
  return Payload{{static_cast<const std::byte*>(address) + before, bytes - before}, mapping};
}

// The buffer is not thread_local: without memory to register its destructor glibc ends the process.
Result<std::uint64_t> SegmentFile::HashPayload(const Record& record) const {
  std::vector<std::byte> buffer(static_cast<std::size_t>(
      std::min<std::uint64_t>(file_->part_bytes(), record.header.payload_bytes)));
  Xxh3Parts hash;
  for (std::uint64_t done = 0; done < record.header.payload_bytes;) {
    const std::span part = std::span(buffer).first(static_cast<std::size_t>(
        std::min<std::uint64_t>(buffer.size(), record.header.payload_bytes - done)));
    if (auto read = ReadAll(record.payload_offset() + done, part); !read.ok()) return read.error();
    hash.Add(part);
    done += part.size();
  }
  return hash.Sum();
}

bool SegmentFile::PayloadMatchesItsHash(const Record& record) const {
  if (record.header.payload_bytes == 0) return record.header.payload_hash == 0;
  const Result<std::uint64_t> hash = HashPayload(record);
  return hash.ok() && *hash == record.header.payload_hash;
}

bool SegmentFile::PaddingIsZero(const Record& record) const {
  const std::uint64_t meta_end = record.offset + sizeof(RecordHeader) + record.header.meta_bytes;
  const std::uint64_t payload_end = record.payload_offset() + record.header.payload_bytes;
  std::vector<std::byte> padding(record.payload_offset() - meta_end);
  if (ReadAt(meta_end, padding) != padding.size() || !AllZero(padding)) return false;
  padding.resize(record.next() - payload_end);
  padding.resize(ReadAt(payload_end, padding));  // the last may be cut off
  return AllZero(padding);
}

}  // namespace cgdebug::recording
