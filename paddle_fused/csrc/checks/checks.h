// The checks, one function per group of kernels. Each calls every entry point of its kernels, forward and backward,
// for every element type, on small odd sizes.
#pragma once
#include "checks/report.h"

namespace paddle_fused::checks {

void check_matmul(Report* report);
void check_grouped_matmul(Report* report);
void check_attention(Report* report);
void check_rms_norm(Report* report);
void check_dropout_add_norm(Report* report);
void check_gated(Report* report);
void check_rotary(Report* report);
void check_adam(Report* report);
void check_cross_entropy(Report* report);
void check_linear_cross_entropy(Report* report);
void check_embedding(Report* report);
void check_cast(Report* report);
void check_unscale(Report* report);
void check_binary(Report* report);
void check_scale(Report* report);
void check_sum_rows(Report* report);
void check_sum_terms(Report* report);
void check_gelu(Report* report);
void check_squared_norm(Report* report);
void check_make_dense(Report* report);
void check_moe(Report* report);

}  // namespace paddle_fused::checks
