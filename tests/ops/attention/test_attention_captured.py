"""flash_attention in captured programs: unknown lengths, and masks and lengths that are program values."""

import numpy as np
import paddle
import pytest
from attention_calls import random_batch, random_tokens, tensor
from paddle.static import InputSpec

from paddle_fused import (
    BackendError,
    contracts,
    dispatch_log,
    flash_attention,
    masks,
    reset_dispatch_log,
    use_backend,
)

pytestmark = pytest.mark.sampled

DEVICES = [("native", "cpu"), ("native", "npu"), ("composed", "cpu")]
every_backend = pytest.mark.parametrize("backend, device", DEVICES)


def inputs(device, arrays):
    paddle.set_device("npu:0" if device == "npu" else "cpu")
    return [tensor(x, "float32", device, requires_grad=False) for x in arrays]


def captured(function, *specs):
    """``function(q, k, v)`` as a program."""
    function = paddle.jit.not_to_static(function)  # Paddle cannot rewrite the source of a lambda

    def program(q, k, v):
        return function(q, k, v)

    return paddle.jit.to_static(program, input_spec=list(specs) or None, full_graph=True)


def captured_with(function):
    """``function(q, k, v, x)`` as a program."""
    function = paddle.jit.not_to_static(function)

    def program(q, k, v, x):
        return function(q, k, v, x)

    return paddle.jit.to_static(program, full_graph=True)


UNKNOWN = [InputSpec([-1, -1, n, 8], "float32") for n in (4, 2, 2)]
NEEDS_NO_LENGTHS = [None, masks.causal(), masks.causal("top_left"), masks.band(3, 1)]


@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("mask", NEEDS_NO_LENGTHS, ids=repr)
def test_lengths_that_are_not_known(mask, device):
    program = captured(lambda q, k, v: flash_attention(q, k, v, mask), *UNKNOWN)
    with use_backend("native", strict=True):
        for lengths in ((6, 9), (5, 5)):
            tensors = inputs(device, random_batch("BSND", lengths))
            assert (program(*tensors) == flash_attention(*tensors, mask)).all()


def test_masks_that_need_lengths_say_so():
    paddle.set_device("cpu")
    program = captured(lambda q, k, v: flash_attention(q, k, v, masks.prefix(3)), *UNKNOWN)
    with pytest.raises(ValueError, match=r"prefix\(3\) .*sequence lengths"):
        program(*inputs("cpu", random_batch("BSND", (6, 6))))


def test_broken_rules_say_so():
    paddle.set_device("cpu")
    program = captured(lambda q, k, v: flash_attention(q, k, v, masks.prefix(7)))
    with pytest.raises(contracts.ContractError, match=r"prefix.*561002"):
        program(*inputs("cpu", random_batch("BSND", (6, 6))))


def test_composed_needs_the_lengths_of_a_mask():
    paddle.set_device("cpu")
    program = captured(lambda q, k, v: flash_attention(q, k, v, masks.causal()), *UNKNOWN)
    with use_backend("composed", strict=True), pytest.raises(ValueError, match="does not have the lengths"):
        program(*inputs("cpu", random_batch("BSND", (6, 6))))


@every_backend
def test_a_mask_that_is_a_value(backend, device):
    """Its values cannot be read, so queries that see no key give zeros."""
    hidden = np.random.default_rng(0).random((6, 9)) < 0.4
    hidden[2] = True
    program = captured_with(lambda q, k, v, hidden: flash_attention(q, k, v, masks.dense(hidden)))
    tensors = inputs(device, random_batch("BSND", (6, 9)))
    with use_backend(backend, strict=True):
        got = program(*tensors, tensor(hidden, device=device))
        plain = flash_attention(*tensors, masks.dense(hidden, invalid_rows=True))
    assert (got == plain).all() and not got[:, 2].any()


def test_a_mask_that_is_a_value_for_lengths_that_are_not_known():
    hidden = np.random.default_rng(0).random((6, 9)) < 0.4
    hidden[2] = True
    arrays = random_batch("BSH", (6, 9))

    def attention(q, k, v, hidden):
        return flash_attention(q, k, v, masks.dense(hidden, True), layout="BSH", num_heads=4)

    shapes = [[-1, -1, x.shape[2]] for x in arrays]
    specs = [*(InputSpec(shape, "float32") for shape in shapes), InputSpec([-1, -1], "bool")]
    with use_backend("native", strict=True):
        program = paddle.jit.to_static(attention, input_spec=specs, full_graph=True)
        tensors = inputs("cpu", [*arrays, hidden])
        assert (program(*tensors) == attention(*tensors)).all()


@every_backend
@pytest.mark.parametrize(
    "mask",
    [masks.prefix([1, 4]), masks.documents([2, 4]), masks.documents([2, 4]) & masks.prefix(1)],
    ids=repr,
)
def test_masks_of_a_batch(mask, backend, device):
    tensors = inputs(device, random_batch("BSND", (6, 6)))
    with use_backend(backend, strict=True):
        got = captured(lambda q, k, v: flash_attention(q, k, v, mask))(*tensors)
        assert (got == flash_attention(*tensors, mask)).all()


@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("mask", [None, masks.causal(), masks.band(2, 0)], ids=repr)
def test_lengths_that_are_values(mask, device):
    tensors = inputs(device, random_tokens(10, 10))

    def attention(q, k, v, ends):
        return flash_attention(q, k, v, mask, layout="TND", cu_seqlens_q=ends, cu_seqlens_k=ends)

    with use_backend("native", strict=True):
        program = captured_with(attention)
        for ends in ([0, 4, 4, 5, 10], [0, 1, 2, 8, 10]):
            got = program(*tensors, tensor(np.array(ends), device=device))
            assert (got == attention(*tensors, ends)).all()
    reset_dispatch_log()
    with use_backend("composed", strict=True), pytest.raises(BackendError, match="does not have"):
        captured_with(attention)(*tensors, tensor(np.array(ends), device=device))
    assert not dispatch_log()


def twice(q):
    return flash_attention(q, q, q, dropout=0.5), flash_attention(q, q, q, dropout=0.5)


@every_backend
def test_equal_calls_drop_differently(backend, device):
    """Paddle merges two equal operators, unless each has its own random numbers."""
    (q,) = inputs(device, random_batch("BSND", (64, 64))[:1])
    q.stop_gradient = False
    results = []
    with use_backend(backend, strict=True):
        program = paddle.jit.to_static(twice, full_graph=True)
        for _ in range(2):
            paddle.seed(7)
            outs = program(q)
            results.append([*outs, *paddle.grad(sum(out.sum() for out in outs), [q])])
    first, again = results
    assert (first[0] != first[1]).any()
    for a, b in zip(first, again, strict=True):
        assert (a == b).all()


def dropped(q, k, v):
    return flash_attention(q, k, v, dropout=0.5)


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_captured_dropout_is_the_same_in_both_passes(device):
    """out is linear in value: <out, w> = <value, gradient of value>."""
    q, k, v = inputs(device, random_batch("BSND", (64, 64)))
    v.stop_gradient = False
    with use_backend("native", strict=True):
        out = paddle.jit.to_static(dropped, full_graph=True)(q, k, v)
    (v_grad,) = paddle.grad(out, [v], out.detach())
    np.testing.assert_allclose((out * out).sum(), (v * v_grad).sum(), rtol=1e-5)


@pytest.mark.parametrize("layout, rank", [("BSND", 4), ("BNSD", 4), ("BSH", 3), ("SBH", 3)])
def test_heads_that_are_not_known_are_asked_for(layout, rank):
    paddle.set_device("cpu")
    num_heads = 4 if rank == 3 else None
    program = captured(
        lambda q, k, v: flash_attention(q, k, v, layout=layout, num_heads=num_heads),
        *[InputSpec([-1] * rank, "float32")] * 3,
    )
    with pytest.raises(ValueError, match="InputSpec"):
        program(*inputs("cpu", random_batch(layout, (6, 6))))
