// Conversion of Paddle's data types to those of the host kernels.
#pragma once
#include "kernels/elements.h"
#include "paddle/phi/common/data_type.h"
#include "paddle/phi/core/enforce.h"

namespace paddle_fused {

inline bool is_16_bit_float(phi::DataType type) {
  return type == phi::DataType::BFLOAT16 || type == phi::DataType::FLOAT16;
}

inline kernels::ElementType element_type(phi::DataType type) {
  using kernels::ElementType;
  switch (type) {
    case phi::DataType::FLOAT32:
      return ElementType::kFloat32;
    case phi::DataType::BFLOAT16:
      return ElementType::kBFloat16;
    case phi::DataType::FLOAT16:
      return ElementType::kFloat16;
    default:
      PADDLE_THROW(common::errors::InvalidArgument(
          "A tensor is %s; accepted: float32, bfloat16 and float16. Cast it first.",
          phi::DataTypeToString(type)));
  }
}

}  // namespace paddle_fused
