#include "kernels/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace paddle_fused::kernels {
namespace {

#if defined(__x86_64__)
// Whether the processor has bfloat16 tiles and the operating system lets this process use them. The permission has to
// be requested once and is valid for all threads.
bool offers_amx() {
  constexpr unsigned kTilesOfBFloat16 = 1u << 22 | 1u << 24, kOsUsesXsave = 1u << 27;
  constexpr unsigned kTileState = 3u << 17;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & kOsUsesXsave)) return false;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kTilesOfBFloat16) != kTilesOfBFloat16) return false;
  __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  if ((a & kTileState) != kTileState) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, missing in old headers
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// __builtin_cpu_supports in gcc 9 and 10 does not recognize it.
bool offers_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

bool offers_avx512_bf16() {
  constexpr unsigned kPairsOfBFloat16 = 1u << 5;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & kPairsOfBFloat16);
}
#endif

bool built(Isa isa) {
  switch (isa) {
#if !defined(PF_HAS_AMX)
    case Isa::kAmx:
      return false;
#endif
#if !defined(PF_HAS_AVX512_BF16)
    case Isa::kAvx512Bf16:
      return false;
#endif
#if !defined(PF_HAS_AVX512)
    case Isa::kAvx512:
      return false;
#endif
    default:
      return true;
  }
}

bool machine_offers(Isa isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  switch (isa) {
    case Isa::kAmx:
      return machine_offers(Isa::kAvx512) && offers_amx();
    case Isa::kAvx512Bf16:
      return machine_offers(Isa::kAvx512) && offers_avx512_bf16();
    case Isa::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("bmi2");
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
             offers_f16c();
    default:
      return isa == Isa::kBaseline;
  }
#elif defined(__aarch64__)
  return isa == Isa::kBaseline || isa == Isa::kNeon;
#else
  return isa == Isa::kBaseline;
#endif
}

Isa choose() {
  Isa widest = Isa::kBaseline;
  for (Isa isa : kAllIsas)
    if (built(isa) && machine_offers(isa)) widest = isa;
  const char* forced = std::getenv("PADDLE_FUSED_ISA");
  if (!forced || !*forced) return widest;
  for (Isa isa : kAllIsas) {
    if (std::string(forced) != isa_name(isa)) continue;
    if (!machine_offers(isa) || !built(isa))
      throw std::invalid_argument(std::string("PADDLE_FUSED_ISA=") + forced + ", which " +
                                  (machine_offers(isa) ? "is not part of this build; the widest available is "
                                                       : "this machine does not support; its widest is ") +
                                  isa_name(widest) + ". Unset the variable or use a narrower one.");
    return isa;
  }
  throw std::invalid_argument(std::string("PADDLE_FUSED_ISA=") + forced +
                              " is unknown; accepted: baseline, neon, avx2, avx512, avx512_bf16 and amx.");
}

}  // namespace

Isa active_isa() {
  static const Isa isa = choose();
  return isa;
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kAmx:
      return "amx";
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kNeon:
      return "neon";
    default:
      return "baseline";
  }
}

}  // namespace paddle_fused::kernels
