// The two forms of gelu(x) = x * share(x), for simd/*.cc only.
#pragma once
#include "kernels/simd/vector_math.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {

// share(x), and its derivative times x.
struct Share {
  Floats value, slope;
};

// The standard normal CDF, with derivative e^(-x^2 / 2) / sqrt(2 pi). On the side of the smaller tail it is e^(-x^2 /
// 2) times a function that falls from 1/2 like 1 / |x|. This is approximated by a polynomial in 1 / (1 + c |x|) with
// minimal relative error, below 3e-8.
struct GeluNormal {
  PF_INLINE Share share(Floats x) {
    const Floats e = exp_not_positive(x * x * -0.5f);
    const Floats t = 1.0f / (1.0f - negative_magnitude(x) * 0.45f);
    const Floats u = t * 2.0f - 1.0f;
    Floats tail = u * 7.700992171e-05f - 2.102200082e-04f;
    tail = tail * u - 1.627069143e-04f;
    tail = tail * u + 1.445903321e-03f;
    tail = tail * u - 8.327412975e-04f;
    tail = tail * u - 8.763255827e-03f;
    tail = tail * u + 1.012754895e-02f;
    tail = tail * u + 1.023806200e-01f;
    tail = tail * u + 2.407942214e-01f;
    tail = (tail * u + 1.551436079e-01f) * e;
    return {by_sign(x, tail, 1.0f - tail), x * e * 0.39894228f};
  }
};

struct GeluTanh {
  PF_INLINE Share share(Floats x) {
    // Beyond 12 the share is 0 or 1, and the cube of larger numbers could overflow.
    const Floats near = -at_least(-at_least(x, -12.0f), -12.0f), square = near * near;
    const Logistics s = logistic(near * (square * 0.07135481627f + 1.595769122f));
    return {s.value, near * s.value * s.complement * (square * 0.2140644488f + 1.595769122f)};
  }
};

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
