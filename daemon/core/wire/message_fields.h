// message_fields.h: structs that list their fields (proto/layout/field.h) to and from the messages
// of proto/control.proto. A field whose number the other side does not have is left alone.
#pragma once

#include <google/protobuf/message_lite.h>

#include "daemon/core/base/field_codec.h"

namespace cgdebug {

// Sets the fields of `message` that `fields` lists; the others stay.
template <typename T>
void FillMessage(const T& fields, google::protobuf::MessageLite* message) {
  [[maybe_unused]] const bool parsed = message->MergeFromString(EncodeFields(fields));
}

// Absent fields are 0.
template <typename T>
T FieldsOf(const google::protobuf::MessageLite& message) {
  return DecodeFields<T>(message.SerializeAsString()).value_or(T());
}

}  // namespace cgdebug
