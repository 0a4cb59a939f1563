// messages.h: the daemon's answers as the model that recordings and files share.
#pragma once

#include <string>

#include "cgdebug/client.h"
#include "client/source/source.h"
#include "daemon/core/numerics/stats.h"
#include "proto/control.pb.h"
#include "proto/layout/dtype.h"

namespace cgdebug::live {

// kInvalid for a name that this version does not know.
layout::Dtype DtypeOf(const std::string& name);
numerics::Stats StatsOf(const v1::Stats& stats);
source::Slot SlotOf(const v1::ProbeInfo& probe);
// Without values.
source::Tensor TensorOf(const v1::Snapshot& snapshot);
source::Tensor TensorOf(client::Tensor tensor);

void FillWhich(const WhichSlots& which, v1::Which* message);

}  // namespace cgdebug::live
