"""softmax and cross_entropy on the CPU clip at exp(-64), so losses end at 64 and hidden keys keep a
weight.

The kernel limits x - max(x) to -64 from below. A score of minus infinity gets a probability of 1.6e-28
instead of 0, and the loss of a token with a small probability is never more than 64, with the gradient
of that.

:versions: paddlepaddle 3.0.0 to 3.3.1
:device: cpu
:at:
    paddle/phi/kernels/funcs/softmax_impl.h `ValueClip`
:prints:
    softmax [1.0, 1.6038109389511792e-28]
    loss 64.0
:should print:
    softmax [1.0, 0.0]
    loss 200.0
:change:
    Remove the clip: exp of a large negative number is 0, and ``log_softmax`` needs no lower bound when
    it is computed as x - max - log(sum).
:workaround:
    paddle_fused/ops/attention/composed.py, virtual_npu/csrc/phi_kernels/nn/cross_entropy.cc
"""

import paddle
import paddle.nn.functional as F

print("softmax", F.softmax(paddle.to_tensor([0.0, -float("inf")])).tolist())
print("loss", float(F.cross_entropy(paddle.to_tensor([[0.0, 200.0]]), paddle.to_tensor([0]))))
