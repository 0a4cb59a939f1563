// field_codec.h: converts structs that list their fields (proto/layout/field.h) to and from
// protobuf's wire format, without protobuf.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "daemon/core/base/wire_format.h"
#include "proto/layout/field.h"

namespace cgdebug {

template <typename T>
concept IsRange = requires(T& value) {
  value.begin();
};
template <typename T>
concept IsOptional = requires(T& value) {
  value.has_value();
};
// What is made of a text, and has it.
template <typename T>
concept IsParsedText = std::is_constructible_v<T, std::string> && requires(const T& value) {
  { value.text() } -> std::same_as<const std::string&>;
};
// A struct that lists its fields is a message here.
template <typename T>
concept IsMessage = std::is_class_v<T> && !IsRange<T> && !IsParsedText<T>;

class FieldEncoder {
 public:
  template <typename T>
  void operator()(const layout::Field& field, const T& value) {
    const std::uint32_t number = field.number;
    if constexpr (std::is_same_v<T, std::string>) {
      out_.Bytes(number, value);
    } else if constexpr (IsParsedText<T>) {
      out_.Bytes(number, value.text());
    } else if constexpr (IsOptional<T>) {
      if (!value) return;
      if constexpr (IsMessage<typename T::value_type>) {
        PutMessage(number, *value);
      } else {
        (*this)(field, true, static_cast<std::uint64_t>(*value));
      }
    } else if constexpr (std::is_same_v<T, double>) {
      out_.Double(number, value);
    } else if constexpr (IsRange<T>) {
      PutRange(number, value);
    } else if constexpr (IsMessage<T>) {
      PutMessage(number, value);
    } else {
      const auto bits = static_cast<std::uint64_t>(value);
      switch (field.encoding) {
        case layout::Encoding::kPlain:
          return out_.Varint(number, bits);
        case layout::Encoding::kSigned:
          return out_.Signed(number, static_cast<std::int64_t>(value));
        case layout::Encoding::kFixed:
          return out_.Fixed64(number, bits);
      }
    }
  }
  void operator()(const layout::Field& field, bool present, std::uint64_t value) {
    if (!present) return;
    field.encoding == layout::Encoding::kFixed ? out_.PresentFixed64(field.number, value)
                                               : out_.PresentVarint(field.number, value);
  }
  // What was written; nothing is left.
  std::string Release() { return out_.Release(); }

 private:
  template <typename T>
  void PutRange(std::uint32_t number, const T& values) {
    if constexpr (std::is_same_v<typename T::value_type, std::string>) {
      for (const std::string& value : values) out_.PresentBytes(number, value);
    } else if constexpr (IsMessage<typename T::value_type>) {
      for (const auto& value : values) PutMessage(number, value);
    } else {
      out_.Packed(number, values);
    }
  }
  template <typename T>
  void PutMessage(std::uint32_t number, const T& message) {
    FieldEncoder inner;
    T::ForEachField(message, inner);
    out_.Message(number, inner.out_);
  }

  WireWriter out_;
};

// Visits the fields of the message in their order, which is the one in which they are written, and
// takes each from the wire. What comes in another order costs further visits. Clears all fields
// first: an absent field is 0, whatever the struct's default is.
class FieldDecoder {
 public:
  explicit FieldDecoder(std::string_view bytes) : in_(bytes) {}

  template <typename T>
  bool Read(T& message) {
    T::ForEachField(message, *this);
    clearing_ = false;
    for (has_ = in_.Next(); has_;) {
      taken_ = false;
      T::ForEachField(message, *this);
      if (!taken_) has_ = in_.Next();  // of a later version
    }
    return ok_ && in_.ok();
  }

  template <typename T>
  void operator()(const layout::Field& field, T& value) {
    if (clearing_) return Take(field, value);
    for (; has_ && in_.field() == field.number; has_ = in_.Next()) {
      taken_ = true;
      Take(field, value);
    }
  }
  void operator()(const layout::Field& field, bool& present, std::uint64_t& value) {
    if (clearing_ || (has_ && in_.field() == field.number)) present = !clearing_;
    (*this)(field, value);
  }

 private:
  template <typename T>
  void Take(const layout::Field& field, T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      value = in_.chunk();
    } else if constexpr (IsParsedText<T>) {
      value = T(clearing_ ? std::string() : std::string(in_.chunk()));
    } else if constexpr (IsOptional<T>) {
      clearing_ ? value.reset() : Take(field, value.emplace());
    } else if constexpr (std::is_same_v<T, double>) {
      value = in_.double_value();
    } else if constexpr (IsRange<T>) {
      TakeRange(value);
    } else if constexpr (IsMessage<T>) {
      ok_ = FieldDecoder(in_.chunk()).Read(value) && ok_;
    } else if (field.encoding == layout::Encoding::kSigned) {
      value = static_cast<T>(in_.signed_value());
    } else {
      value = static_cast<T>(in_.value());
    }
  }
  template <typename T>
  void TakeRange(T& values) {
    if constexpr (std::is_same_v<typename T::value_type, std::string>) {
      if (clearing_) return values.clear();
      values.emplace_back(in_.chunk());
    } else if constexpr (IsMessage<typename T::value_type>) {
      if (clearing_) return values.clear();
      ok_ = FieldDecoder(in_.chunk()).Read(values.emplace_back()) && ok_;
    } else if constexpr (requires { values.emplace_back(); }) {
      if (clearing_) values.clear();
      WireReader packed(in_.chunk());
      for (std::uint64_t value = 0; ok_ && !packed.empty();) {
        ok_ = packed.Take(&value);
        if (ok_) values.push_back(static_cast<typename T::value_type>(value));
      }
    } else {
      if (clearing_) values = {};
      WireReader packed(in_.chunk());
      for (auto value = values.begin(); ok_ && !packed.empty() && value != values.end(); ++value) {
        ok_ = packed.Take(&*value);
      }
    }
  }

  WireReader in_;
  bool clearing_ = true;
  bool has_ = false;    // in_ is at a field
  bool taken_ = false;  // by the visit that runs
  bool ok_ = true;
};

template <typename T>
std::string EncodeFields(const T& message) {
  FieldEncoder encoder;
  T::ForEachField(message, encoder);
  return encoder.Release();
}

// Empty if the bytes are not such a message. Skips unknown fields.
template <typename T>
std::optional<T> DecodeFields(std::string_view bytes) {
  T message;
  if (!FieldDecoder(bytes).Read(message)) return std::nullopt;
  return message;
}

}  // namespace cgdebug
