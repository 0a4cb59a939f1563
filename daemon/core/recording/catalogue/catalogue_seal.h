// catalogue_seal.h: NAME.cgrec/catalogue.sqlite.seal, by which a catalogue is believed.
//
// A catalogue that was changed by anything but cgdebug, or that belongs to another recording, would
// answer wrongly without a word. So whoever writes it leaves the sum of its bytes beside it, and
// whoever reads it compares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "daemon/core/base/result.h"

namespace cgdebug::recording {

std::string SealPath(const std::string& catalogue);

struct Seal {
  std::uint64_t bytes = 0;  // of the catalogue
  std::uint64_t hash = 0;   // XXH3-64 of them
  std::string recording;    // uuid, 32 hex digits

  friend bool operator==(const Seal&, const Seal&) = default;
};

// Fills the whole buffer from `offset` on; false: it cannot.
using ReadBytes = std::function<bool(std::uint64_t offset, std::span<std::byte> buffer)>;

// The seal of a catalogue as it is now. Nothing if it cannot be read.
std::optional<Seal> MakeSeal(const std::string& recording, std::uint64_t bytes,
                             const ReadBytes& read);

// Nothing if there is none, or it is damaged.
std::optional<Seal> ReadSeal(const std::string& catalogue);
Result<void> WriteSeal(const std::string& catalogue, const Seal& seal);

}  // namespace cgdebug::recording
