// live_tensor.h: one tensor that the daemon keeps.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cgdebug/client.h"
#include "client/source/source.h"
#include "daemon/core/base/graph_labels.h"
#include "daemon/core/base/result.h"

namespace cgdebug::live {

struct TensorName {
  std::string session;  // as everywhere; empty: the newest that has the probe
  // As `probes` writes it: "x" is the first call in a capture, "x#1" the second.
  std::string probe;
  std::int64_t replay = -1;  // negative: counted back from the newest
  WhichSlots which = {};
  std::optional<int> rank = {};
  std::optional<std::uint32_t> iteration = {};  // of a replay from 1; absent: the last
};

// Fails: there is none; client.last_failure() says whether the daemon said so.
Result<source::Tensor> GetTensor(client::Client& client, const TensorName& name);

}  // namespace cgdebug::live
