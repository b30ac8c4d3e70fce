// c_allreduce_sum, _max, _min, _prod and mp_allreduce_sum. Paddle's versions for custom devices lack most types.
#include "paddle/phi/core/kernel_registry.h"
#include "phi_kernels/collectives/ring.h"

namespace virtual_npu {

using phi::DenseTensor;
using phi::distributed::ReduceOp;

template <ReduceOp op>
struct CAllReduce {
  template <typename T, typename Context>
  static void kernel(const Context& context, const DenseTensor& x, int ring, bool /*use_calc_stream*/,
                     bool /*use_model_parallel*/, DenseTensor* out) {
    out->Resize(x.dims());
    context.template Alloc<T>(out);
    Ring(context, ring).all_reduce(op, x, out);
  }
};

using Sum = CAllReduce<ReduceOp::SUM>;
using Max = CAllReduce<ReduceOp::MAX>;
using Min = CAllReduce<ReduceOp::MIN>;
using Prod = CAllReduce<ReduceOp::PRODUCT>;

template <typename T, typename Context>
void mp_allreduce_sum(const Context& context, const DenseTensor& x, DenseTensor* out) {
  out->Resize(x.dims());
  context.template Alloc<T>(out);
  Ring(context).all_reduce(ReduceOp::SUM, x, out);
}

}  // namespace virtual_npu

#define VIRTUAL_NPU_SUMMED_TYPES float, double, int, int64_t, phi::dtype::float16, phi::dtype::bfloat16

PD_REGISTER_PLUGIN_KERNEL(c_allreduce_sum, npu, ALL_LAYOUT, virtual_npu::Sum::kernel, VIRTUAL_NPU_SUMMED_TYPES) {}
PD_REGISTER_PLUGIN_KERNEL(c_allreduce_max, npu, ALL_LAYOUT, virtual_npu::Max::kernel, VIRTUAL_NPU_SUMMED_TYPES) {}
PD_REGISTER_PLUGIN_KERNEL(c_allreduce_min, npu, ALL_LAYOUT, virtual_npu::Min::kernel, VIRTUAL_NPU_SUMMED_TYPES) {}
PD_REGISTER_PLUGIN_KERNEL(c_allreduce_prod, npu, ALL_LAYOUT, virtual_npu::Prod::kernel, VIRTUAL_NPU_SUMMED_TYPES) {}
PD_REGISTER_PLUGIN_KERNEL(mp_allreduce_sum, npu, ALL_LAYOUT, virtual_npu::mp_allreduce_sum,
                          VIRTUAL_NPU_SUMMED_TYPES) {}
