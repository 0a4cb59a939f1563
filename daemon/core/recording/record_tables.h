// record_tables.h: what the records of a recording say, apart from its snapshots.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/core/recording/segments/segment_file.h"
#include "daemon/core/recording/types.h"

namespace cgdebug::recording {

struct RecordTables {
  // By id. If a record is damaged, its uuid or probe name is empty.
  std::vector<Session> sessions;
  std::vector<Slot> slots;
  std::vector<Mark> marks;
  std::vector<Loss> losses;
  // Every record up to this number was on the disk when the writer said so.
  std::uint64_t durable_number = 0;

  // Sessions and slots stand at the head of every segment; the first good one of an id counts. An
  // id from `most` on is none. Other records, and what does not decode, change nothing.
  void Take(const Record& record, std::uint64_t most);
};

}  // namespace cgdebug::recording
