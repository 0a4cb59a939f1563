// wire_format.h: the part of protobuf's wire format that our messages need. Written here, because
// the reader loads beside torch, which brings its own protobuf.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

namespace cgdebug {

// Leaves out fields with their default value, as protobuf does.
class WireWriter {
 public:
  void Varint(std::uint32_t field, std::uint64_t value) {
    if (value == 0) return;
    Raw(field << 3);
    Raw(value);
  }
  void Signed(std::uint32_t field, std::int64_t value) { Varint(field, ZigZag(value)); }
  void Fixed64(std::uint32_t field, std::uint64_t value) {
    if (value != 0) PresentFixed64(field, value);
  }
  void Double(std::uint32_t field, double value) {
    Fixed64(field, std::bit_cast<std::uint64_t>(value));
  }
  void Bytes(std::uint32_t field, std::string_view value) {
    if (!value.empty()) PresentBytes(field, value);
  }
  template <typename Range>
  void Packed(std::uint32_t field, const Range& values) {
    WireWriter inner;
    for (const auto value : values) inner.Raw(static_cast<std::uint64_t>(value));
    Bytes(field, inner.bytes_);
  }
  // Writes 0 too: for an `optional` field.
  void PresentVarint(std::uint32_t field, std::uint64_t value) {
    Raw(field << 3);
    Raw(value);
  }
  void PresentFixed64(std::uint32_t field, std::uint64_t value) {
    Raw(field << 3 | 1);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void PresentBytes(std::uint32_t field, std::string_view value) {
    Raw(field << 3 | 2);
    Raw(value.size());
    bytes_.append(value);
  }
  void Message(std::uint32_t field, const WireWriter& inner) { PresentBytes(field, inner.bytes_); }

  // What was written; nothing is left.
  std::string Release() { return std::exchange(bytes_, {}); }

 private:
  static std::uint64_t ZigZag(std::int64_t value) {
    return static_cast<std::uint64_t>(value) << 1 ^ static_cast<std::uint64_t>(value >> 63);
  }
  void Raw(std::uint64_t value) {
    while (value >= 0x80) {
      bytes_.push_back(static_cast<char>(value | 0x80));
      value >>= 7;
    }
    bytes_.push_back(static_cast<char>(value));
  }

  std::string bytes_;
};

// Accepts any bytes. Truncated input or an invalid field ends the loop with ok() false.
//
//   for (WireReader in(bytes); in.Next();) {
//     switch (in.field()) { case 1: x = in.value(); break; }
//   }
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : bytes_(bytes) {}

  bool Next() {
    std::uint64_t tag = 0;
    if (bytes_.empty() || !Take(&tag)) return false;
    field_ = static_cast<std::uint32_t>(tag >> 3);
    chunk_ = {};
    value_ = 0;
    switch (tag & 7) {
      case 0:
        return Take(&value_);
      case 1:
        return TakeFixed(8);
      case 2: {
        std::uint64_t length = 0;
        if (!Take(&length) || length > bytes_.size()) return ok_ = false;
        chunk_ = bytes_.substr(0, length);
        bytes_.remove_prefix(length);
        return true;
      }
      case 5:
        return TakeFixed(4);
      default:
        return ok_ = false;
    }
  }
  // Takes the next varint of a packed field.
  bool Take(std::uint64_t* value) {
    *value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (bytes_.empty()) return ok_ = false;
      const auto byte = static_cast<std::uint8_t>(bytes_.front());
      bytes_.remove_prefix(1);
      *value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return ok_ = false;
  }

  bool ok() const { return ok_; }
  bool empty() const { return bytes_.empty(); }
  std::uint32_t field() const { return field_; }
  std::uint64_t value() const { return value_; }
  std::int64_t signed_value() const {
    return static_cast<std::int64_t>(value_ >> 1 ^ (~(value_ & 1) + 1));
  }
  double double_value() const { return std::bit_cast<double>(value_); }
  std::string_view chunk() const { return chunk_; }

 private:
  bool TakeFixed(std::size_t bytes) {
    if (bytes_.size() < bytes) return ok_ = false;
    std::memcpy(&value_, bytes_.data(), bytes);
    bytes_.remove_prefix(bytes);
    return true;
  }

  std::string_view bytes_;
  std::string_view chunk_;
  std::uint64_t value_ = 0;
  std::uint32_t field_ = 0;
  bool ok_ = true;
};

}  // namespace cgdebug
