#include "daemon/core/recording/meta.h"

#include "daemon/core/base/field_codec.h"

namespace cgdebug::recording {

std::string Encode(const Session& session) { return EncodeFields(session); }
std::string Encode(const Slot& slot) { return EncodeFields(slot); }
std::string Encode(const Snapshot& snapshot) { return EncodeFields(snapshot); }
std::string Encode(const Loss& loss) { return EncodeFields(loss); }
std::string Encode(const Mark& mark) { return EncodeFields(mark); }
std::string Encode(const Commit& commit) { return EncodeFields(commit); }
std::string Encode(const Index& index) { return EncodeFields(index); }
std::string Encode(const End& end) { return EncodeFields(end); }

template <>
std::optional<Session> Decode(std::string_view bytes) {
  return DecodeFields<Session>(bytes);
}
template <>
std::optional<Slot> Decode(std::string_view bytes) {
  return DecodeFields<Slot>(bytes);
}
template <>
std::optional<Snapshot> Decode(std::string_view bytes) {
  return DecodeFields<Snapshot>(bytes);
}
template <>
std::optional<Loss> Decode(std::string_view bytes) {
  return DecodeFields<Loss>(bytes);
}
template <>
std::optional<Mark> Decode(std::string_view bytes) {
  return DecodeFields<Mark>(bytes);
}
template <>
std::optional<Commit> Decode(std::string_view bytes) {
  return DecodeFields<Commit>(bytes);
}
template <>
std::optional<Index> Decode(std::string_view bytes) {
  return DecodeFields<Index>(bytes);
}
template <>
std::optional<End> Decode(std::string_view bytes) {
  return DecodeFields<End>(bytes);
}

std::string_view ToText(LossCause cause) {
  switch (cause) {
    case LossCause::kOverwritten:
      return "overwritten before it was read";
    case LossCause::kReleased:
      return "given up unread by the job";
    case LossCause::kAtDeath:
      return "half written when the job ended";
    case LossCause::kDisk:
      return "the disk was full or failed";
    case LossCause::kLimit:
      return "the recording had reached its size";
    case LossCause::kDaemonGone:
      return "no daemon was recording";
    case LossCause::kDamaged:
      return "the recording is damaged there";
    case LossCause::kCorrupted:
      return "damaged on its way: its checksum is wrong";
    case LossCause::kLeftOut:
      return "damaged in what it was copied from";
    case LossCause::kValuesGone:
      return "their values were no longer kept, only their statistics";
    case LossCause::kNoMemory:
      return "the daemon had no memory to read them";
    case LossCause::kNotKept:
      return "no longer kept";
    case LossCause::kUnread:
      return "not read in time when the recording was stopped";
  }
  return "unknown cause";
}

}  // namespace cgdebug::recording
