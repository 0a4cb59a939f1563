// segment_writer.h: one segment file, appended to.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "daemon/core/base/result.h"
#include "daemon/core/base/unique_fd.h"
#include "proto/layout/recording_layout.h"

namespace cgdebug::recording {

using Uuid = std::array<std::uint8_t, 16>;

// Writes whole pieces of kPieceBytes, each at a multiple of that, which the system's page cache
// takes fastest; what is left of the last record waits in memory for more, or for Flush(). After a
// failure the file ends with the last record that was written as a whole, as far as the system lets
// it, and bytes() says where that is.
//
// Thread: one at a time, except for Sync().
class SegmentWriter {
 public:
  // Space that is set aside beyond what is asked for, so that a full disk still takes the end.
  static constexpr std::uint64_t kEndReserveBytes = 1u << 20;
  static constexpr std::uint64_t kPieceBytes = 64u << 10;

  // Fails: the file exists, or cannot be made.
  static Result<std::unique_ptr<SegmentWriter>> Create(const std::string& directory,
                                                       const Uuid& uuid, std::uint32_t segment,
                                                       std::uint64_t first_number);
  // Goes on at `offset` with record `number`; what lies behind is cut off.
  static Result<std::unique_ptr<SegmentWriter>> Continue(const std::string& path,
                                                         std::uint64_t offset,
                                                         std::uint64_t number);

  const std::string& path() const { return path_; }
  std::uint32_t segment() const { return header_.segment; }
  std::uint64_t bytes() const { return offset_; }  // those that wait included
  // The first record that is not written as a whole; the next one's number when all are.
  std::uint64_t unwritten_number() const { return unwritten_.number; }
  std::uint64_t reserved_end() const { return reserved_end_; }

  // Sets space aside, so that appending `bytes` more cannot fail for want of it.
  // Fails: with error_number() ENOSPC when there is none.
  Result<void> Reserve(std::uint64_t bytes);
  // The new record begins at bytes() as it was before.
  Result<void> Append(layout::RecordType type, std::uint64_t number, std::string_view meta,
                      std::span<const std::byte> payload, std::uint64_t payload_hash);
  // Writes what waits.
  Result<void> Flush();
  // The same, and gives back what was set aside and not used.
  Result<void> Trim();
  // Waits until what was written is on the disk; does not write what still waits. Thread: any.
  Result<void> Sync();
  // The errno of the last failed call.
  int error_number() const { return error_number_; }

 private:
  SegmentWriter(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  Error Fail(std::string_view what);
  struct Unwritten {
    std::uint64_t offset = 0;
    std::uint64_t number = 0;
  };

  void BeginAt(std::uint64_t offset, std::uint64_t number);
  // Adds the end of a record; what comes before its payload waits already.
  Result<void> AddSmall(std::span<const std::byte> payload, std::uint64_t zeros);
  Result<void> AddLarge(std::span<const std::byte> payload, std::uint64_t zeros);
  // Writes what waits, then these, in one call.
  Result<void> WritePending(std::span<const std::byte> payload, std::uint64_t zeros);

  std::string path_;
  UniqueFd fd_;
  layout::FileHeader header_ = {};
  std::string pending_;  // of the file, from written_ to offset_
  std::uint64_t written_ = 0;
  std::uint64_t offset_ = 0;
  std::uint64_t next_number_ = 0;
  Unwritten unwritten_;  // the first record of which something waits, or the next one
  std::uint64_t reserved_end_ = 0;
  std::uint64_t reserve_step_ = 1u << 20;
  int error_number_ = 0;
};

}  // namespace cgdebug::recording
