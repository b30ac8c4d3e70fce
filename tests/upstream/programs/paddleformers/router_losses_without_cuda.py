"""The router of ERNIE-4.5's MoE layers calls kernels that only CUDA builds have.

``int_bincount`` and ``cal_aux_loss`` of ``paddle.incubate.nn.functional`` have no kernel for the CPU and
no composed form, and the router calls them on every device.

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/nn/moe/topk_gate.py:35 `from paddle.incubate.nn.functional import cal_aux_loss`
    paddleformers/nn/moe/topk_gate.py:37 `from paddle.incubate.nn.functional import int_bincount`
:error: ...is not registered...
:should print:
    [1, 2]
:change: ``paddle.bincount`` and plain operators where Paddle is not compiled with CUDA.
:workaround: llm_npu.patches.paddleformers.experts.supply_router_losses
"""

import paddle
from paddleformers.nn.moe.topk_gate import int_bincount

print(int_bincount(paddle.to_tensor([0, 1, 1]), 0, 2, paddle.int64).tolist())
