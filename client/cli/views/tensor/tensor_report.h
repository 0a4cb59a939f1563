// tensor_report.h: the report about one tensor, for `show`.
#pragma once

#include <cstddef>
#include <string>

#include "client/analysis/json_number.h"
#include "client/cli/views/terminal.h"
#include "client/source/source.h"
#include "daemon/core/base/result.h"

namespace cgdebug::cli {

struct TensorReportOptions {
  std::size_t values = 64;
  int precision = 4;
  std::string where;  // "nan" or empty
  std::size_t topk = 0;
};

inline constexpr std::size_t kMaxListedElements = 20;

// Fails: a payload that does not fit its dtype and shape.
Result<std::string> TensorReport(const source::Tensor& tensor, const TensorReportOptions& options,
                                 const Style& style);

// The snapshot, "payload_dropped", and with the options "values" (flat, at most
// options.values of them, from the start), "nonfinite" and "topk".
Json TensorReportJson(const source::Tensor& tensor, const TensorReportOptions& options);

}  // namespace cgdebug::cli
