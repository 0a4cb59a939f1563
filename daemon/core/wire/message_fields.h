// message_fields.h: converts structs that list their fields (proto/layout/field.h) to and from
// messages of proto/control.proto. Leaves out fields whose number the other side does not have.
#pragma once

#include <google/protobuf/message_lite.h>

#include "daemon/core/base/field_codec.h"

namespace cgdebug::wire {

// Sets the fields of `message` that `fields` lists and leaves the others unchanged.
// Requires: texts are UTF-8, as in every message.
template <typename T>
void FillMessage(const T& fields, google::protobuf::MessageLite* message) {
  [[maybe_unused]] const bool parsed = message->MergeFromString(EncodeFields(fields));
}

// Absent fields become 0.
template <typename T>
T FieldsOf(const google::protobuf::MessageLite& message) {
  return DecodeFields<T>(message.SerializeAsString()).value_or(T());
}

}  // namespace cgdebug::wire
