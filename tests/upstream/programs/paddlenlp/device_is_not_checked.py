"""TrainingArguments(device="npu") without a device npu trains on the CPU, in silence.

``device`` is compared with names in two places and never set or checked, so a plugin that failed to load
shows as a slow run. (On the CPU ``bf16=True`` then computes in float32.)

:versions: paddlenlp 3.0.0b4
:device: cpu
:at:
    paddlenlp/trainer/training_args.py:830 `device: Optional[str] = field(default="gpu"`
:prints:
    asked for npu, runs on cpu
:should print:
    ValueError
:change:
    In ``__post_init__`` compare ``device`` with ``paddle.device.get_all_device_type()`` and
    ``get_all_custom_device_type()``, raise a ValueError if it is neither, and call
    ``paddle.set_device``.
:workaround: llm_npu/training/model.py
"""

import tempfile

import paddle
from paddlenlp.trainer import TrainingArguments

try:
    arguments = TrainingArguments(output_dir=tempfile.mkdtemp(), device="npu")
    print(f"asked for {arguments.device}, runs on {paddle.get_device()}")
except ValueError:
    print("ValueError")
