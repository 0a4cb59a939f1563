// op_listing.h: the rows of an op log one below the other, with what their ops were given.
#pragma once

#include <functional>
#include <string>

#include "client/analysis/ops/op_log.h"

namespace cgdebug::cli {

struct OpListing {
  bool views = false;  // also the views that were made between the rows
  bool stack = false;  // the lines that led to each op, with their code
  bool tree = false;   // indented by the module in which the op ran
};

// Several lines, without a newline at the end; empty without a row. `is_shown`: of which rows.
std::string OpListingText(const analysis::OpLog& log, const OpListing& listing,
                          const std::function<bool(const analysis::OpRow&)>& is_shown);

// "3 NaN, 1 +Inf"; "-" without any.
std::string NonfiniteText(const numerics::Stats& stats);

}  // namespace cgdebug::cli
