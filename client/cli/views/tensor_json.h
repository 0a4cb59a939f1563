// tensor_json.h: a tensor as JSON, wherever it comes from.
#pragma once

#include <type_traits>

#include "client/analysis/json_number.h"
#include "client/source/source.h"
#include "daemon/core/numerics/stats.h"

namespace cgdebug::cli {

// A double by JsonNumber(), everything else as it is.
template <typename T>
Json FieldJson(const T& value) {
  if constexpr (std::is_same_v<T, double>) {
    return JsonNumber(value);
  } else {
    return value;
  }
}

Json ToJson(const numerics::Stats& stats);
Json ToJson(const source::Tensor& tensor);  // without its values

}  // namespace cgdebug::cli
