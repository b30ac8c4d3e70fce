#include "framework/tensors.h"

#include <sstream>

#include "framework/paddle_release.h"

namespace paddle_fused {

std::string text(const std::vector<int64_t>& shape) {
  std::ostringstream out;
  for (size_t i = 0; i < shape.size(); ++i) out << (i ? ", " : "[") << shape[i];
  return shape.empty() ? "[]" : out.str() + "]";
}

std::string text(paddle::DataType dtype) { return phi::DataTypeToString(dtype); }

std::string text(const phi::Place& place) {
  if (place.GetType() == phi::AllocationType::CPU) return "cpu";
  if (place.GetType() != phi::AllocationType::CUSTOM) return place.DebugString();
  return place.GetDeviceType() + ":" + std::to_string(place.GetDeviceId());
}

paddle::Tensor dense(const paddle::Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : paddle_release::contiguous(tensor);
}

}  // namespace paddle_fused
