// The arguments of a bfloat16 or float16 kernel as the float32 kernel of the same name wants them.
#pragma once
#include <deque>
#include <utility>
#include <vector>

#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/selected_rows.h"

namespace virtual_npu {

// Tensors of 16 bits are replaced by float32 copies; all others stay the tensors they are. Memory that is input and
// output at once has one copy, so that kernels which work in place still do.
class Float32Arguments {
 public:
  explicit Float32Arguments(const phi::CustomContext& context) : context_(context) {}

  // From now on `master_out`, starting at `master`, stands for `param` and for `param_out`.
  void bind_master(const phi::DenseTensor* param, const phi::DenseTensor* master, phi::DenseTensor* param_out,
                   phi::DenseTensor* master_out);

  const phi::DenseTensor* input(const phi::DenseTensor* tensor);
  const phi::SelectedRows* input(const phi::SelectedRows* rows);
  phi::DenseTensor* output(phi::DenseTensor* tensor);

  // Rounds what the float32 kernel wrote back into the outputs of 16 bits.
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
  std::vector<std::pair<phi::DenseTensor*, phi::DenseTensor*>> outputs_;  // 16 bits, float32
};

// target[i] = source[i], with rounding to target's type (one of float32, bfloat16, float16); allocates target.
void cast_tensor(const phi::CustomContext& context, const phi::DenseTensor& source, phi::DataType type,
                 phi::DenseTensor* target);

}  // namespace virtual_npu
