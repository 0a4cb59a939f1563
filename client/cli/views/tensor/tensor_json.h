// tensor_json.h: a tensor as JSON, wherever it comes from, and structs that list their fields
// (proto/layout/field.h).
#pragma once

#include <string>
#include <type_traits>

#include "client/analysis/json_number.h"
#include "client/source/source.h"
#include "daemon/core/base/field_codec.h"
#include "daemon/core/numerics/stats.h"

namespace cgdebug::cli {

Json ToJson(const numerics::Stats& stats);
Json ToJson(const source::Tensor& tensor);  // without its values

// The named fields of a struct that lists its fields, in that order.
template <typename T>
Json FieldsJson(const T& fields);

// A double by JsonNumber(), an enum by its name, what is absent as null.
template <typename T>
Json FieldJson(const T& value) {
  if constexpr (std::is_same_v<T, double>) {
    return JsonNumber(value);
  } else if constexpr (requires { NameOf(value); }) {
    return NameOf(value);
  } else if constexpr (IsParsedText<T>) {
    return value.text();
  } else if constexpr (IsOptional<T>) {
    return value ? FieldJson(*value) : Json();
  } else if constexpr (std::is_same_v<T, numerics::Stats>) {
    return ToJson(value);
  } else if constexpr (IsMessage<T>) {
    return FieldsJson(value);
  } else if constexpr (IsRange<T> && !std::is_same_v<T, std::string>) {
    Json array = Json::array();
    for (const auto& one : value) array.push_back(FieldJson(one));
    return array;
  } else {
    return value;
  }
}

template <typename T>
Json FieldsJson(const T& fields) {
  Json json = Json::object();
  auto& named = json.get_ref<Json::object_t&>();
  std::size_t count = 0;
  T::ForEachField(fields, [&](const layout::Field&, const auto&) { ++count; });
  named.reserve(count);  // an object that grows copies what it has
  T::ForEachField(fields, [&](const layout::Field& field, const auto& value) {
    if (field.name[0] != '\0') named.emplace_back(field.name, FieldJson(value));
  });
  return json;
}

}  // namespace cgdebug::cli
