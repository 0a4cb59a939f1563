// daemon_setting.h: the environment variable CGDEBUG: "0" forbids starting or awaiting the daemon,
// "1" starts it with the first probe that needs it. Not for the replay path.
#pragma once

#include <string>

#include "daemon/core/words/settings.h"

namespace cgdebug {

inline std::string DaemonSetting() { return words::ReadSetting("CGDEBUG"); }
inline bool DaemonForbidden() { return DaemonSetting() == "0"; }

}  // namespace cgdebug
