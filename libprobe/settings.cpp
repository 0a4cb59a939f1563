#include "libprobe/settings.h"

#include <cstdio>
#include <exception>
#include <mutex>
#include <set>
#include <string>

#include "daemon/core/words/settings.h"
#include "libprobe/probe_table.h"

namespace cgdebug {

void TellMalformedSettings() noexcept try {
  static std::mutex mutex;
  static std::set<std::string> told;
  for (const words::MalformedSetting& setting : words::MalformedSettings()) {
    {
      const std::lock_guard lock(mutex);
      if (!told.insert(setting.problem).second) continue;
    }
    std::fprintf(stderr, "cgdebug: %s. The job goes on as without it\n", setting.problem.c_str());
    ProbeTable::Instance().not_seen.CountMalformed(setting.problem);
  }
} catch (const std::exception&) {  // no memory is left
}

}  // namespace cgdebug
