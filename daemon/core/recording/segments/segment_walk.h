// segment_walk.h: one segment file, record by record, past whatever is damaged in it.
//
//   SegmentWalk walk(file, layout::kFileHeaderBytes, {.is_last = true});
//   while (const Record* record = walk.Next()) Take(*record);
//   next_time = walk.offset();
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "daemon/core/recording/segments/segment_file.h"

namespace cgdebug::recording {

// Lifetime: the file outlives it.
class SegmentWalk {
 public:
  struct Options {
    std::uint64_t end = std::numeric_limits<std::uint64_t>::max();  // records begin before it
    // The last segment of a recording. Its last record counts only when its values are whole: its
    // writer was killed, or is at work.
    bool is_last = false;
    bool is_live = false;  // a writer appends to it; the last segment only
  };
  // Bytes without a readable record.
  struct Hole {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::uint64_t next_number = 0;  // of the record behind it
  };

  // `offset`: where the first record is looked for.
  SegmentWalk(const SegmentFile& file, std::uint64_t offset, const Options& options);

  // Null at the end, and where bytes cannot be fetched (SegmentFile::failure()); do not call it
  // again then. Lifetime: until the next call.
  const Record* Next();

  // What the last call of Next() had to pass over.
  const std::optional<Hole>& hole() const { return hole_; }
  // Where the next record is looked for; the next walk goes on there.
  std::uint64_t offset() const { return offset_; }

 private:
  bool IsUnfinished() const;

  const SegmentFile& file_;
  Options options_;
  std::uint64_t offset_;
  Record record_;
  Record after_;  // the one behind it: whether there is one tells whether record_ is the last
  ReadStatus after_status_;
  std::optional<Hole> hole_;
};

}  // namespace cgdebug::recording
