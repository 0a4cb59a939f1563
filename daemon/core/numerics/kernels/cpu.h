// cpu.h: which vectors the loops of daemon/core/numerics run in.
#pragma once

#include <vector>

namespace cgdebug::numerics {

enum class Cpu { kPlain, kNeon, kAvx2, kAvx512 };

// The best that this CPU has and this build knows, unless OverrideCpu() said otherwise.
// Thread: any.
Cpu ChosenCpu();
// Those that can be chosen here, kPlain first.
std::vector<Cpu> AvailableCpus();
// For tests and benchmarks. Requires: one of AvailableCpus(); no computation is running.
void OverrideCpu(Cpu cpu);

}  // namespace cgdebug::numerics
