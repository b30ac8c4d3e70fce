// c_identity, c_split and c_concat: inputs and outputs of layers shared by ranks. Paddle's versions of the first two
// for custom devices do not support bfloat16. Its c_concat does not support integers and creates a tensor for every
// step.
#include <cstring>

#include "kernels/no_compute_guard.h"
#include "paddle/phi/core/kernel_registry.h"
#include "phi_kernels/collectives/ring.h"
#include "phi_kernels/in_place.h"

namespace virtual_npu {
namespace {

using phi::DenseTensor;

// Copies columns [first, first + to_width) of x [rows, from_width] into out [rows, to_width], or back, in bytes.
struct Columns {
  int64_t rows;
  size_t narrow, wide, first;

  void cut(const void* whole, void* part) const {
    for (int64_t i = 0; i < rows; ++i)
      std::memcpy(static_cast<char*>(part) + i * narrow, static_cast<const char*>(whole) + i * wide + first, narrow);
  }
  void put(const void* part, void* whole) const {
    for (int64_t i = 0; i < rows; ++i)
      std::memcpy(static_cast<char*>(whole) + i * wide + first, static_cast<const char*>(part) + i * narrow, narrow);
  }
};

}  // namespace

template <typename T, typename Context>
void c_identity(const Context& context, const DenseTensor& x, int /*ring*/, bool /*use_calc_stream*/,
                bool /*use_model_parallel*/, DenseTensor* out) {
  carry_over(context, x, out);
}

// out = part number `rank` of the last dimension, which is split into `ranks` equal parts.
template <typename T, typename Context>
void c_split(const Context& context, const DenseTensor& x, int rank, int ranks, bool /*use_model_parallel*/,
             DenseTensor* out) {
  phi::DDim dims = x.dims();
  const int64_t width = dims[dims.size() - 1];
  PADDLE_ENFORCE_EQ(width % ranks, 0,
                    common::errors::InvalidArgument("c_split: the last dimension of x is %d; accepted: a multiple of "
                                                    "the %d ranks that share it.",
                                                    width, ranks));
  dims[dims.size() - 1] = width / ranks;
  out->Resize(dims);
  T* parts = context.template Alloc<T>(out);
  if (x.numel() == 0) return;
  const size_t narrow = width / ranks * sizeof(T);
  Columns{x.numel() / width, narrow, narrow * ranks, narrow * rank}.cut(x.data<T>(), parts);
}

// out = x of all ranks, concatenated in the last dimension.
template <typename T, typename Context>
void c_concat(const Context& context, const DenseTensor& x, int /*rank*/, int ranks, int ring, bool /*use_calc_stream*/,
              bool /*use_model_parallel*/, DenseTensor* out) {
  const Ring others(context, ring);
  PADDLE_ENFORCE_EQ(others.size(), ranks,
                    common::errors::InvalidArgument("c_concat: nranks is %d, but the group has %d ranks.", ranks,
                                                    others.size()));
  phi::DDim dims = x.dims();
  const int64_t width = dims[dims.size() - 1];
  dims[dims.size() - 1] = width * ranks;
  out->Resize(dims);
  T* whole = context.template Alloc<T>(out);
  if (x.numel() == 0) return;
  DenseTensor gathered;
  gathered.Resize({ranks, x.numel()});
  const T* parts = context.template Alloc<T>(&gathered);
  others.all_gather(x, &gathered);
  context.Wait();
  const size_t narrow = width * sizeof(T);
  for (int rank = 0; rank < ranks && !paddle_fused::kernels::compute_is_disabled(); ++rank)
    Columns{x.numel() / width, narrow, narrow * ranks, narrow * rank}.put(parts + rank * x.numel(), whole);
}

}  // namespace virtual_npu

#define VIRTUAL_NPU_ALL_TYPES \
  float, double, int, int64_t, int16_t, int8_t, uint8_t, bool, phi::dtype::float16, phi::dtype::bfloat16

PD_REGISTER_PLUGIN_KERNEL(c_identity, npu, ALL_LAYOUT, virtual_npu::c_identity, VIRTUAL_NPU_ALL_TYPES) {}
PD_REGISTER_PLUGIN_KERNEL(c_split, npu, ALL_LAYOUT, virtual_npu::c_split, VIRTUAL_NPU_ALL_TYPES) {}
PD_REGISTER_PLUGIN_KERNEL(c_concat, npu, ALL_LAYOUT, virtual_npu::c_concat, VIRTUAL_NPU_ALL_TYPES) {}
