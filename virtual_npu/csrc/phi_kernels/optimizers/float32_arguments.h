// Converts the arguments of a bfloat16 or float16 kernel for the float32 kernel of the same name.
#pragma once
#include <deque>
#include <utility>
#include <vector>

#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/selected_rows.h"

namespace virtual_npu {

// 16-bit tensors are replaced by float32 copies; all other tensors are passed unchanged. Memory that is both input
// and output has one copy, so in-place kernels still work.
class Float32Arguments {
 public:
  explicit Float32Arguments(const phi::CustomContext& context) : context_(context) {}

  // From now on, `master_out`, initialized with `master`, replaces `param` and `param_out`.
  void bind_master(const phi::DenseTensor* param, const phi::DenseTensor* master, phi::DenseTensor* param_out,
                   phi::DenseTensor* master_out);

  const phi::DenseTensor* input(const phi::DenseTensor* tensor);
  const phi::SelectedRows* input(const phi::SelectedRows* rows);
  phi::DenseTensor* output(phi::DenseTensor* tensor);

  // Rounds the results of the float32 kernel into the 16-bit outputs.
  void store();

 private:
  struct Copy {
    const phi::DenseTensor* low;
    phi::DenseTensor* float32;
  };
  phi::DenseTensor* copy_of(const phi::DenseTensor* low) const;

  const phi::CustomContext& context_;
  std::deque<phi::DenseTensor> storage_;
  std::deque<phi::SelectedRows> rows_;
  std::vector<std::pair<const phi::DenseTensor*, const phi::DenseTensor*>> masters_;
  std::vector<Copy> copies_;
  std::vector<std::pair<phi::DenseTensor*, phi::DenseTensor*>> outputs_;  // 16-bit, float32
};

// Allocates target and sets target[i] = source[i], rounded to target's type (float32, bfloat16 or float16).
void cast_tensor(const phi::CustomContext& context, const phi::DenseTensor& source, phi::DataType type,
                 phi::DenseTensor* target);

}  // namespace virtual_npu
