"""Ring attention with shared heads on four real ranks against float64 and one rank.

hybrid_program.py FOLDER: the errors for each mask and dtype.
"""

import paddle
import paddle.distributed as dist
import ranks
from block_values import attention, bounds, errors, inputs, wide

import paddle_fused
from paddle_fused import masks
from paddle_fused.context_parallel import zigzag
from paddle_fused.context_parallel.hybrid import hybrid_attention

LENGTH, RING, SHARED = 24, 2, 2
MASKS = {"full": None, "causal": masks.causal(), "documents": masks.documents([3, 17, 4])}


def main() -> None:
    dist.init_parallel_env()
    rank = dist.get_rank()
    # As fleet places them: the ranks of a server are neighbours, and share heads.
    heads_groups = [dist.new_group([SHARED * r + h for h in range(SHARED)]) for r in range(RING)]
    rings = [[dist.new_group([SHARED * r + h for r in range(RING)]) for _ in range(2)] for h in range(SHARED)]
    place, share = divmod(rank, SHARED)
    heads_group, ring = heads_groups[place], rings[share]
    for group in (heads_group, *ring):
        dist.barrier(group)

    def own(x):
        part = zigzag.split(x, place, RING)
        size = part.shape[1] // SHARED
        return part[:, share * size : (share + 1) * size]

    results = []
    for dtype in ("bfloat16", "float32"):
        for name, mask in MASKS.items():
            for heads in ((6, 2), (3, 1)):
                arrays = inputs(5, 1, LENGTH, heads, (16, 16))
                whole = [paddle.to_tensor(x.astype("float32")).astype(dtype) for x in arrays]
                operands = list(map(wide, whole))
                truth = attention(*operands, mask, 16**-0.5)
                for x in whole[:3]:
                    x.stop_gradient = False
                single = paddle_fused.flash_attention(*whole[:3], mask)
                baseline = [single, *paddle.grad(single, whole[:3], whole[3])]
                allowed = bounds(operands, mask, 16**-0.5, dtype, baseline, RING)
                mine = [own(x.detach()) for x in whole]
                for x in mine[:3]:
                    x.stop_gradient = False
                out = hybrid_attention(
                    *mine[:3], mask, ring_group=ring[0], backward_group=ring[1], heads_group=heads_group
                )
                gradients = paddle.grad(out, mine[:3], mine[3])
                case = {"dtype": dtype, "mask": name, "heads": heads}
                results.append({**case, "errors": errors([out, *gradients], truth, allowed, own)})
    ranks.write({"results": results})


main()
