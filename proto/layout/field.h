// field.h: how a struct lists its fields once, for everything that stores, sends or shows them.
//
//   struct Counters {
//     std::uint64_t waits = 0;
//
//     template <typename Self, typename Visitor>
//     static constexpr void ForEachField(Self& self, Visitor&& visit) {
//       visit(Field{7, "waits"}, self.waits);
//     }
//   };
//
// A visitor takes (field, value), and (field, present, value) where a field may be absent. The
// codec of recordings, the messages of control.proto, JSON, SQL and Python are visitors.
#pragma once

#include <cstdint>

namespace cgdebug::layout {

// How an integer is encoded: as a plain varint, zigzag (sint32, sint64) or 8 bytes (fixed64).
enum class Encoding : std::uint8_t { kPlain, kSigned, kFixed };

struct Field {
  constexpr Field(std::uint32_t at, const char* called, Encoding encoded = Encoding::kPlain)
      : number(at), name(called), encoding(encoded) {}
  std::uint32_t number;  // in the .proto file
  const char* name;      // there, in JSON, in SQL and in Python
  Encoding encoding;
};

}  // namespace cgdebug::layout
