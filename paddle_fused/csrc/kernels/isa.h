// Selects the instruction set at run time.
//
// Every kernel is written once, independent of the vector width, in kernels/<room>/simd/<op>.cc. The file is compiled
// for every target into namespace paddle_fused::kernels::PF_TARGET and provides a table of function pointers.
// kernels/<room>/<op>.cc selects a table.
// Code in simd/ must not call inline functions of the standard library. The linker keeps one copy of each, which may
// have been compiled for instructions that the machine lacks.
#pragma once

#define PF_EXPORT __attribute__((visibility("default")))

namespace paddle_fused::kernels {

// From narrow to wide. kNeon is for aarch64, the others for x86-64. The last two differ from AVX-512 only in the
// bfloat16
// products of matmul and attention: AVX512_BF16 multiplies pairs, AMX multiplies tiles.
enum class Isa { kBaseline, kNeon, kAvx2, kAvx512, kAvx512Bf16, kAmx };
constexpr Isa kAllIsas[] = {Isa::kBaseline, Isa::kNeon,       Isa::kAvx2,
                            Isa::kAvx512,   Isa::kAvx512Bf16, Isa::kAmx};

// The widest instruction set supported by this machine and this library, or the one named by the environment variable
// PADDLE_FUSED_ISA (baseline, neon, avx2, avx512, avx512_bf16, amx), which is read once. Throws std::invalid_argument
// if the name is unknown or not supported.
PF_EXPORT Isa active_isa();
PF_EXPORT const char* isa_name(Isa isa);

}  // namespace paddle_fused::kernels

// PF_DECLARE_TABLE(CastTable, cast_table) declares the accessor that simd/<op>.cc defines for every target;
// PF_SELECT_TABLE(cast_table) calls the accessor of the active instruction set.
// PF_DECLARE_PRODUCT_TABLE and PF_SELECT_PRODUCT_TABLE do the same for kernels that multiply. They include the
// targets with bfloat16 products, which are selected for bfloat16 operands.
//
// kernels.cmake defines PF_HAS_<target> for the targets beyond AVX2 in this library. Old compilers lack some, and a
// local build omits targets that the machine does not support. A target that is not built is never active.
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
