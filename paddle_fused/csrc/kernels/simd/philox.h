// Counter-based random numbers for dropout, for */simd only. A word depends only on its counter and key, so both
// passes of an operator compute the same mask in any order and on any threads.
#pragma once
#include <cstdint>

namespace paddle_fused::kernels {
namespace PF_TARGET {

// Philox4x32-10 (Salmon et al., SC'11): four random words from a 128-bit counter and a 64-bit key.
static inline void philox(uint64_t counter_low, uint64_t counter_high, uint64_t key, uint32_t* words) {
  uint32_t c0 = static_cast<uint32_t>(counter_low), c1 = static_cast<uint32_t>(counter_low >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_high), c3 = static_cast<uint32_t>(counter_high >> 32);
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(c0) * 0xD2511F53u, p1 = static_cast<uint64_t>(c2) * 0xCD9E8D57u;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0, n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  words[0] = c0;
  words[1] = c1;
  words[2] = c2;
  words[3] = c3;
}

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
