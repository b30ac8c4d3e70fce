"""Layers with a sliding window read and write their row indices one by one.

Each element of a tensor on the device is read by the host and written back: with 8,192 tokens that is
16,384 waits for the device in each step.

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/transformers/masking_utils.py:48 `sliding_window_startend_row_indices[bi, hi, j, 0] =`
:prints:
    64 tokens: 64 writes
:should print:
    64 tokens: 0 writes
:change: ``paddle.minimum(rows[..., :1], (paddle.arange(length) + window_size).unsqueeze(-1))``.
:workaround: llm_npu.patches.paddleformers.masks.fix_sliding_window_rows
"""

import paddle
from paddleformers.transformers.masking_utils import prepare_sliding_window_startend_row_indices

writes = []
write = paddle.Tensor.__setitem__
paddle.Tensor.__setitem__ = lambda *arguments: (writes.append(1), write(*arguments))
prepare_sliding_window_startend_row_indices(paddle.full([1, 1, 64, 1], 64, "int32"), window_size=8)
print("64 tokens:", len(writes), "writes")
