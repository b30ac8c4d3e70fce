#include "phi_kernels/integer_values.h"

#include "paddle/phi/core/enforce.h"

namespace virtual_npu {
namespace {

template <typename T>
std::vector<int64_t> widened(const phi::DenseTensor& tensor) {
  const T* values = tensor.data<T>();
  return {values, values + tensor.numel()};
}

}  // namespace

std::vector<int64_t> integer_values(const phi::DenseTensor& tensor, const char* what) {
  if (tensor.numel() == 0) return {};
  switch (tensor.dtype()) {
    case phi::DataType::INT64:
      return widened<int64_t>(tensor);
    case phi::DataType::INT32:
      return widened<int32_t>(tensor);
    case phi::DataType::INT16:
      return widened<int16_t>(tensor);
    case phi::DataType::INT8:
      return widened<int8_t>(tensor);
    case phi::DataType::UINT8:
      return widened<uint8_t>(tensor);
    default:
      PADDLE_THROW(common::errors::InvalidArgument("%s must be integers, int64 or int32; they are %s. Cast them with "
                                                   "tensor.astype('int64').",
                                                   what, phi::DataTypeToString(tensor.dtype())));
  }
}

}  // namespace virtual_npu
