"""Ring attention on real ranks against float64 and one rank.

ring_program.py FOLDER CASES.json GROUPS DEVICE: the errors of each case, and what ran.
"""

import json
import sys
from pathlib import Path

import paddle
import paddle.distributed as dist
import ranks
from block_values import attention, bounds, errors, inputs, wide

import paddle_fused
from paddle_fused import masks
from paddle_fused.context_parallel import zigzag
from paddle_fused.context_parallel.ring import ring_attention


def mask_of(case: dict):
    kind = case["mask"]
    if isinstance(kind, list):
        return masks.documents(kind, causal=case.get("causal", True))
    return masks.causal() if kind == "causal" else None


def main(cases: list[dict], groups: int) -> None:
    dist.init_parallel_env()
    n, rank = dist.get_world_size(), dist.get_rank()
    both = [dist.new_group(list(range(n))) for _ in range(groups)]
    for group in both:
        dist.barrier(group)
    second = both[1] if groups == 2 else None
    results = []
    for case in cases:
        dtype, mask = case["dtype"], mask_of(case)
        length = case["length"]
        arrays = inputs(3, case.get("batch", 1), length, case["heads"], case["sizes"])
        whole = [paddle.to_tensor(x.astype("float32")).astype(dtype) for x in arrays]
        operands, scale = list(map(wide, whole)), case["sizes"][0] ** -0.5
        truth = attention(*operands, mask, scale)
        for x in whole[:3]:
            x.stop_gradient = False
        single = paddle_fused.flash_attention(*whole[:3], mask)
        baseline = [single, *paddle.grad(single, whole[:3], whole[3])]
        allowed = bounds(operands, mask, scale, dtype, baseline, n)
        mine = [zigzag.split(x.detach(), rank, n) for x in whole]
        frozen = case.get("frozen", [])
        for index, x in enumerate(mine[:3]):
            x.stop_gradient = index in frozen
        paddle_fused.reset_dispatch_log()
        for _ in range(2):
            for x in mine[:3]:
                x.clear_grad()
            out = ring_attention(*mine[:3], mask, group=both[0], backward_group=second)
            paddle.autograd.backward([out], [mine[3]])
        (record,) = paddle_fused.dispatch_log()
        parts = [out, *(x.grad for x in mine[:3])]
        case_errors = errors(parts, truth, allowed, lambda x: zigzag.split(x, rank, n))
        results.append({"backend": record.backend, "mode": record.mode, "errors": case_errors})
    ranks.write({"results": results})


main(json.loads(Path(sys.argv[2]).read_text()), int(sys.argv[3]))
