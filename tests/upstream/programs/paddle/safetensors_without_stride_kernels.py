"""With FLAGS_use_stride_kernel=0 Tensor.view to another dtype has no kernel, and safetensors cannot be
read.

PaddleNLP's scripts for NPUs set this flag. Safetensors views the bytes of its file as numbers.
``view_dtype`` is registered as a strided kernel only, and without strides nothing takes its place.

:versions: paddlepaddle 3.0.0 to 3.3.1
:device: cpu
:environment: FLAGS_use_stride_kernel=0
:at:
    paddle/tensor/manipulation.py:7933 `return _C_ops.view_dtype(x, shape_or_dtype)`
:error: ...The kernel with key (CPU, Undefined(AnyLayout), uint8) of kernel `view_dtype` is not registered...
:should print:
    [0.0, 1.0]
:change:
    Register a dense ``view_dtype`` kernel that shares its input's memory, as ``reshape`` does, or let
    the strided one serve contiguous tensors whatever the flag says.
:workaround: llm_npu.patches.operators.as_numbers
"""

import numpy as np
import paddle

stored = np.array([0.0, 1.0], "float32").view("uint8")
print(paddle.to_tensor(stored).view("float32").tolist())
