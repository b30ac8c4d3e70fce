"""flashmask_attention on random row indices of every form, against dense attention in float64."""

import numpy as np
import paddle
import pytest
from precision import values
from row_index_kinds import FORMS, NAMES, dense, draw, tensors

from paddle_fused import dispatch_log, flashmask_attention, reset_dispatch_log, use_backend
from paddle_fused.ops.attention import tiles
from paddle_fused.ops.flashmask_attention.cases import hidden_by
from paddle_fused.parity import ROUNDING

every_form = pytest.mark.parametrize(("causal", "columns"), FORMS)


def tensors_of(arrays, dtype, place):
    paddle.set_device(place)
    on_device = [paddle.to_tensor(x.astype(np.float32)).astype(dtype) for x in arrays]
    for tensor in on_device[:3]:
        tensor.stop_gradient = False
    return on_device


def run(arrays, indices, causal, backend, dtype, place, **options):
    """out, dq, dk, dv."""
    *inputs, out_grad = tensors_of(arrays, dtype, place)
    rows = None if indices is None else paddle.to_tensor(indices)
    with use_backend(backend, strict=True):
        out = flashmask_attention(*inputs, rows, causal=causal, **options)
        return [out, *paddle.grad(out, inputs, out_grad)]


def truth(arrays, indices, causal):
    query_len, heads = arrays[0].shape[1:3]
    hidden = hidden_by(indices, causal, query_len)
    return dense(*arrays, hidden.repeat(heads // hidden.shape[1], 1))


class Errors:
    """The rule of tests/shared/precision.py for the mean of many small calls: which is worse in one is luck.

    A single call may be off by a few roundings of its largest number, far below what one wrong key does.
    """

    def __init__(self):
        self.rows = {name: [] for name in NAMES}

    def add(self, actual, composed, exact, what):
        for name, x, plain, right in zip(NAMES, actual, composed, exact, strict=True):
            assert tuple(x.shape) == right.shape
            unit = ROUNDING[str(x.dtype).removeprefix("paddle.")] * np.abs(right).max(initial=1)
            error, baseline = (np.abs(values(y) - right).max(initial=0) / unit for y in (x, plain))
            assert error < 30, f"{what}, {name}: {error:.1f} roundings, composed {baseline:.1f}"
            self.rows[name].append((error, baseline))

    def check(self):
        for name, rows in self.rows.items():
            error, baseline = np.mean(rows, 0)
            assert error <= 2 * baseline + 1, f"{name}: {error:.1f} roundings, composed {baseline:.1f}"


def check(random, causal, columns, backend, dtype, errors):
    indices, query_len = draw(random, causal, columns)
    arrays = tensors(random, indices, query_len)
    actual = run(arrays, indices, causal, backend, dtype, "npu:0")
    composed = run(arrays, indices, causal, "composed", dtype, "npu:0")
    errors.add(actual, composed, truth(arrays, indices, causal), f"{indices.tolist()}, Sq {query_len}")
    fully_masked = hidden_by(indices, causal, query_len).all(-1)
    fully_masked = fully_masked.repeat(arrays[0].shape[2] // fully_masked.shape[1], 1)
    for x in (*actual[:2], *composed[:2]):  # zeros, not small numbers
        assert not values(x).transpose(0, 2, 1, 3)[fully_masked].any()


def check_many(causal, columns, count, seed):
    random, errors = np.random.default_rng(seed), Errors()
    for _ in range(count):
        check(random, causal, columns, "native", "float32", errors)
    errors.check()


@every_form
def test_random_indices(causal, columns):
    check_many(causal, columns, 12, 1)


@pytest.mark.slow
@every_form
def test_two_hundred_random_indices(causal, columns):
    check_many(causal, columns, 200, 2)


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(tiles, "ROWS", 8)
    monkeypatch.setattr(tiles, "FEWEST_ROWS", 8)


def check_many_on_the_plugin(causal, columns, count, seed):
    random, errors = np.random.default_rng(seed), Errors()
    reset_dispatch_log()
    for number in range(count):
        check(random, causal, columns, "ascend", ("bfloat16", "float16")[number % 2], errors)
    errors.check()
    modes = " ".join(ran.mode for ran in dispatch_log() if ran.backend == "ascend")
    assert "tiles" in modes and ("varlen" in modes or count < 50)


@every_form
def test_random_indices_on_the_plugin(causal, columns, small_tiles):
    check_many_on_the_plugin(causal, columns, 10, 3)


@pytest.mark.slow
@every_form
def test_two_hundred_random_indices_on_the_plugin(causal, columns, small_tiles):
    check_many_on_the_plugin(causal, columns, 200, 4)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [3, (5, 2)], ids=str)
@pytest.mark.parametrize(("backend", "dtype"), [("native", "float32"), ("ascend", "float16")])
def test_window(causal, window, backend, dtype, small_tiles):
    random = np.random.default_rng(0)
    size = 30
    left, right = (window, window) if isinstance(window, int) else window
    i, j = np.arange(size)[:, None], np.arange(size)
    hidden = (j < i - left) | (j > i + (0 if causal else right))
    arrays = tensors(random, np.zeros((2, 1, size, 1)), size)
    exact = dense(*arrays, np.broadcast_to(hidden, (2, 4, size, size)))
    options = {"causal": causal, "dtype": dtype, "place": "npu:0", "window_size": window}
    actual, composed = (run(arrays, None, backend=name, **options) for name in (backend, "composed"))
    errors = Errors()
    errors.add(actual, composed, exact, backend)
    errors.check()


@pytest.mark.parametrize("lengths", [(20, 30), (30, 20)])
def test_without_indices(lengths, small_tiles):
    """Causal from the bottom right, as Paddle's kernel; on the plugin in tiles."""
    random = np.random.default_rng(0)
    everything = np.full((1, 1, lengths[1], 1), lengths[0], np.int32)
    arrays = tensors(random, everything, lengths[0])
    exact = truth(arrays, everything, True)
    for backend in ("native", "ascend"):
        actual = run(arrays, None, True, backend, "float16", "npu:0")
        composed = run(arrays, None, True, "composed", "float16", "npu:0")
        errors = Errors()
        errors.add(actual, composed, exact, backend)
        errors.check()


def test_tiles_under_recompute(small_tiles):
    """Recompute runs the tiles' backward, which runs the tiles again, inside of its own."""
    from paddle.distributed.fleet.utils import recompute

    indices = np.stack([np.arange(24) + 3, np.arange(24) + 9], -1).clip(max=24)[None, None].astype(np.int32)
    arrays = tensors(np.random.default_rng(0), indices, 24)
    rows, results = paddle.to_tensor(indices), []
    for again in (False, True):
        *inputs, out_grad = tensors_of(arrays, "bfloat16", "npu:0")
        call = (lambda f, *x: recompute(f, *x)) if again else (lambda f, *x: f(*x))
        with use_backend("ascend", strict=True):
            out = call(lambda q, k, v: flashmask_attention(q, k, v, rows, causal=True), *inputs)
            (out * out_grad).sum().backward()
        results.append([values(x) for x in (out, *(x.grad for x in inputs))])
    for plain, same in zip(*results, strict=True):
        np.testing.assert_array_equal(plain, same)
