"""ERNIE-4.5's MoE layers cannot be imported on npu: the wheel lacks a module.

``topk_gate.py`` imports ``npu_fusion_ops`` where Paddle has a device npu, and there is no such file.

:versions: paddleformers 1.2.0
:device: npu
:at:
    paddleformers/nn/moe/topk_gate.py:33 `from .npu_fusion_ops import npu_cal_aux_loss_func as`
:error: ModuleNotFoundError: No module named 'paddleformers.nn.moe.npu_fusion_ops'
:should print:
    imported
:change: Add the module, or compute the auxiliary loss with plain operators where its kernel is missing.
:workaround: llm_npu.patches.paddleformers.experts.supply_router_losses
"""

import paddleformers.nn.moe.topk_gate  # noqa: F401

print("imported")
