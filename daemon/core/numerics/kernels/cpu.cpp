#include "daemon/core/numerics/kernels/cpu.h"

#include <atomic>  // Atomic: see Chosen()

namespace cgdebug::numerics {
namespace {

// Atomic: read by every computation; OverrideCpu() may come from another thread.
std::atomic<Cpu>& Chosen() {
  static std::atomic<Cpu> chosen = AvailableCpus().back();  // Atomic: as above
  return chosen;
}

}  // namespace

Cpu ChosenCpu() { return Chosen().load(std::memory_order_relaxed); }

std::vector<Cpu> AvailableCpus() {
  std::vector<Cpu> cpus = {Cpu::kPlain};
#if defined(__x86_64__)
  // Does not ask for f16c: every processor with AVX2 has it, and clang 14 cannot name it.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
      __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("aes")) {
    cpus.push_back(Cpu::kAvx2);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512cd")) {
      cpus.push_back(Cpu::kAvx512);
    }
  }
#elif defined(__aarch64__)
  cpus.push_back(Cpu::kNeon);
#endif
  return cpus;
}

void OverrideCpu(Cpu cpu) { Chosen().store(cpu, std::memory_order_relaxed); }

}  // namespace cgdebug::numerics
