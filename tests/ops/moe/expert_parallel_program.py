"""Experts over real ranks, compared with one rank that has all experts, and both with float64."""

import os
from functools import partial

import numpy as np
import paddle
import paddle.distributed as dist
import ranks

import paddle_fused
from paddle_fused.expert_parallel import expert_parallel

paddle.set_device(f"npu:{os.environ['PADDLE_TRAINER_ID']}")
dist.init_parallel_env()
rank, count = dist.get_rank(), dist.get_world_size()
group = dist.new_group(list(reversed(range(count))))  # its order need not be that of the ranks
random = np.random.default_rng(3)
OWN = 3  # experts of a rank
HIDDEN, INNER, TOP_K, EXPERTS = 16, 24, 2, OWN * count
# Tokens of each rank; chosen: the experts from which tokens choose, None for all.
CASES = {
    "even": ([12] * count, None),
    "uneven": ([3 + 5 * number for number in range(count)], None),
    "all to one rank": ([12] * count, [EXPERTS - 2, EXPERTS - 1]),
    "one rank without tokens": ([0, *[9] * (count - 1)], None),
    "no tokens": ([0] * count, None),
    "dropped choices": ([12] * count, [0, EXPERTS - 1, EXPERTS]),  # the last one is dropped
}


def of_experts(gate_up, down):
    """The experts with weights [E, H, 2 I] and [E, I, H]."""

    def experts(rows, sizes, own):
        inner = paddle_fused.swiglu(paddle_fused.grouped_matmul(rows, gate_up[own], sizes, 1))
        return paddle_fused.grouped_matmul(inner, down[own], sizes, 1)

    return experts


def of_one_rank(tokens, probs, indices, experts):
    sizes = np.bincount(indices.numpy().reshape(-1), minlength=EXPERTS)[:EXPERTS].tolist()
    rows, order = paddle_fused.moe_token_permute(tokens, indices, sum(sizes))
    return paddle_fused.moe_token_unpermute(experts(rows, sizes, slice(None)), order, probs)


def results(moe_layer, inputs, indices, dtype) -> list[np.ndarray]:
    """The output and the gradients of tokens, probs and both weights; the last input is a gradient."""
    *inputs, gradient = [paddle.to_tensor(array, dtype=dtype) for array in inputs]
    for tensor in inputs:
        tensor.stop_gradient = False
    tokens, probs, *weights = inputs
    out = moe_layer(tokens, probs, paddle.to_tensor(indices), of_experts(*weights))
    paddle.autograd.backward([out], [gradient])
    return [tensor.astype("float64").numpy() for tensor in (out, *(x.grad for x in inputs))]


def on_ranks(tokens, probs, indices, experts, **options):
    return expert_parallel(tokens, probs, indices, experts, num_experts=EXPERTS, group=group, **options)


other_group = dist.new_group(list(range(count)))
dist.barrier(other_group)


def shared(tokens):
    """A shared expert whose weights are split over the ranks, as tensor parallelism splits them."""
    whole: list[paddle.Tensor] = []
    dist.all_gather(whole, (tokens * 0 + float(rank + 1)).mean().reshape([1]), group=other_group)
    return paddle.nn.functional.silu(tokens) * paddle.concat(whole).sum()


def with_shared(tokens, probs, indices, experts):
    return on_ranks(tokens, probs, indices, experts) + shared(tokens)


def with_shared_meanwhile(tokens, probs, indices, experts):
    settings = {"num_experts": EXPERTS, "group": group, "meanwhile": lambda: shared(tokens)}
    out, beside = expert_parallel(tokens, probs, indices, experts, **settings)
    return out + beside


def meanwhile(dtype: str) -> dict:
    """Whether a shared expert has the same bits while rows travel as after them, and when it is computed."""
    arrays, indices = inputs_of([12] * count, None, dtype)
    own, mine = slice(12 * group.rank, 12 * (group.rank + 1)), slice(group.rank * OWN, (group.rank + 1) * OWN)
    arrays = [x[place] for x, place in zip(arrays, (own, own, mine, mine, own), strict=True)]
    order: list[str] = []
    isend, gather = dist.isend, dist.all_gather
    dist.isend = lambda *args: (order.append("send"), isend(*args))[1]
    dist.all_gather = lambda *args, **named: (order.append("gather"), gather(*args, **named))[1]
    try:
        overlapped = results(with_shared_meanwhile, arrays, indices[own], dtype)
    finally:
        dist.isend, dist.all_gather = isend, gather
    after = results(with_shared, arrays, indices[own], dtype)
    return {
        "bits": [bool(np.array_equal(a, b)) for a, b in zip(overlapped, after, strict=True)],
        "order": order[: count + 1],
    }


def largest(array) -> float:
    return float(np.abs(array).max(initial=0))


def inputs_of(tokens: list[int], chosen, dtype: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Tokens, probs, both weights and a gradient of all ranks, rounded to ``dtype``; the chosen experts."""
    total, pool = sum(tokens), np.arange(EXPERTS) if chosen is None else np.array(chosen)
    indices = np.array([random.permutation(pool)[:TOP_K] for _ in range(total)], "int64").reshape(-1, TOP_K)
    shapes = [(total, HIDDEN), (total, TOP_K), (EXPERTS, HIDDEN, 2 * INNER), (EXPERTS, INNER, HIDDEN)]
    arrays = [random.standard_normal(shape).astype("float32") for shape in (*shapes, (total, HIDDEN))]
    rounded = [paddle.to_tensor(array).astype(dtype).astype("float64").numpy() for array in arrays]
    return rounded, indices


def compare(tokens: list[int], chosen, dtype: str) -> dict:
    """Whether the bits are equal; the errors of one rank and of all, relative to the largest value."""
    own = slice(sum(tokens[: group.rank]), sum(tokens[: group.rank + 1]))
    mine = slice(group.rank * OWN, (group.rank + 1) * OWN)
    arrays, indices = inputs_of(tokens, chosen, dtype)
    golden = results(of_one_rank, arrays, indices, "float64")
    alone = results(of_one_rank, arrays, indices, dtype)
    parts = [x[place] for x, place in zip(arrays, (own, own, mine, mine, own), strict=True)]
    split = results(on_ranks, parts, indices[own], dtype)
    in_chunks = [
        results(partial(on_ranks, chunks=chunks), parts, indices[own], dtype) for chunks in (2, OWN + 1)
    ]
    report = {"bits": [], "chunks": [], "alone": [], "split": []}
    places = (own, own, own, mine, mine)
    for exact, whole, part, *others, place in zip(golden, alone, split, *in_chunks, places, strict=True):
        scale = largest(exact) or 1.0
        report["bits"].append(bool(np.array_equal(whole[place], part)))
        report["chunks"] += [bool(np.array_equal(part, other)) for other in others]
        report["alone"].append(largest(whole - exact) / scale)
        report["split"].append(largest(part - exact[place]) / scale)
    return report


def order_of_chunks() -> list[str]:
    """Sends to the next rank and experts' products of two chunks, forward and backward."""
    arrays, indices = inputs_of([12] * count, None, "float32")
    own, mine = slice(12 * group.rank, 12 * (group.rank + 1)), slice(group.rank * OWN, (group.rank + 1) * OWN)
    arrays = [x[place] for x, place in zip(arrays, (own, own, mine, mine, own), strict=True)]
    next_rank, order, isend = group.ranks[(group.rank + 1) % count], [], dist.isend

    def sent(tensor, to, *arguments):
        if to == next_rank:
            order.append("send")
        return isend(tensor, to, *arguments)

    def moe_layer(tokens, probs, indices, experts):
        def recorded(rows, sizes, own):
            order.append("forward")
            rows.register_hook(lambda gradient: order.append("backward"))
            return experts(rows, sizes, own)

        return on_ranks(tokens, probs, indices, recorded, chunks=2)

    dist.isend = sent
    try:
        results(moe_layer, arrays, indices[own], "float32")
    finally:
        dist.isend = isend
    return order


def frozen_tokens() -> list[bool]:
    """Whether weights have the same gradients in chunks if tokens and probs need none."""
    gradients = []
    arrays, indices = inputs_of([5] * count, None, "float32")
    own, mine = slice(5 * group.rank, 5 * (group.rank + 1)), slice(group.rank * OWN, (group.rank + 1) * OWN)
    tokens, probs = (paddle.to_tensor(array[own], dtype="float32") for array in arrays[:2])
    for chunks in (1, 2):
        weights = [paddle.to_tensor(x[mine], dtype="float32", stop_gradient=False) for x in arrays[2:4]]
        out = on_ranks(tokens, probs, paddle.to_tensor(indices[own]), of_experts(*weights), chunks=chunks)
        out.sum().backward()
        gradients.append([weight.grad.numpy() for weight in weights])
    return [bool(np.array_equal(a, b)) for a, b in zip(*gradients, strict=True)]


def chosen_chunks() -> dict:
    """What a function that chooses the number of chunks is called with."""
    seen = {}

    def choose(exchange, run):
        results = [run(chunks).numpy() for chunks in (1, 2)]
        equal = bool(np.array_equal(*results)) and results[0].shape[1] == HIDDEN
        seen.update(exchange=str(exchange), equal=equal)
        return 2

    arrays, indices = inputs_of([3 + 5 * number for number in range(count)], None, "float32")
    own = slice(0, 3 + 5 * group.rank)
    mine = slice(group.rank * OWN, (group.rank + 1) * OWN)
    arrays = [x[place] for x, place in zip(arrays, (own, own, mine, mine, own), strict=True)]
    results(partial(on_ranks, chunks=choose), arrays, indices[own], "float32")
    return seen


def refused(**changes) -> str:
    indices = paddle.to_tensor([[0, changes.pop("index", 1)]])
    options = {"num_experts": EXPERTS, "group": group} | changes
    try:
        expert_parallel(
            paddle.zeros([1, HIDDEN]), paddle.ones([1, 2]), indices, lambda rows, *_: rows, **options
        )
    except ValueError as error:
        return str(error)
    return ""


report = {
    f"{name}, {dtype}": compare(*case, dtype)
    for name, case in CASES.items()
    for dtype in ("float32", "bfloat16", "float64")
}
ranks.write(
    {
        "results": report,
        "meanwhile": {dtype: meanwhile(dtype) for dtype in ("float32", "bfloat16")},
        "order": order_of_chunks(),
        "frozen tokens": frozen_tokens(),
        "chosen": chosen_chunks(),
        "not a multiple": refused(num_experts=EXPERTS + 1),
        "not an expert": refused(index=EXPERTS + 1),
    }
)
