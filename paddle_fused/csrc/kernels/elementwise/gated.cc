#include "kernels/elementwise/gated.h"

#include <algorithm>

#include "kernels/cache.h"
#include "kernels/elementwise/gated_table.h"
#include "kernels/no_compute_guard.h"
#include "kernels/parallel.h"

namespace paddle_fused::kernels {
namespace {

// Calls body(offset in gate and up, offset in y, count), in bytes, bytes and elements, for parts of rows that cover
// the whole tensor. Rows are split because two dense tensors form one long row.
template <typename Body>
void for_each_piece(ElementType type, const GatedShape& shape, const Body& body) {
  constexpr int64_t kPiece = 2048;
  const int64_t per_row = (shape.width + kPiece - 1) / kPiece, size = element_size(type);
  for_each_range(shape.rows * per_row, std::min(shape.width, kPiece), [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t row = piece / per_row, column = piece % per_row * kPiece;
      body((row * shape.stride + column) * size, (row * shape.width + column) * size,
           std::min(kPiece, shape.width - column));
    }
  });
}

const char* at(const void* base, int64_t bytes) { return static_cast<const char*>(base) + bytes; }
char* at(void* base, int64_t bytes) { return base ? static_cast<char*>(base) + bytes : nullptr; }

const GatedKernels& kernels_of(Activation activation) {
  return PF_SELECT_TABLE(gated_table)[static_cast<int>(activation)];
}

// Whether the outputs of a call with this many tensors [rows, width] bypass the caches.
bool streams(int tensors, ElementType type, const GatedShape& shape) {
  return outgrows_cache(tensors * shape.rows * shape.width * element_size(type));
}

}  // namespace

void gated_forward(Activation activation, ElementType type, const GatedShape& shape, const void* gate, const void* up,
                   void* y) {
  if (compute_is_disabled()) return;
  const auto run = kernels_of(activation).forward[static_cast<int>(type)];
  const bool stream = streams(3, type, shape);
  for_each_piece(type, shape, [&](int64_t in, int64_t out, int64_t count) {
    run(at(gate, in), at(up, in), count, stream, at(y, out));
  });
}

void gated_backward(Activation activation, ElementType type, const GatedShape& shape, const void* gate, const void* up,
                    const void* dy, void* dgate, void* dup) {
  if (compute_is_disabled()) return;
  const auto run = kernels_of(activation).backward[static_cast<int>(type)];
  const bool stream = streams(3 + (dgate != nullptr) + (dup != nullptr), type, shape);
  for_each_piece(type, shape, [&](int64_t in, int64_t out, int64_t count) {
    run(at(gate, in), at(up, in), at(dy, out), count, stream, at(dgate, in), at(dup, in));
  });
}

}  // namespace paddle_fused::kernels
