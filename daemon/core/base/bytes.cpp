#include "daemon/core/base/bytes.h"

#include <cctype>

namespace cgdebug {
namespace {

std::string InLargestUnit(std::uint64_t bytes) {
  std::size_t place = 0;
  for (; place < 4 && bytes >= 1024 && bytes % 1024 == 0; ++place) bytes /= 1024;
  return std::to_string(bytes) + (place == 0 ? "" : std::string(1, "KMGT"[place - 1]));
}

}  // namespace

Result<std::uint64_t> ParseBytes(const std::string& text, std::uint64_t least, std::uint64_t most) {
  constexpr double kMost = 9223372036854775808.0;
  const Error error{"'" + text + "' is not a size; write for example 512M, 1.5G, 20G"};
  std::size_t used = 0;
  double number = -1;
  try {
    number = std::stod(text, &used);
  } catch (const std::exception&) {
    return error;
  }
  std::string unit;
  for (const char c : text.substr(used)) unit += static_cast<char>(std::toupper(c));
  if (unit.ends_with("IB")) unit.resize(unit.size() - 2);
  if (unit.ends_with("B")) unit.resize(unit.size() - 1);
  const std::string units = "KMGT";
  const std::size_t place = unit.empty() ? 0 : units.find(unit) + 1;
  if (unit.size() > 1 || (place == 0 && !unit.empty())) return error;
  for (std::size_t i = 0; i < place; ++i) number *= 1024;
  if (!(number >= 0) || number > kMost) return error;
  const auto bytes = static_cast<std::uint64_t>(number);
  if (bytes < least) {
    return Error{"'" + text + "' is too little; the least is " + InLargestUnit(least)};
  }
  if (bytes > most) return Error{"'" + text + "' is too much; the most is " + InLargestUnit(most)};
  return bytes;
}

}  // namespace cgdebug
