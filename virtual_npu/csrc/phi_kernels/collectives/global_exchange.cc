// global_scatter and global_gather: send token rows to the ranks of their experts, and back.
//
// With n experts on each of R ranks, local_count[j n + e] rows of this rank are for expert e of rank j, and
// global_count[j n + e] rows of rank j are for expert e of this rank. The scatter's input is ordered by (j, e), its
// output by (e, j), so an expert's rows are contiguous. The gather is the inverse. Paddle's kernel for custom devices
// reads the rows that a rank keeps from the offset of its first expert, and receives where no rank sends.
#include <vector>

#include "paddle/phi/core/kernel_registry.h"
#include "phi_kernels/collectives/ring.h"
#include "phi_kernels/integer_values.h"

namespace virtual_npu {
namespace {

using phi::DenseTensor;

struct Counts {
  std::vector<int64_t> local, global;
  int ranks;
  int64_t experts;

  Counts(const DenseTensor& local_count, const DenseTensor& global_count, int ranks)
      : local(integer_values(local_count, "global_scatter: local_count")),
        global(integer_values(global_count, "global_scatter: global_count")),
        ranks(ranks),
        experts(static_cast<int64_t>(local.size()) / ranks) {
    PADDLE_ENFORCE_EQ(local.size() == global.size() && local.size() % ranks == 0, true,
                      common::errors::InvalidArgument(
                          "local_count has %zu numbers and global_count %zu; accepted: the number of experts on all %d "
                          "ranks for both.",
                          local.size(), global.size(), ranks));
  }

  // The rows of (rank j, expert e), in the order of experts, then ranks of the returned list.
  std::vector<Ring::Rows> by_rank(const std::vector<int64_t>& counts) const {
    std::vector<int64_t> first(counts.size() + 1, 0);
    for (size_t i = 0; i < counts.size(); ++i) first[i + 1] = first[i] + counts[i];
    std::vector<Ring::Rows> rows;
    for (int64_t e = 0; e < experts; ++e)
      for (int j = 0; j < ranks; ++j) rows.push_back({j, first[j * experts + e], counts[j * experts + e]});
    return rows;
  }

  std::vector<Ring::Rows> by_expert(const std::vector<int64_t>& counts) const {
    std::vector<Ring::Rows> rows;
    int64_t first = 0;
    for (int64_t e = 0; e < experts; ++e)
      for (int j = 0; j < ranks; ++j) {
        rows.push_back({j, first, counts[j * experts + e]});
        first += counts[j * experts + e];
      }
    return rows;
  }
};

int64_t sum(const std::vector<Ring::Rows>& rows) {
  int64_t total = 0;
  for (const Ring::Rows& each : rows) total += each.count;
  return total;
}

template <typename T>
void exchange(const phi::CustomContext& context, const Ring& ring, const DenseTensor& x,
              const std::vector<Ring::Rows>& sent, const std::vector<Ring::Rows>& received, DenseTensor* out) {
  PADDLE_ENFORCE_EQ(x.dims().size() == 2 && x.dims()[0] == sum(sent), true,
                    common::errors::InvalidArgument("x has shape [%s]; accepted: [%ld, width] for these counts.",
                                                    x.dims(), sum(sent)));
  out->Resize({sum(received), x.dims()[1]});
  context.Alloc<T>(out);
  ring.exchange(x, sent, out, received);
  context.Wait();
}

}  // namespace

template <typename T, typename Context>
void global_scatter(const Context& context, const DenseTensor& x, const DenseTensor& local_count,
                    const DenseTensor& global_count, DenseTensor* out) {
  const Ring ring(context);
  const Counts counts(local_count, global_count, ring.size());
  exchange<T>(context, ring, x, counts.by_rank(counts.local), counts.by_expert(counts.global), out);
}

template <typename T, typename Context>
void global_gather(const Context& context, const DenseTensor& x, const DenseTensor& local_count,
                   const DenseTensor& global_count, DenseTensor* out) {
  const Ring ring(context);
  const Counts counts(local_count, global_count, ring.size());
  exchange<T>(context, ring, x, counts.by_expert(counts.global), counts.by_rank(counts.local), out);
}

}  // namespace virtual_npu

PD_REGISTER_PLUGIN_KERNEL(global_scatter, npu, ALL_LAYOUT, virtual_npu::global_scatter, float, double, int, int64_t,
                          phi::dtype::float16, phi::dtype::bfloat16) {}
PD_REGISTER_PLUGIN_KERNEL(global_gather, npu, ALL_LAYOUT, virtual_npu::global_gather, float, double, int, int64_t,
                          phi::dtype::float16, phi::dtype::bfloat16) {}
