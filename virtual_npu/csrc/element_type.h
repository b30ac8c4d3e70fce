// The host kernels' element types, under names of this namespace.
#pragma once
#include "framework/element_type.h"

namespace virtual_npu {

using paddle_fused::element_type;
using paddle_fused::is_16_bit_float;

}  // namespace virtual_npu
