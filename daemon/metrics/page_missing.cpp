// In place of page.cpp where there is no prometheus-cpp.
#include "daemon/metrics/page.h"

namespace cgdebug::metrics {

bool CanMakePages() { return false; }
std::string MakePage(const Model&, const Limits&) { return ""; }

}  // namespace cgdebug::metrics
