// number.h: numbers on a command line, with readable error messages.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <string>

namespace cgdebug {

// Why not CLI11's own check: it takes "-1" for 2^64 - 1, and prints ranges with 300 digits.
inline CLI::Validator WholeNumber(std::uint64_t least, std::uint64_t most = UINT64_MAX) {
  return CLI::Validator(
      [=](const std::string& text) -> std::string {
        std::uint64_t value = 0;
        const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool is_whole = failure == std::errc() && end == text.data() + text.size();
        if (is_whole && value >= least && value <= most) return "";
        const std::string range =
            most == UINT64_MAX ? "from " + std::to_string(least) + " on"
                               : "from " + std::to_string(least) + " to " + std::to_string(most);
        return "'" + text + "' is not a whole number " + range;
      },
      "");
}

// Why not CLI11's own check: it says "FLOAT in [1 - 3600]" where a value is missing.
inline CLI::Validator Number(double least, double most) {
  return CLI::Validator(
      [=](const std::string& text) -> std::string {
        double value = 0;
        const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool is_number = failure == std::errc() && end == text.data() + text.size();
        if (is_number && value >= least && value <= most) return "";
        return fmt::format("'{}' is not a number from {} to {}", text, least, most);
      },
      "");
}

}  // namespace cgdebug
