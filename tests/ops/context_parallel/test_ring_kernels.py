"""The kernels of ring attention, with the ranks of a ring one after the other in this process."""

import numpy as np
import paddle
import pytest
from block_values import attention, bounds, inputs
from precision import npu, values

import paddle_fused
from paddle_fused import masks
from paddle_fused.context_parallel import kernels, zigzag
from paddle_fused.context_parallel.blocks import Sizes, blocks, pattern_of
from paddle_fused.context_parallel.ring import Merged

LENGTH = 36
MASKS = {
    "full": None,
    "causal": masks.causal(),
    "documents": masks.documents([[5, 31], [1, 2, 33]]),
    "not causal": masks.documents([20, 16], causal=False),
}
KERNELS = {
    "registered": lambda scale, dv: kernels.Plugin(scale, dv, kernels.REGISTERED),
    "replaced": lambda scale, dv: kernels.Plugin(scale, dv, kernels.REPLACED),
    "host": lambda scale, dv: kernels.Host(scale),
    "composed": lambda scale, dv: kernels.Composed(scale),
}


def in_turn(kernel, tensors, mask, ranks: int) -> list[paddle.Tensor]:
    """out and gradients of the whole sequence, as the ranks compute them."""
    query, key, value, out_grad = ([zigzag.split(x, r, ranks) for r in range(ranks)] for x in tensors)
    batch, length = query[0].shape[:2]
    sizes = Sizes(batch, length, ranks, kernel.longest_causal, kernel.has_documents)
    pattern = pattern_of(mask, length * ranks, batch)
    outs = []
    query_grad, key_grad, value_grad = (
        [paddle.zeros(x.shape) for x in parts] for parts in (query, key, value)
    )
    for rank in range(ranks):
        merged, calls = Merged(query[rank], value[0].shape[-1]), []
        for source in [(rank - step) % ranks for step in range(ranks)]:
            for block in blocks(pattern, sizes, rank, source):
                q = query[rank][block.rows, block.queries].contiguous()
                k, v = (x[source][block.rows, block.keys].contiguous() for x in (key, value))
                merged.add(block, *kernel.forward(q, k, v, block.causal, block.documents))
                calls.append((block, source, q, k, v))
        outs.append(merged.out.astype(query[rank].dtype))
        for block, source, q, k, v in calls:
            rows, queries = block.rows, block.queries
            out, grad = (x[rows, queries].contiguous() for x in (outs[rank], out_grad[rank]))
            statistics = (x[rows, :, queries] for x in (merged.row_max, merged.row_sum))
            dq, dk, dv = kernel.backward(q, k, v, out, *statistics, grad, block.causal, block.documents)
            query_grad[rank][rows, queries] += dq.astype("float32")
            key_grad[source][rows, block.keys] += dk.astype("float32")
            value_grad[source][rows, block.keys] += dv.astype("float32")
    gradients = [zigzag.merge(x).astype(tensors[0].dtype) for x in (query_grad, key_grad, value_grad)]
    return [zigzag.merge(outs), *gradients]


@pytest.mark.sampled(key=lambda parameters: parameters["name"])
@pytest.mark.parametrize("draw", range(4))
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("heads", "sizes"), [((5, 5), (17, 17)), ((6, 2), (16, 8))])
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", KERNELS)
def test_blocks_give_the_attention_of_the_whole(name, dtype, ranks, heads, sizes, mask, draw, on_npu):
    if dtype == "float32" and name in ("registered", "replaced"):
        pytest.skip("the plugin's operator takes 16-bit types only")
    tensors = [npu(x, dtype) for x in inputs(draw, 2, LENGTH, heads, sizes)]
    scale = 2 * sizes[0] ** -0.5
    whole_mask = MASKS[mask]
    operands = list(map(values, tensors))
    truth = attention(*operands, whole_mask, scale)
    whole = tensors[:3]
    out = paddle_fused.flash_attention(*whole, whole_mask, scale=scale)
    baseline = [out, *paddle.grad(out, whole, tensors[3])]
    with paddle.no_grad():
        results = in_turn(KERNELS[name](scale, sizes[1]), [x.detach() for x in tensors], whole_mask, ranks)
    block_dtype = "float32" if name == "composed" else dtype
    allowed = bounds(operands, whole_mask, scale, dtype, baseline, ranks, block_dtype)
    for what, result, true, bound in zip(("out", "dq", "dk", "dv"), results, truth, allowed, strict=True):
        error = np.abs(values(result) - true).max()
        assert error <= bound, f"{what}: {error:.2e}, allowed {bound:.2e}"


def test_registered_and_replaced_have_the_bits_of_the_operators_backward(on_npu):
    query, key, value, out_grad = (npu(x, "bfloat16") for x in inputs(2, 2, 20, (4, 2), (16, 16)))
    out, row_max, row_sum, *_ = kernels._attend(query, key, value, True, ())
    expected = paddle.grad(out, [query, key, value], out_grad)
    statistics = row_max[..., :1].detach(), row_sum[..., :1].detach()
    held = [x.detach() for x in (query, key, value, out)]
    for gradient in kernels.GRADIENTS:
        kernel = kernels.Plugin(16**-0.5, 16, gradient)
        for _ in range(2):  # a node is used again
            results = kernel.backward(*held, *statistics, out_grad, True, ())
            for actual, wanted in zip(results, expected, strict=True):
                assert bool((actual == wanted).all())


def test_the_order_of_the_statistics_of_documents_is_measured(on_npu):
    assert kernels.varlen_order() == "tokens, heads"  # the virtual NPU's


@pytest.mark.parametrize("order", kernels.ORDERS)
def test_orders_are_inverses(order, on_npu):
    documents, (read, write) = (3, 1, 2), kernels.ORDERS[order]
    x = paddle.arange(6 * 2 * 8, dtype="float32").reshape([6, 2, 8])
    assert bool((read(write(x, documents), documents) == x).all())
    assert bool((write(read(x, documents), documents) == x).all())
