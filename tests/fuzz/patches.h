// patches.h: turns fuzzed bytes into changes of existing bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace cgdebug::fuzz {

// Takes small values off the front of an input; zeros when it has ended.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : left_(data, size) {}

  bool empty() const { return left_.empty(); }
  std::span<const std::uint8_t> rest() const { return left_; }
  template <typename T>
  T Take() {
    T value = {};
    const std::size_t bytes = std::min(sizeof(T), left_.size());
    if (bytes != 0) std::memcpy(&value, left_.data(), bytes);
    left_ = left_.subspan(bytes);
    return value;
  }

 private:
  std::span<const std::uint8_t> left_;
};

// Acts as a hostile or broken writer: stores words of 1, 2, 4 or 8 bytes anywhere, or adds to them,
// until the input says that a reader looks.
//
//   patch := u8 what | u16 place | value     what: bits 0, 1 the width; bit 2 add; 7 at once: the
//   end
inline void Patch(Input* input, std::span<std::byte> bytes) {
  while (!input->empty()) {
    const auto what = input->Take<std::uint8_t>();
    if ((what & 7) == 7) return;
    const std::size_t width = std::size_t{1} << (what & 3);
    const std::size_t place = std::size_t{input->Take<std::uint16_t>()} * width;
    if (bytes.size() < width) return;
    std::byte* at = bytes.data() + place % (bytes.size() / width) * width;
    std::uint64_t value = 0;
    if ((what & 4) != 0) {
      std::memcpy(&value, at, width);
      value += static_cast<std::uint64_t>(std::int64_t{input->Take<std::int8_t>()});
    } else {
      for (std::size_t i = 0; i < width; ++i) {
        value |= std::uint64_t{input->Take<std::uint8_t>()} << (8 * i);
      }
    }
    std::memcpy(at, &value, width);
  }
}

}  // namespace cgdebug::fuzz
