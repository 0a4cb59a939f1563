// top_control.h: how `top` sets probes, as `cgdebug-cli set` does.
#pragma once

#include <vector>

#include "cgdebug/client.h"
#include "client/cli/top/said.h"
#include "client/cli/views/live/top_model.h"
#include "proto/layout/slot_control.h"

namespace cgdebug::cli {

// These return what was done, or why it was not.
// `one`: nullptr if the probe is gone meanwhile. Its other graphs and shapes stay as they are.
Said SetOne(client::Client& client, const TopProbe* one, layout::ControlMode mode);
// Those of the rows whose jobs live.
Said SetAll(client::Client& client, const TopModel& model, const std::vector<const TopProbe*>& rows,
            layout::ControlMode mode);

}  // namespace cgdebug::cli
