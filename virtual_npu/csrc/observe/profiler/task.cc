#include "observe/profiler/task.h"

#include <algorithm>
#include <sstream>
#include <unordered_set>

#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/selected_rows.h"
#include "paddle/phi/core/tensor_array.h"

namespace virtual_npu {
namespace profiler {
namespace {

// Words in the names of matrix-product kernels, between underscores.
const std::unordered_set<std::string>& words_of_products() {
  static const std::unordered_set<std::string> words = {
      "matmul", "bmm",    "addmm",  "baddbmm", "mm",        "mv",   "fc",   "einsum",
      "conv1d", "conv2d", "conv3d", "conv",    "attention", "attn", "gemm", "linear",
  };
  return words;
}

bool multiplies_matrices(const std::string& kernel) {
  if (kernel.find("interp") != std::string::npos) return false;  // bilinear_interp resizes images
  std::istringstream words(kernel);
  for (std::string word; std::getline(words, word, '_');)
    if (words_of_products().count(word)) return true;
  return false;
}

const char* acl_name(phi::DataType dtype) {
  switch (dtype) {
    case phi::DataType::FLOAT32:
      return "FLOAT";
    case phi::DataType::FLOAT16:
      return "FLOAT16";
    case phi::DataType::BFLOAT16:
      return "DT_BF16";
    case phi::DataType::FLOAT64:
      return "DOUBLE";
    case phi::DataType::INT8:
      return "INT8";
    case phi::DataType::UINT8:
      return "UINT8";
    case phi::DataType::INT16:
      return "INT16";
    case phi::DataType::INT32:
      return "INT32";
    case phi::DataType::INT64:
      return "INT64";
    case phi::DataType::BOOL:
      return "BOOL";
    case phi::DataType::COMPLEX64:
      return "COMPLEX64";
    case phi::DataType::COMPLEX128:
      return "COMPLEX128";
    default:
      return "UNDEFINED";
  }
}

}  // namespace

const char* name_of(TaskType type) {
  switch (type) {
    case TaskType::kAiCore:
      return "AI_CORE";
    case TaskType::kAiVectorCore:
      return "AI_VECTOR_CORE";
    case TaskType::kAiCpu:
      return "AI_CPU";
    case TaskType::kHostCpu:
      return "HOST_CPU";
    case TaskType::kHccl:
      return "HCCL";
    case TaskType::kMemcpy:
      return "MEMCPY_ASYNC";
  }
  return "";
}

TaskType task_type(const std::string& kernel, Placement placement) {
  if (placement == Placement::kHost) return TaskType::kHostCpu;
  if (placement == Placement::kAicpu) return TaskType::kAiCpu;
  return multiplies_matrices(kernel) ? TaskType::kAiCore : TaskType::kAiVectorCore;
}

void Tensors::add(phi::DataType dtype, const phi::DDim& dims) {
  numbers_.push_back(static_cast<int64_t>(dtype));
  const int rank = std::max(0, dims.size());  // -1: without a shape
  numbers_.push_back(rank);
  for (int i = 0; i < rank; ++i) numbers_.push_back(dims[i]);
}

void Tensors::add(const phi::TensorBase* tensor) {
  if (!tensor) return;
  if (phi::DenseTensor::classof(tensor)) {
    add(tensor->dtype(), tensor->dims());
  } else if (phi::SelectedRows::classof(tensor)) {
    const auto& value = static_cast<const phi::SelectedRows*>(tensor)->value();
    add(value.dtype(), value.dims());
  } else if (phi::TensorArray::classof(tensor)) {
    const auto& array = *static_cast<const phi::TensorArray*>(tensor);
    for (size_t i = 0; i < array.size(); ++i) add(array.at(i).dtype(), array.at(i).dims());
  }
}

template <typename Visit>
void Tensors::for_each(const Visit& visit) const {
  for (size_t i = 0; i < numbers_.size(); i += 2 + numbers_[i + 1])
    visit(i > 0 ? ";" : "", static_cast<phi::DataType>(numbers_[i]), &numbers_[i] + 2, numbers_[i + 1]);
}

std::string Tensors::shapes() const {
  std::string text;
  for_each([&](const char* separator, phi::DataType, const int64_t* sizes, int64_t rank) {
    text += separator;
    for (int64_t i = 0; i < rank; ++i) text += (i > 0 ? "," : "") + std::to_string(sizes[i]);
  });
  return text;
}

std::string Tensors::dtypes() const {
  std::string text;
  for_each([&](const char* separator, phi::DataType dtype, const int64_t*, int64_t) {
    text += separator;
    text += acl_name(dtype);
  });
  return text;
}

std::string Tensors::formats() const {
  std::string text;
  for_each([&](const char* separator, phi::DataType, const int64_t*, int64_t) {
    text += separator;
    text += "ND";
  });
  return text;
}

}  // namespace profiler
}  // namespace virtual_npu
