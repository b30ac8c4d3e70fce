"""Adam with sparse gradients makes its first steps too short on the CPU.

The kernel for SelectedRows advances the powers of beta before it uses them in the bias correction. The
first step should change a weight by the learning rate, as it does with dense gradients.

:versions: paddlepaddle 3.0.0 to 3.3.1
:device: cpu
:at:
    paddle/phi/kernels/selected_rows/cpu/adam_kernel.cc `AdamDenseParamSparseGradKernel`
:prints:
    dense: -1.0
    sparse: -0.7441
:should print:
    dense: -1.0
    sparse: -1.0
:change: Write the powers of beta after the update, as the dense kernel does.
:workaround: virtual_npu/csrc/phi_kernels/optimizers/adam.cc
"""

import paddle

for kind in ("dense", "sparse"):
    zero = paddle.nn.initializer.Constant(0.0)
    embedding = paddle.nn.Embedding(4, 2, sparse=kind == "sparse", weight_attr=zero)
    optimizer = paddle.optimizer.Adam(1.0, parameters=embedding.parameters())
    embedding(paddle.to_tensor([1])).sum().backward()
    optimizer.step()
    print(f"{kind}: {round(float(embedding.weight[1, 0]), 4)}")
