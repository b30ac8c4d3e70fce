// RMSNorm over the last `width` elements of each row:
//   rstd = 1 / sqrt(mean(x^2) + epsilon),  y = round(x * rstd) * gamma
//   dx = (dy * gamma - x * rstd * mean(dy * gamma * x * rstd)) * rstd,  dgamma = sum over rows of dy * round(x * rstd)
// x, y, dy, dx: `type`; gamma: `gamma_type`, which is `type` or float32; rstd and dgamma: float32. The arithmetic is
// float32. round() is to gamma's type: PaddleNLP's composed form rounds there, and paddle-custom-npu's unit tests
// expect the same from the NPU's operator. With a float32 gamma, y is therefore rounded only once.
// An infinite x gives NaN at its position (inf * 0) and zeros in the rest of its row, as in IEEE arithmetic.
#pragma once
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/isa.h"

namespace paddle_fused::kernels {

PF_EXPORT void rms_norm_forward(ElementType type, ElementType gamma_type, const void* x, const void* gamma,
                                float epsilon, int64_t rows, int64_t width, void* y, float* rstd);

// sum = x + residual, rounded to `type`; y and rstd are computed from sum. gamma has `type`, as in aclnnAddRmsNorm.
PF_EXPORT void add_rms_norm_forward(ElementType type, const void* x, const void* residual, const void* gamma,
                                    float epsilon, int64_t rows, int64_t width, void* y, void* sum, float* rstd);

// dsum is added to dx: the gradient of x (or x + residual) that does not come from y. nullptr: none.
// dresidual is a copy of dx in separate memory, or nullptr.
// Bit-identical for any number of threads: rows are summed in fixed blocks, and the blocks in order.
PF_EXPORT void rms_norm_backward(ElementType type, ElementType gamma_type, const void* dy, const void* x,
                                 const float* rstd, const void* gamma, const void* dsum, int64_t rows, int64_t width,
                                 void* dx, void* dresidual, float* dgamma);

}  // namespace paddle_fused::kernels
