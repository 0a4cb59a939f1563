#include "daemon/core/recording/segments/segment_walk.h"

#include <utility>

namespace cgdebug::recording {

SegmentWalk::SegmentWalk(const SegmentFile& file, std::uint64_t offset, const Options& options)
    : file_(file), options_(options), offset_(offset), after_status_(file.Read(offset, &after_)) {}

const Record* SegmentWalk::Next() {
  hole_.reset();
  if (offset_ >= options_.end) return nullptr;
  if (after_status_ == ReadStatus::kUnread) return nullptr;
  if (after_status_ != ReadStatus::kRecord) {
    // While a writer is at work, a record that is not there yet may be there at the next look.
    if (options_.is_live && after_status_ == ReadStatus::kEnd) return nullptr;
    const auto next = file_.FindRecord(offset_ + layout::kRecordAlignment);
    if (!next || *next >= options_.end || file_.Read(*next, &after_) != ReadStatus::kRecord) {
      return nullptr;
    }
    hole_ = {offset_, *next - offset_, after_.header.number};
    offset_ = *next;
  }
  std::swap(record_, after_);
  after_status_ = file_.Read(record_.next(), &after_);
  if (IsUnfinished()) return nullptr;
  offset_ = record_.next();
  return &record_;
}

bool SegmentWalk::IsUnfinished() const {
  const bool may_be =
      options_.is_last && after_status_ != ReadStatus::kRecord && record_.header.payload_bytes != 0;
  if (!may_be || file_.PayloadMatchesItsHash(record_)) return false;
  return options_.is_live || !file_.FindRecord(record_.next());
}

}  // namespace cgdebug::recording
