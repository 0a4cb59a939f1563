// op_details.h: what a row of an op log says beside its statistics: what its op was given, and
// where.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/analysis/json_number.h"
#include "client/source/source.h"

namespace cgdebug::analysis {

// What is empty is not known, or there is none.
struct OpDetails {
  std::string arguments;                  // "self=#3.t(), dim=1"
  std::string code;                       // text of the line that calls the op
  std::vector<std::string> stack = {};    // what called that line, the innermost first
  std::vector<std::string> views = {};    // made since the row before: "#3.t() -> f32[8,4]"
  std::vector<std::string> sources = {};  // of a fused kernel: "layers.0.mlp/relu model.py:7"
  std::string region = {};                // "step/forward"
  std::string placements = {};            // of an op on DTensors
  std::vector<std::pair<std::string, std::string>> columns = {};  // of hooks
};

// `text`: source::Slot::details. Fails: never; of a damaged text nothing is known.
OpDetails ParseOpDetails(std::string_view text);
// The same as JSON; null if nothing is known.
Json OpDetailsJson(std::string_view text);
// All that a slot says of its row, for people: a word and a text for each thing, such as "op" and
// "#7 aten.softmax.int(self=#3, dim=-1)". Empty if it is no row of an op log.
std::vector<std::pair<std::string, std::string>> OpFacts(const source::Slot& slot);

}  // namespace cgdebug::analysis
