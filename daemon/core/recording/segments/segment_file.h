// segment_file.h: reads one segment file record by record and uses nothing in it unchecked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/core/base/result.h"
#include "daemon/core/recording/files/byte_file.h"
#include "proto/layout/recording_layout.h"

namespace cgdebug::recording {

// Values from a file, in memory of their own: a caller that casts the const away changes only these
// bytes and never the file.
//
// Lifetime: as long as a copy of `keep` lives, also after the reader is gone.
struct Payload {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> keep;
};

// A record whose header and meta passed their checks, and whose payload lies within the file.
struct Record {
  std::uint64_t offset = 0;
  layout::RecordHeader header = {};
  std::string meta;

  layout::RecordType type() const { return static_cast<layout::RecordType>(header.type); }
  std::uint64_t payload_offset() const {
    return layout::PayloadOffset(offset, header.meta_bytes, header.payload_bytes);
  }
  std::uint64_t next() const {
    return layout::NextRecord(offset, header.meta_bytes, header.payload_bytes);
  }
};

enum class ReadStatus {
  kRecord,
  kEnd,      // zeros, or the end of the file: nothing was written here
  kDamaged,  // something that is not a whole record
  kUnread,   // bytes that lie behind a URL could not be fetched: failure() says why
};

// Thread: any; Refresh() alone.
class SegmentFile {
 public:
  // Fails: not there, no recording, another version.
  static Result<std::unique_ptr<SegmentFile>> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const layout::FileHeader& header() const { return header_; }
  std::string uuid() const;  // of the recording, 32 hex digits
  std::uint64_t bytes() const { return bytes_; }
  // Looks at the file's size again.
  Result<void> Refresh();

  ReadStatus Read(std::uint64_t offset, Record* record) const;
  // Why bytes could not be fetched, the last time that it happened; empty: it never did. What was
  // read is then not all that there is.
  std::string failure() const;
  void ForgetFailure();
  // The first good record at or after `offset`.
  std::optional<std::uint64_t> FindRecord(std::uint64_t offset) const;
  // The kRoll or kClose record that ends a complete file.
  std::optional<Record> ReadEnd() const;

  // Copies the values into memory of their own, which nothing that happens to the file can take
  // away.
  Result<Payload> ReadPayload(const Record& record) const;
  // Maps the values from the file, which costs no memory until they are written to. If somebody
  // truncates the file meanwhile, they raise SIGBUS, as with every mapped file.
  Result<Payload> MapPayload(const Record& record) const;
  // XXH3-64 of the payload as it lies in the file. Fails: it cannot be read, or was cut off.
  Result<std::uint64_t> HashPayload(const Record& record) const;
  bool PayloadMatchesItsHash(const Record& record) const;
  // Whether the bytes between the record's parts are zero.
  bool PaddingIsZero(const Record& record) const;

 private:
  SegmentFile(std::string path, std::unique_ptr<ByteFile> file)
      : path_(std::move(path)), file_(std::move(file)) {}
  Error CutOff() const;
  // As ByteFile::ReadAt(), with nothing read and failure() where that fails.
  std::size_t ReadAt(std::uint64_t offset, std::span<std::byte> buffer) const;
  // Reads values, and fails unless it gets all of them.
  Result<void> ReadAll(std::uint64_t offset, std::span<std::byte> buffer) const;
  // Bytes [offset, offset + count) from a window that is read ahead; empty when they are not there.
  std::span<const std::byte> Peek(std::uint64_t offset, std::size_t count) const;

  std::string path_;
  std::unique_ptr<ByteFile> file_;
  layout::FileHeader header_ = {};
  std::uint64_t bytes_ = 0;

  mutable std::mutex mutex_;  // guards what follows
  mutable std::vector<std::byte> window_;
  mutable std::uint64_t window_offset_ = 0;

  mutable std::mutex failure_mutex_;
  mutable std::string failure_;  // guarded by it
};

}  // namespace cgdebug::recording
