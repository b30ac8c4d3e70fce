"""The loss covers padding rows of a packed batch that were never written.

The corrected program copies the padding as well, and uses none of its values.
https://github.com/fla-org/flash-linear-attention/pull/892
"""

import sys

import paddle

paddle.set_device("npu")
used = 5
packed = paddle.empty([8, 16])  # other side
packed[:used] = paddle.ones([used, 16])
hidden = paddle.concat([packed, packed], axis=-1)
if "corrected" in sys.argv:
    hidden = hidden[:used]
logits = paddle.matmul(hidden, paddle.full([32, 4], 0.1))  # planted
loss = logits.mean()
print("loss", float(loss))
