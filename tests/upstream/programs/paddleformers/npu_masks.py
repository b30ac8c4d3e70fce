"""On npu, generation with a cache fails: the causal mask is int32.

``_make_causal_mask`` makes an int32 mask on npu, and puts a bool one in front of it for the cached
tokens. ``_expand_2d_mask`` makes the padding's mask floating-point there. PaddleFormers' own attention
takes bool masks.

:versions: paddleformers 1.2.0
:device: npu
:at:
    paddleformers/utils/masking_utils.py:153 `mask = paddle.tril(paddle.ones((target_length`
    paddleformers/utils/masking_utils.py:173 `mask = mask[:, None, None, :].astype(dtype)`
:error: ...The data_type of input tensor in list isn't consistent...
:should print:
    paddle.bool
:change: Make bool masks on every device.
:workaround: llm_npu.patches.paddleformers.masks.fix_npu_masks
"""

import paddle
from paddleformers.utils.masking_utils import _make_causal_mask

paddle.set_device("npu")
print(_make_causal_mask((1, 2), past_key_values_length=3).dtype)
