// Run-time choice of the instruction set.
//
// A kernel is written once, width-agnostic, in kernels/<room>/simd/<op>.cc. That file is compiled for every target into
// namespace paddle_fused::kernels::PF_TARGET and hands out a table of function pointers; kernels/<room>/<op>.cc picks
// one.
// Code in simd/ must not call inline functions of the standard library: the linker keeps one copy of each, and that
// copy may have been compiled for a wider machine than the one at hand.
#pragma once

#define PF_EXPORT __attribute__((visibility("default")))

namespace paddle_fused::kernels {

// From the narrowest to the widest; kNeon is of aarch64, the others of x86-64. The last two are AVX-512 but for products
// of bfloat16 in matmul and attention: by AVX512_BF16, which multiplies pairs, or by AMX, which multiplies tiles.
enum class Isa { kBaseline, kNeon, kAvx2, kAvx512, kAvx512Bf16, kAmx };
constexpr Isa kAllIsas[] = {Isa::kBaseline, Isa::kNeon,       Isa::kAvx2,
                            Isa::kAvx512,   Isa::kAvx512Bf16, Isa::kAmx};

// The widest instruction set that this machine and this library have, or the one named by the environment variable
// PADDLE_FUSED_ISA (baseline, neon, avx2, avx512, avx512_bf16, amx), read once. Throws std::invalid_argument if that name
// is unknown, or the machine or this library lacks it.
PF_EXPORT Isa active_isa();
PF_EXPORT const char* isa_name(Isa isa);

}  // namespace paddle_fused::kernels

// PF_DECLARE_TABLE(CastTable, cast_table) declares the accessor that every target's simd/<op>.cc defines;
// PF_SELECT_TABLE(cast_table) calls the one of the active instruction set.
// PF_DECLARE_PRODUCT_TABLE and PF_SELECT_PRODUCT_TABLE add, for kernels that multiply, what is compiled for products of
// bfloat16, which is chosen if the operands are.
//
// kernels.cmake defines PF_HAS_<target> for those beyond AVX2 that this library has: an old compiler lacks some, and a
// local build leaves out what the machine lacks. What it does not have is never active.
#if defined(__x86_64__)
#define PF_DECLARE_TABLE(Table, name)         \
  namespace baseline { const Table& name(); } \
  namespace avx2 { const Table& name(); }     \
  namespace avx512 { const Table& name(); }
#if defined(PF_HAS_AVX512)
#define PF_AVX512_TABLE(name) avx512::name()
#else
#define PF_AVX512_TABLE(name) avx2::name()
#endif
#define PF_SELECT_TABLE(name)                         \
  (active_isa() >= Isa::kAvx512  ? PF_AVX512_TABLE(name) \
   : active_isa() == Isa::kAvx2 ? avx2::name()        \
                                : baseline::name())
#define PF_DECLARE_PRODUCT_TABLE(Table, name)    \
  PF_DECLARE_TABLE(Table, name)                  \
  namespace avx512_bf16 { const Table& name(); } \
  namespace amx { const Table& name(); }
#if defined(PF_HAS_AVX512_BF16)
#define PF_AVX512_BF16_TABLE(name) avx512_bf16::name()
#else
#define PF_AVX512_BF16_TABLE(name) PF_AVX512_TABLE(name)
#endif
#if defined(PF_HAS_AMX)
#define PF_AMX_TABLE(name) amx::name()
#else
#define PF_AMX_TABLE(name) PF_AVX512_TABLE(name)
#endif
#define PF_SELECT_PRODUCT_TABLE(name, bfloat16)                                 \
  ((bfloat16) && active_isa() == Isa::kAmx          ? PF_AMX_TABLE(name)         \
   : (bfloat16) && active_isa() == Isa::kAvx512Bf16 ? PF_AVX512_BF16_TABLE(name) \
                                                    : PF_SELECT_TABLE(name))
#elif defined(__aarch64__)
#define PF_DECLARE_TABLE(Table, name)         \
  namespace baseline { const Table& name(); } \
  namespace neon { const Table& name(); }
#define PF_SELECT_TABLE(name) (active_isa() == Isa::kNeon ? neon::name() : baseline::name())
#define PF_DECLARE_PRODUCT_TABLE(Table, name) PF_DECLARE_TABLE(Table, name)
#define PF_SELECT_PRODUCT_TABLE(name, bfloat16) (static_cast<void>(bfloat16), PF_SELECT_TABLE(name))
#else
#define PF_DECLARE_TABLE(Table, name) \
  namespace baseline { const Table& name(); }
#define PF_SELECT_TABLE(name) baseline::name()
#define PF_DECLARE_PRODUCT_TABLE(Table, name) PF_DECLARE_TABLE(Table, name)
#define PF_SELECT_PRODUCT_TABLE(name, bfloat16) (static_cast<void>(bfloat16), PF_SELECT_TABLE(name))
#endif
