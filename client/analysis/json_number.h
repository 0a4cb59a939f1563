// json_number.h: numbers that JSON cannot write.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

namespace cgdebug {

// Fields stay in the order in which they were written.
using Json = nlohmann::ordered_json;

// nlohmann writes NaN as null; what is not finite is "NaN", "Infinity" or "-Infinity".
inline Json JsonNumber(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

// One line, or indented for people. Bytes that are not UTF-8 are replaced, never an exception.
inline std::string Dump(const Json& json, bool indented) {
  return json.dump(indented ? 2 : -1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace cgdebug
