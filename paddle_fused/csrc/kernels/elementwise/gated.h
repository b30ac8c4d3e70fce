// Gated activations: y = a(gate) * up for an activation a.
//   dup = dy * a(gate),  dgate = dy * up * a'(gate)
// gate and up: rows of `width` elements, `stride` elements apart (2 * width for the two halves of one tensor). y and
// dy: dense [rows, width]. All have `type`. The arithmetic is float32 with one rounding.
#pragma once
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/isa.h"

namespace paddle_fused::kernels {

// The activations, PF_ROW(name here and in simd/gated.cc, name of its operator).
//   Silu: a(x) = x * s(x), s the logistic function
//   Gelu: a(x) = x * Phi(x), Phi the standard normal CDF; TanhGelu: its approximation
//     x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
#define PF_ACTIVATIONS(PF_ROW) PF_ROW(Silu, pf_swiglu) PF_ROW(Gelu, pf_geglu) PF_ROW(TanhGelu, pf_geglu_tanh)

#define PF_ENUMERATOR(name, op) k##name,
enum class Activation { PF_ACTIVATIONS(PF_ENUMERATOR) };
#undef PF_ENUMERATOR

struct GatedShape {
  int64_t rows, width, stride;
};

PF_EXPORT void gated_forward(Activation activation, ElementType type, const GatedShape& shape, const void* gate,
                             const void* up, void* y);

// dgate and dup have the layout of gate and up. Either may be null.
PF_EXPORT void gated_backward(Activation activation, ElementType type, const GatedShape& shape, const void* gate,
                              const void* up, const void* dy, void* dgate, void* dup);

}  // namespace paddle_fused::kernels
