"""``Tensor.device`` fails on custom devices.

``Device`` calls ``get_device_type`` of a custom place, which is called ``custom_device_type``. It accepts the
names cpu, gpu, cuda and xpu only, so ``paddle.device("npu:0")`` is refused as well.
PaddleFormers' Qwen3-VL, ERNIE-4.5-VL and GLM-4V read ``Tensor.device`` in their forward.

:versions: paddlepaddle 3.3.1
:device: npu
:at:
    paddle/device/__init__.py:2114 `dev_type = type.get_device_type()`
    paddle/device/__init__.py:2098 `_SUPPORTED_TYPES = {"cpu", "gpu", "cuda", "xpu"}`
:error: AttributeError: 'paddle.base.libpaddle.Place' object has no attribute 'get_device_type'...
:should print:
    npu:0
:change:
    ``custom_device_type()`` and ``custom_device_id()``, and the types of ``get_all_custom_device_type()``.
:workaround: llm_npu.patches.devices.fix_custom_devices
"""

import paddle

paddle.set_device("npu")
print(paddle.ones([1]).device)
