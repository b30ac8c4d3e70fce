"""Initializers draw bfloat16 weights in bfloat16, which plugins for custom devices do not support.

For float16 weights, Paddle draws float32 numbers and casts them. For bfloat16 weights it calls the kernels
``uniform`` and ``truncated_gaussian_random`` with bfloat16. paddle-custom-npu registers both for float32
only, so a card falls back to the host CPU for the weights of ``Linear`` and ``Embedding``.

:versions: paddlepaddle 3.3.1
:device: npu
:environment: VIRTUAL_NPU_STRICT=1
:at:
    paddle/nn/initializer/uniform.py:107 `if var.dtype == core.VarDesc.VarType.FP16:`
:error: NotImplementedError: (Unimplemented) paddle-custom-npu registers no kernel 'uniform' for bfloat16...
:should print:
    paddle.bfloat16
:change: Treat bfloat16 as float16 in the initializers: draw float32 numbers and cast them.
:workaround: llm_npu.patches.devices.fix_bfloat16_initializers
"""

import paddle

paddle.set_device("npu")
uniform = paddle.nn.initializer.Uniform()
print(paddle.create_parameter([2, 2], "bfloat16", default_initializer=uniform).dtype)
