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

}  // namespace cgdebug::recording
