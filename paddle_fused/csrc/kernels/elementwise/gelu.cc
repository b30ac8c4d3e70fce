#include "kernels/elementwise/gelu.h"

#include "kernels/cache.h"
#include "kernels/elementwise/gelu_table.h"
#include "kernels/parallel.h"

namespace paddle_fused::kernels {
namespace {

const char* at(const void* data, int64_t bytes) { return static_cast<const char*>(data) + bytes; }
char* at(void* data, int64_t bytes) { return static_cast<char*>(data) + bytes; }

}  // namespace

void gelu_forward(GeluForm form, ElementType type, int64_t count, const void* x, void* y) {
  const auto run = PF_SELECT_TABLE(gelu_table).forward[static_cast<int>(form)][static_cast<int>(type)];
  const int64_t size = element_size(type);
  const bool stream = outgrows_cache(2 * count * size);
  for_each_range(count, 1, [&](int64_t begin, int64_t end) {
    run(at(x, begin * size), end - begin, stream, at(y, begin * size));
  });
}

void gelu_backward(GeluForm form, ElementType type, int64_t count, const void* x, const void* dy, void* dx) {
  const auto run = PF_SELECT_TABLE(gelu_table).backward[static_cast<int>(form)][static_cast<int>(type)];
  const int64_t size = element_size(type);
  const bool stream = outgrows_cache(3 * count * size);
  for_each_range(count, 1, [&](int64_t begin, int64_t end) {
    run(at(x, begin * size), at(dy, begin * size), end - begin, stream, at(dx, begin * size));
  });
}

}  // namespace paddle_fused::kernels
