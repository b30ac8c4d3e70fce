#include "kernels/isa.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace paddle_fused::kernels {
namespace {

Isa widest() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("bmi2"))
    return Isa::kAvx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
      __builtin_cpu_supports("bmi2"))
    return Isa::kAvx2;
#endif
  return Isa::kBaseline;
}

Isa choose() {
  const Isa machine = widest();
  const char* forced = std::getenv("PADDLE_FUSED_ISA");
  if (!forced || !*forced) return machine;
  for (Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512}) {
    if (std::string(forced) != isa_name(isa)) continue;
    if (isa > machine)
      throw std::invalid_argument(std::string("PADDLE_FUSED_ISA=") + forced + ", but this machine offers only " +
                                  isa_name(machine) + "; unset it or name a narrower one.");
    return isa;
  }
  throw std::invalid_argument(std::string("PADDLE_FUSED_ISA=") + forced +
                              " is unknown; accepted are baseline, avx2 and avx512.");
}

}  // namespace

Isa active_isa() {
  static const Isa isa = choose();
  return isa;
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx2:
      return "avx2";
    default:
      return "baseline";
  }
}

}  // namespace paddle_fused::kernels
