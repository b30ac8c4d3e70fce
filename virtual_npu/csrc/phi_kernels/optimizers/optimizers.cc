// The optimizers with master weights in Paddle, except Adam and AdamW (adam.cc).
#include "paddle/phi/kernels/adadelta_kernel.h"
#include "paddle/phi/kernels/adagrad_kernel.h"
#include "paddle/phi/kernels/adam_kernel.h"
#include "paddle/phi/kernels/adamax_kernel.h"
#include "paddle/phi/kernels/asgd_kernel.h"
#include "paddle/phi/kernels/fused_adam_kernel.h"
#include "paddle/phi/kernels/lamb_kernel.h"
#include "paddle/phi/kernels/lars_momentum_kernel.h"
#include "paddle/phi/kernels/merged_momentum_kernel.h"
#include "paddle/phi/kernels/momentum_kernel.h"
#include "paddle/phi/kernels/nadam_kernel.h"
#include "paddle/phi/kernels/radam_kernel.h"
#include "paddle/phi/kernels/rmsprop_kernel.h"
#include "paddle/phi/kernels/rprop_kernel.h"
#include "paddle/phi/kernels/sgd_kernel.h"
#include "phi_kernels/optimizers/on_master_weights.h"

namespace virtual_npu {
namespace {

using phi::CustomContext;

struct Sgd {
  static constexpr char kName[] = "sgd";
  using Signature = decltype(phi::SGDDenseKernel<float, CustomContext>);
  static constexpr int kMaster = 3, kMultiPrecision = 4;
};
struct SgdSparse {
  static constexpr char kName[] = "sgd_dense_param_sparse_grad";
  using Signature = decltype(phi::SGDDenseParamSparseGradKernel<float, CustomContext>);
  static constexpr int kMaster = 3, kMultiPrecision = 4;
};
struct Momentum {
  static constexpr char kName[] = "momentum";
  using Signature = decltype(phi::MomentumDenseKernel<float, CustomContext>);
  static constexpr int kMaster = 4, kMultiPrecision = 9;
};
struct MomentumSparse {
  static constexpr char kName[] = "momentum_dense_param_sparse_grad";
  using Signature = decltype(phi::MomentumSparseKernel<float, CustomContext>);
  static constexpr int kMaster = 4, kMultiPrecision = 9;
};
struct MergedMomentum {
  static constexpr char kName[] = "merged_momentum";
  using Signature = decltype(phi::MergedMomentumKernel<float, CustomContext>);
  static constexpr int kMaster = 4, kMultiPrecision = 9;
};
struct LarsMomentum {
  static constexpr char kName[] = "lars_momentum";
  using Signature = decltype(phi::LarsMomentumKernel<float, CustomContext>);
  static constexpr int kMaster = 4, kMultiPrecision = 9;
};
struct MergedAdam {
  static constexpr char kName[] = "merged_adam";
  using Signature = decltype(phi::MergedAdamKernel<float, CustomContext>);
  static constexpr int kMaster = 8, kMultiPrecision = 12;
};
struct FusedAdam {
  static constexpr char kName[] = "fused_adam";
  using Signature = decltype(phi::FusedAdamKernel<float, CustomContext>);
  static constexpr int kMaster = 8, kMultiPrecision = 16;
};
struct Lamb {
  static constexpr char kName[] = "lamb";
  using Signature = decltype(phi::LambKernel<float, CustomContext>);
  static constexpr int kMaster = 7, kMultiPrecision = 14;
};
struct Adagrad {
  static constexpr char kName[] = "adagrad";
  using Signature = decltype(phi::AdagradDenseKernel<float, CustomContext>);
  static constexpr int kMaster = 4, kMultiPrecision = 6;
};
struct AdagradSparse {
  static constexpr char kName[] = "adagrad_dense_param_sparse_grad";
  using Signature = decltype(phi::AdagradSparseKernel<float, CustomContext>);
  static constexpr int kMaster = 4, kMultiPrecision = 6;
};
struct Adamax {
  static constexpr char kName[] = "adamax";
  using Signature = decltype(phi::AdamaxKernel<float, CustomContext>);
  static constexpr int kMaster = 6, kMultiPrecision = 10;
};
struct Adadelta {
  static constexpr char kName[] = "adadelta";
  using Signature = decltype(phi::AdadeltaKernel<float, CustomContext>);
  static constexpr int kMaster = 5, kMultiPrecision = 8;
};
struct Rmsprop {
  static constexpr char kName[] = "rmsprop";
  using Signature = decltype(phi::RmspropDenseKernel<float, CustomContext>);
  static constexpr int kMaster = 6, kMultiPrecision = 11;
};
struct RmspropSparse {
  static constexpr char kName[] = "rmsprop_dense_param_sparse_grad";
  using Signature = decltype(phi::RmspropSparseKernel<float, CustomContext>);
  static constexpr int kMaster = 6, kMultiPrecision = 11;
};
struct Asgd {
  static constexpr char kName[] = "asgd";
  using Signature = decltype(phi::ASGDKernel<float, CustomContext>);
  static constexpr int kMaster = 6, kMultiPrecision = 7;
};
struct Rprop {
  static constexpr char kName[] = "rprop";
  using Signature = decltype(phi::RpropKernel<float, CustomContext>);
  static constexpr int kMaster = 4, kMultiPrecision = 7;
};
struct Radam {
  static constexpr char kName[] = "radam";
  using Signature = decltype(phi::RAdamKernel<float, CustomContext>);
  static constexpr int kMaster = 8, kMultiPrecision = 12;
};
struct Nadam {
  static constexpr char kName[] = "nadam";
  using Signature = decltype(phi::NAdamKernel<float, CustomContext>);
  static constexpr int kMaster = 8, kMultiPrecision = 13;
};

template <typename... Optimizers>
struct Registrations : OptimizerRegistration<Optimizers>... {};

const Registrations<Sgd, SgdSparse, Momentum, MomentumSparse, MergedMomentum, LarsMomentum, MergedAdam, FusedAdam, Lamb,
                    Adagrad, AdagradSparse, Adamax, Adadelta, Rmsprop, RmspropSparse, Asgd, Rprop, Radam, Nadam>
    registrations;

}  // namespace
}  // namespace virtual_npu
