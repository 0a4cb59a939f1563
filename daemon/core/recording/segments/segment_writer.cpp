#include "daemon/core/recording/segments/segment_writer.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "daemon/core/base/realtime.h"
#include "daemon/core/recording/files/checksum.h"
#include "daemon/core/recording/files/recording_files.h"

namespace cgdebug::recording {
namespace {

using layout::RecordHeader;

constexpr std::uint64_t kLongestStep = 256u << 20;

// False with errno set when not everything could be written.
bool WriteAll(int fd, std::uint64_t offset, std::span<iovec> parts) {
  while (!parts.empty()) {
    ssize_t written =
        pwritev(fd, parts.data(), static_cast<int>(parts.size()), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    offset += static_cast<std::uint64_t>(written);
    while (!parts.empty() && static_cast<std::size_t>(written) >= parts.front().iov_len) {
      written -= static_cast<ssize_t>(parts.front().iov_len);
      parts = parts.subspan(1);
    }
    if (parts.empty()) break;
    parts.front().iov_base = static_cast<char*>(parts.front().iov_base) + written;
    parts.front().iov_len -= static_cast<std::size_t>(written);
  }
  return true;
}

}  // namespace

Error SegmentWriter::Fail(std::string_view what) {
  error_number_ = errno;
  return ErrnoError(std::string(what) + " " + path_, error_number_);
}

Result<std::unique_ptr<SegmentWriter>> SegmentWriter::Create(const std::string& directory,
                                                             const Uuid& uuid,
                                                             std::uint32_t segment,
                                                             std::uint64_t first_number) {
  const std::string path = SegmentPath(directory, segment);
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd) return ErrnoError("cannot create " + path);
  std::unique_ptr<SegmentWriter> writer(new SegmentWriter(path, std::move(fd)));
  layout::FileHeader& header = writer->header_;
  header.magic = layout::kRecordingMagic;
  header.major = layout::kRecordingMajor;
  header.minor = layout::kRecordingMinor;
  std::memcpy(header.uuid, uuid.data(), uuid.size());
  header.segment = segment;
  header.created_ns = RealtimeNs();
  header.first_number = first_number;
  const auto bytes = std::as_bytes(std::span(&header, 1));
  header.crc32c = Crc32c(bytes.first(offsetof(layout::FileHeader, crc32c)));
  iovec part = {&header, sizeof(header)};
  if (!WriteAll(writer->fd_.get(), 0, {&part, 1})) {
    const Error error = writer->Fail("cannot write");
    ::unlink(path.c_str());
    return error;
  }
  writer->BeginAt(sizeof(header), first_number);
  return writer;
}

Result<std::unique_ptr<SegmentWriter>> SegmentWriter::Continue(const std::string& path,
                                                               std::uint64_t offset,
                                                               std::uint64_t number) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) return ErrnoError("cannot open " + path);
  std::unique_ptr<SegmentWriter> writer(new SegmentWriter(path, std::move(fd)));
  if (pread(writer->fd_.get(), &writer->header_, sizeof(writer->header_), 0) !=
      static_cast<ssize_t>(sizeof(writer->header_))) {
    return writer->Fail("cannot read");
  }
  if (ftruncate(writer->fd_.get(), static_cast<off_t>(offset)) != 0) {
    return writer->Fail("cannot cut off the unfinished end of");
  }
  writer->BeginAt(offset, number);
  return writer;
}

void SegmentWriter::BeginAt(std::uint64_t offset, std::uint64_t number) {
  offset_ = written_ = reserved_end_ = offset;
  next_number_ = number;
  unwritten_ = {offset, number};
}

Result<void> SegmentWriter::Reserve(std::uint64_t bytes) {
  const std::uint64_t end = offset_ + bytes + kEndReserveBytes;
  if (end <= reserved_end_) return {};
  // Reserves a growing step, or, if that does not fit, no more than is needed.
  for (const std::uint64_t step : {reserve_step_, std::uint64_t{0}}) {
    const std::uint64_t wanted = std::max(end, reserved_end_ + step);
    if (fallocate(fd_.get(), 0, static_cast<off_t>(reserved_end_),
                  static_cast<off_t>(wanted - reserved_end_)) == 0) {
      reserved_end_ = wanted;
      reserve_step_ = std::min(reserve_step_ * 2, kLongestStep);
      return {};
    }
    if (errno == EOPNOTSUPP || errno == ENOSYS) return {};  // then Append meets the full disk
    if (errno != ENOSPC) break;
  }
  return Fail("cannot set space aside for");
}

Result<void> SegmentWriter::Append(layout::RecordType type, std::uint64_t number,
                                   std::string_view meta, std::span<const std::byte> payload,
                                   std::uint64_t payload_hash) {
  RecordHeader header = {};
  header.magic = layout::kRecordMagic;
  header.type = static_cast<std::uint16_t>(type);
  header.meta_bytes = static_cast<std::uint32_t>(meta.size());
  header.payload_bytes = payload.size();
  header.payload_hash = payload_hash;
  header.number = number;
  header.offset = offset_;
  header.segment = header_.segment;
  std::memcpy(&header.tag, header_.uuid, sizeof(header.tag));
  header.crc32c =
      Crc32c(std::as_bytes(std::span(meta)), Crc32c(std::as_bytes(std::span(&header, 1))));

  const std::uint64_t payload_offset =
      layout::PayloadOffset(offset_, header.meta_bytes, header.payload_bytes);
  const std::uint64_t next = layout::NextRecord(offset_, header.meta_bytes, header.payload_bytes);
  const std::uint64_t zeros = next - payload_offset - payload.size();
  const std::size_t begin = pending_.size();
  pending_.append(reinterpret_cast<const char*>(&header), sizeof(header)).append(meta);
  pending_.resize(begin + payload_offset - offset_);
  const std::uint64_t offset = std::exchange(offset_, next);
  next_number_ = number + 1;
  const std::uint64_t written_before = written_;
  auto added = payload.size() < kPieceBytes ? AddSmall(payload, zeros) : AddLarge(payload, zeros);
  if (added.ok() && written_ != written_before) {  // with what waited before this record
    unwritten_ = pending_.empty() ? Unwritten{offset_, next_number_} : Unwritten{offset, number};
  }
  return added;
}

// Puts the end of a record into memory, and writes whole pieces from there.
Result<void> SegmentWriter::AddSmall(std::span<const std::byte> payload, std::uint64_t zeros) {
  pending_.append(reinterpret_cast<const char*>(payload.data()), payload.size());
  pending_.resize(pending_.size() + zeros);
  const std::uint64_t whole = offset_ - offset_ % kPieceBytes;
  if (whole <= written_) return {};
  const std::string rest = pending_.substr(whole - written_);
  pending_.resize(whole - written_);
  auto written = WritePending({}, 0);
  if (written.ok()) pending_ = rest;
  return written;
}

// Writes whole pieces from where the payload lies, and puts the rest of it into memory.
Result<void> SegmentWriter::AddLarge(std::span<const std::byte> payload, std::uint64_t zeros) {
  const std::uint64_t rest = offset_ % kPieceBytes;
  const std::uint64_t rest_zeros = std::min(rest, zeros);
  const auto end = payload.last(rest - rest_zeros);
  auto written = WritePending(payload.first(payload.size() - end.size()), zeros - rest_zeros);
  if (written.ok()) {
    pending_.assign(reinterpret_cast<const char*>(end.data()), end.size());
    pending_.resize(rest);
  }
  return written;
}

Result<void> SegmentWriter::WritePending(std::span<const std::byte> payload, std::uint64_t zeros) {
  static constexpr std::array<char, layout::kRecordAlignment> kZeros = {};
  std::array<iovec, 3> parts = {{
      {pending_.data(), pending_.size()},
      {const_cast<std::byte*>(payload.data()), payload.size()},
      {const_cast<char*>(kZeros.data()), zeros},
  }};
  const bool written = WriteAll(fd_.get(), written_, parts);
  if (!written) {
    const Error error = Fail("cannot write into");
    pending_.clear();
    offset_ = written_ = unwritten_.offset;
    next_number_ = unwritten_.number;
    // A record written in part would be taken for damage.
    if (ftruncate(fd_.get(), static_cast<off_t>(offset_)) == 0) reserved_end_ = offset_;
    return error;
  }
  written_ += pending_.size() + payload.size() + zeros;
  pending_.clear();
  reserved_end_ = std::max(reserved_end_, written_);
  return {};
}

Result<void> SegmentWriter::Flush() {
  if (pending_.empty()) return {};
  auto written = WritePending({}, 0);
  if (written.ok()) unwritten_ = {offset_, next_number_};
  return written;
}

Result<void> SegmentWriter::Trim() {
  if (auto flushed = Flush(); !flushed.ok()) return flushed;
  if (ftruncate(fd_.get(), static_cast<off_t>(offset_)) != 0) return Fail("cannot shorten");
  reserved_end_ = offset_;
  return {};
}

Result<void> SegmentWriter::Sync() {
  if (fdatasync(fd_.get()) != 0) return ErrnoError("cannot write to the disk: " + path_);
  return {};
}

}  // namespace cgdebug::recording
