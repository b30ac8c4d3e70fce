#include "bridge/assigned_part.h"

#include <algorithm>

#include "paddle/phi/common/int_array.h"

namespace virtual_npu {
namespace {

using phi::AttributeType;

// The smallest and the largest index of a slice of `size` elements; `count` is 0 for an empty slice.
struct Indices {
  int64_t smallest, largest, count;
};

Indices indices_of(int64_t start, int64_t end, int64_t step, int64_t size) {
  if (start < 0) start += size;
  if (end < 0) end += size;
  if (step > 0) {
    start = std::clamp<int64_t>(start, 0, size);
    const int64_t count = std::max<int64_t>(0, (std::min(end, size) - start + step - 1) / step);
    return {start, start + (count - 1) * step, count};
  }
  start = std::min(start, size - 1);
  const int64_t count = std::max<int64_t>(0, (start - std::max<int64_t>(end, -1) - step - 1) / -step);
  return {start + (count - 1) * step, start, count};
}

}  // namespace

std::optional<checks::Part> assigned_part(const KernelEntry& entry, const TypedArguments& arguments) {
  if (entry.name != "set_value" && entry.name != "set_value_with_tensor") return std::nullopt;
  // starts, ends, steps, axes, ...
  const auto& types = entry.signature.attributes;
  if (types.size() < 4 || types[3] != AttributeType::INT64S ||
      !std::all_of(types.begin(), types.begin() + 3, [](auto type) { return type == AttributeType::INT_ARRAY; }))
    return std::nullopt;
  const phi::TensorBase* output = outputs_of(arguments).front();
  const phi::TensorBase* input = inputs_of(arguments).front();
  if (!output || !input || !phi::DenseTensor::classof(input)) return std::nullopt;
  const auto& tensor = *static_cast<const phi::DenseTensor*>(input);
  const auto array = [&](int number) { return static_cast<const phi::IntArray*>(arguments.attribute(number))->GetData(); };
  const auto starts = array(0), ends = array(1), steps = array(2);
  const auto& axes = *static_cast<const std::vector<int64_t>*>(arguments.attribute(3));
  if (starts.size() != axes.size() || ends.size() != axes.size() || steps.size() != axes.size()) return std::nullopt;
  int64_t first = 0, last = 0;
  for (int axis = 0; axis < tensor.dims().size(); ++axis) {
    Indices indices{0, tensor.dims()[axis] - 1, tensor.dims()[axis]};
    for (size_t i = 0; i < axes.size(); ++i)
      if (axes[i] == axis) indices = indices_of(starts[i], ends[i], steps[i], tensor.dims()[axis]);
    if (indices.count <= 0) return checks::Part{0, 0};
    first += indices.smallest * tensor.strides()[axis];
    last += indices.largest * tensor.strides()[axis];
  }
  const size_t size = phi::SizeOf(tensor.dtype());
  return checks::Part{first * size, (last + 1) * size};
}

}  // namespace virtual_npu
