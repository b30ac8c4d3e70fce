"""Attention with gathered keys on real ranks against float64 and one rank.

gathered_program.py FOLDER: the errors for each mask and dtype.
"""

import numpy as np
import paddle
import paddle.distributed as dist
import ranks
from block_values import attention, bounds, errors, inputs, wide

import paddle_fused
from paddle_fused import masks
from paddle_fused.context_parallel import zigzag
from paddle_fused.context_parallel.gathered import gathered_attention

LENGTH, HEADS, SIZES = 36, (6, 2), (16, 16)


def whole_masks() -> dict:
    hidden = np.triu(np.ones((LENGTH, LENGTH), bool), 3)
    hidden[:, 5] = True
    hidden[5, 0] = False
    return {
        "full": None,
        "causal": masks.causal(),
        "window": masks.band(7, 0),
        "both sides": masks.band(2, 4),
        "later": masks.band(None, 5),
        "documents": masks.documents([5, 30, 1]),
        "window of documents": masks.documents([5, 30, 1]) & masks.band(7, 0),
        "dense": masks.dense(paddle.to_tensor(hidden)),
    }


def main() -> None:
    dist.init_parallel_env()
    n, rank = dist.get_world_size(), dist.get_rank()
    group = dist.new_group(list(range(n)))
    results = []
    for dtype in ("bfloat16", "float32"):
        for name, mask in whole_masks().items():
            whole = [
                paddle.to_tensor(x.astype("float32")).astype(dtype)
                for x in inputs(4, 1, LENGTH, HEADS, SIZES)
            ]
            operands = list(map(wide, whole))
            truth = attention(*operands, mask, SIZES[0] ** -0.5)
            for x in whole[:3]:
                x.stop_gradient = False
            single = paddle_fused.flash_attention(*whole[:3], mask)
            baseline = [single, *paddle.grad(single, whole[:3], whole[3])]
            allowed = bounds(operands, mask, SIZES[0] ** -0.5, dtype, baseline, n)
            mine = [zigzag.split(x.detach(), rank, n) for x in whole]
            for x in mine[:3]:
                x.stop_gradient = False
            out = gathered_attention(*mine[:3], mask, group=group)
            gradients = paddle.grad(out, mine[:3], mine[3])
            rows = errors([out, *gradients], truth, allowed, lambda x: zigzag.split(x, rank, n))
            results.append({"dtype": dtype, "mask": name, "errors": rows})
    ranks.write({"results": results})


main()
