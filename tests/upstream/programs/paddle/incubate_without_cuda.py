"""Fused functions of paddle.incubate have kernels in CUDA builds only, and no composed form.

ERNIE and PaddleFormers call ``fused_rms_norm_ext`` and ``fused_rotary_position_embedding`` by a switch
of the configuration. On the CPU and on custom devices whose plugins lack the kernels, such as npu, they
fail.

:versions: paddlepaddle 3.1.1 to 3.3.1
:device: cpu
:at:
    paddle/incubate/nn/functional/fused_rms_norm_ext.py:37 `return _C_ops.fused_rms_norm_ext(x, scale`
    paddle/incubate/nn/functional/fused_rotary_position_embedding.py:109 `_C_ops.fused_rotary`
:prints:
    fused_rms_norm_ext: is not registered
    fused_rotary_position_embedding: is not registered
:should print:
    fused_rms_norm_ext: [1, 2, 1, 4]
    fused_rotary_position_embedding: [1, 2, 1, 4]
:change:
    Compose them of plain operators where the place has no kernel, as ``swiglu`` and
    ``scaled_dot_product_attention`` do.
:workaround: llm_npu.patches.incubate.supply_rms_norm, llm_npu.patches.incubate.supply_rotary
"""

import paddle
from paddle.incubate.nn import functional

x = paddle.ones([1, 2, 1, 4])
calls = {
    "fused_rms_norm_ext": lambda: functional.fused_rms_norm_ext(x, paddle.ones([4])),
    "fused_rotary_position_embedding": lambda: functional.fused_rotary_position_embedding(x),
}
for name, call in calls.items():
    try:
        print(f"{name}: {call()[0].shape}")
    except RuntimeError as error:
        print(f"{name}: {'is not registered' if 'is not registered' in str(error) else error}")
