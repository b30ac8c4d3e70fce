// The kernels' element types. 16-bit types are bit patterns in memory and floats in registers. Every store rounds to
// nearest even, as Paddle and the NPU do.
#pragma once
#include <cstdint>

namespace paddle_fused::kernels {

enum class ElementType { kFloat32, kBFloat16, kFloat16 };

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

inline int64_t element_size(ElementType type) { return type == ElementType::kFloat32 ? 4 : 2; }

}  // namespace paddle_fused::kernels
