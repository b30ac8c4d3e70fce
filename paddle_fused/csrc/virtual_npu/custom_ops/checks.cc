#include "virtual_npu/custom_ops/checks.h"

#include <sstream>

#include "paddle/phi/core/enforce.h"

namespace virtual_npu {
namespace {

const char* name_of(CannError error) {
  switch (error) {
    case CannError::kParamNullptr:
      return "ACLNN_ERR_PARAM_NULLPTR";
    case CannError::kParamInvalid:
      return "ACLNN_ERR_PARAM_INVALID";
    default:
      return "ACLNN_ERR_INNER_TILING_ERROR";
  }
}

bool is_npu(const phi::Place& place) {
  return place.GetType() == phi::AllocationType::CUSTOM && place.GetDeviceType() == "npu";
}

}  // namespace

void refuse(const char* op, const std::string& sentence, CannError error) {
  std::ostringstream message;
  message << op << ": " << sentence;
  if (error != CannError::kNone) message << " (CANN error " << static_cast<int>(error) << ", " << name_of(error) << ")";
  PADDLE_THROW(common::errors::InvalidArgument("%s", message.str()));
}

void check_places(const char* op, std::initializer_list<Argument> arguments) {
  bool on_one_npu = true;
  std::ostringstream where;
  for (const Argument& argument : arguments) {
    const phi::Place& place = argument.tensor.place();
    on_one_npu = on_one_npu && is_npu(place) && place == arguments.begin()->tensor.place();
    where << (&argument == arguments.begin() ? "" : ", ") << argument.name << " is on " << text(place);
  }
  if (on_one_npu) return;
  refuse(op, where.str() + "; all of them must be on one npu device. Move them with tensor.to('npu:0'), or create "
                           "them after paddle.set_device('npu:0').");
}

void check_dtype(const char* op, const Argument& argument, std::initializer_list<paddle::DataType> accepted) {
  std::string names;
  for (paddle::DataType dtype : accepted) {
    if (argument.tensor.dtype() == dtype) return;
    names += (names.empty() ? "" : ", ") + text(dtype);
  }
  refuse(op, std::string(argument.name) + " is " + text(argument.tensor.dtype()) + "; accepted: " + names +
                 ". Cast it with tensor.astype.",
         CannError::kParamInvalid);
}

void check_same_dtype(const char* op, std::initializer_list<Argument> arguments) {
  const Argument& first = *arguments.begin();
  for (const Argument& argument : arguments) {
    if (argument.tensor.dtype() == first.tensor.dtype()) continue;
    refuse(op, std::string(argument.name) + " is " + text(argument.tensor.dtype()) + " and " + first.name + " is " +
                   text(first.tensor.dtype()) + "; both must have the same dtype. Cast one of them with tensor.astype.",
           CannError::kParamInvalid);
  }
}

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
  return tensor.is_contiguous() ? tensor : tensor.contiguous();
}

}  // namespace virtual_npu
