"""The attention kernels, through ``pf_flash_attention``: accurate in every form, independent of threads."""

from pathlib import Path

import attention_operator as attention
import numpy as np
import paddle
import pytest
from attention_operator import Case
from places import SHARED
from precision import DTYPES, assert_as_accurate_as_composed, assert_is_gradient, npu, values, with_threads

pytestmark = pytest.mark.sampled

CASES = {
    "square": Case(2, 128, 128, 2, 2, 64, 64),
    "odd sizes": Case(1, 65, 67, 3, 3, 37, 37),
    "one query": Case(8, 1, 129, 8, 4, 64, 64),
    "head size 1": Case(1, 70, 70, 2, 1, 1, 1, high=0),
    "head size 512": Case(1, 66, 66, 2, 1, 512, 512, high=0),
    "smaller values": Case(2, 70, 90, 4, 2, 48, 16, high=0, align="bottom_right"),
    "values of size 1": Case(1, 70, 70, 2, 2, 40, 1),
    "smaller values, odd": Case(1, 90, 70, 6, 1, 33, 17, high=0),
    "layout BNSD": Case(2, 70, 90, 4, 2, 24, 8, "BNSD", high=0, align="bottom_right"),
    "layout BSH": Case(2, 70, 90, 4, 2, 24, 8, "BSH", high=0, align="bottom_right"),
    "layout SBH": Case(2, 70, 90, 4, 2, 24, 8, "SBH", high=0, align="bottom_right"),
    "layout TND": Case(1, 70, 90, 4, 2, 24, 8, "TND", high=0, align="bottom_right"),
    "bias": Case(2, 70, 90, 4, 2, 24, 16, bias=(2, 4, 70, 90)),
    "bias for all queries": Case(
        2, 70, 90, 4, 2, 24, 24, "BNSD", bias=(2, 4, 1, 90), high=0, align="bottom_right"
    ),
    "bias for all batches": Case(3, 70, 90, 4, 1, 24, 24, "SBH", bias=(1, 4, 70, 90), high=0),
    "bias for all heads": Case(2, 66, 130, 4, 2, 24, 24, bias=(2, 1, 66, 130)),
    "bias of the keys": Case(2, 130, 70, 4, 2, 24, 24, bias=(1, 1, 1, 70)),
    "bias and window": Case(
        1, 300, 300, 2, 2, 16, 16, bias=(1, 2, 300, 300), low=-20, high=3, align="bottom_right"
    ),
    "bias and mask": Case(2, 70, 90, 4, 2, 24, 24, bias=(1, 4, 70, 90), mask=(2, 1, 70, 90)),
    "mask of each head": Case(2, 70, 90, 4, 2, 24, 24, mask=(2, 4, 70, 90)),
    "mask and band": Case(2, 130, 130, 4, 2, 24, 24, mask=(130, 130), low=-150, high=10),
    "window": Case(1, 400, 400, 2, 2, 16, 16, low=-64, high=0, align="bottom_right"),
    "queries without keys": Case(2, 200, 70, 2, 1, 16, 16, high=0, align="bottom_right"),
    "prefix": Case(2, 70, 300, 2, 2, 16, 16, high=0, align="bottom_right", prefix=[230, 290]),
    "prefix and queries without keys": Case(
        2, 300, 170, 2, 2, 16, 8, high=0, align="bottom_right", prefix=[0, 100]
    ),
}


def tensors_of(case, dtype):
    return {
        name: npu(x, dtype, requires_grad=False) if x.dtype != bool else paddle.to_tensor(x)
        for name, x in case.arrays().items()
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_output_and_gradients(name, dtype):
    case = CASES[name]
    tensors = tensors_of(case, dtype)
    exact = attention.truth(case, {n: x.numpy() if n == "mask" else values(x) for n, x in tensors.items()})
    out, _, _, _, *gradients = case.run(tensors)
    plain = attention.composed(case, tensors)
    names = ("out", "dq", "dk", "dv", "dbias")
    for what, actual, baseline, e in zip(names, (out, *gradients), plain, exact, strict=False):
        if what != "dbias":
            e = attention.in_layout(e, case.layout)
            baseline = attention.in_layout(baseline, case.layout)
        assert actual.dtype == tensors["query"].dtype and tuple(actual.shape) == e.shape
        assert_as_accurate_as_composed(actual, baseline, e, what)
    assert len(gradients) == 3 + ("bias" in tensors)


def test_truth_is_differentiated_correctly():
    case = Case(2, 5, 6, 4, 2, 3, 2, bias=(1, 4, 5, 6), high=0, align="bottom_right")
    arrays = case.arrays()
    names = ("query", "key", "value", "bias")

    def loss(*moved):
        return (
            attention.truth(case, {**arrays, **dict(zip(names, moved, strict=True))})[0] * arrays["out_grad"]
        ).sum()

    assert_is_gradient(loss, [arrays[n] for n in names], attention.truth(case, arrays)[1:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_statistics(dtype):
    case = Case(2, 70, 90, 4, 2, 24, 16, bias=(1, 4, 70, 90), high=0, align="bottom_right")
    tensors = tensors_of(case, dtype)
    _, row_max, row_sum, *_ = case.run(tensors)
    q, k = (values(tensors[name]).transpose(0, 2, 1, 3) for name in ("query", "key"))
    scores = case.scale * (q @ np.repeat(k, 2, axis=1).swapaxes(-1, -2) + values(tensors["bias"]))
    scores = np.where(case.visible(), scores, -np.inf)
    for actual, exact in (
        (row_max, scores.max(-1)),
        (row_sum, np.exp(scores - scores.max(-1)[..., None]).sum(-1)),
    ):
        actual = actual.numpy()
        assert (
            actual.shape == (2, 4, 70, 8) and actual.dtype == np.float32 and (actual == actual[..., :1]).all()
        )
        np.testing.assert_allclose(actual[..., 0], exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["bias for all batches", "prefix", "mask and band", "layout BSH"])
def test_threads_and_places_give_the_same_bits(name):
    case = CASES[name]
    tensors = tensors_of(case, "bfloat16")
    results = []
    for threads in (1, 2, 5):
        paddle.seed(3)
        results.append(with_threads(threads, lambda: case.run(tensors, dropout=0.1)))
    assert results[0] == results[1] == results[2]
    on_cpu = {name: x.cpu() for name, x in tensors.items()}
    assert with_threads(2, lambda: case.run(tensors)) == with_threads(1, lambda: case.run(on_cpu))


def test_hidden_keys_leak_nothing():
    """A key outside of the band changes no bit of the outputs of queries that do not see it."""
    case = Case(1, 200, 200, 2, 2, 16, 16, low=-30, high=0, align="bottom_right")
    tensors = tensors_of(case, "float32")
    before = case.run(tensors)
    changed = {**tensors, "key": tensors["key"].clone(), "value": tensors["value"].clone()}
    changed["key"][:, 70] += 1.0
    changed["value"][:, 70] -= 1.0
    after = case.run(changed)
    sees = np.zeros(200, bool)
    sees[70:101] = True
    for a, b in ((before[0], after[0]), (before[4], after[4])):  # out and dq
        same = (a.numpy() == b.numpy()).all((0, 2, 3))
        assert same[~sees].all() and not same[sees].any()


def test_rows_whose_bias_hides_everything():
    """-inf removes keys like a band; the lowest finite number hides them like a mask."""
    case = Case(1, 70, 70, 1, 1, 8, 8, bias=(1, 1, 70, 70), scale=1.0)
    tensors = tensors_of(case, "float32")
    bias = tensors["bias"].numpy()
    bias[0, 0, 5] = -np.inf
    bias[0, 0, 9] = np.finfo(np.float32).min
    tensors["bias"] = paddle.to_tensor(bias)
    out, _, _, _, dq, dk, dv, dbias = (x.numpy() for x in case.run(tensors))
    assert (out[0, 5] == 0).all() and (dq[0, [5, 9]] == 0).all() and (dbias[0, 0, [5, 9]] == 0).all()
    np.testing.assert_allclose(out[0, 9, 0], tensors["value"].numpy()[0, :, 0].mean(0), atol=1e-6)
    assert all(np.isfinite(x).all() for x in (out, dq, dk, dv, dbias))


def test_dropout_of_the_gradients_is_that_of_the_output():
    """With the factors that the output shows, the gradients are those of the formula."""
    case = Case(1, 70, 90, 2, 1, 128, 96, high=0, align="bottom_right")
    tensors = tensors_of(case, "float32")
    identity = np.zeros((1, 90, 1, 96), np.float32)
    identity[0, np.arange(90), 0, np.arange(90)] = 1  # the output is the dropped probability itself
    tensors["value"] = paddle.to_tensor(identity)
    paddle.seed(11)
    (dropped, *_) = case.run(tensors, dropout=0.25)
    kept, *_ = case.run(tensors)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.nan_to_num(values(dropped) / values(kept), posinf=0)[..., :90].transpose(0, 2, 1, 3)
    np.testing.assert_allclose(factor[(factor != 0)], 1 / 0.75, rtol=1e-4)
    share = (factor != 0)[case.visible()].mean()
    assert abs(share - 0.75) < 5 * np.sqrt(0.75 * 0.25 / case.visible().sum())
    tensors = tensors_of(case, "float32")
    factor = np.where(factor != 0, 1 / 0.75, 0.0)
    exact = attention.truth(case, {n: values(x) for n, x in tensors.items()}, factor)
    paddle.seed(11)
    out, _, _, _, *gradients = case.run(tensors, dropout=0.25)
    for actual, e in zip((out, *gradients), exact, strict=True):
        np.testing.assert_allclose(values(actual), e, atol=2e-5 * np.abs(e).max())


def test_tiles_outside_of_the_band_are_not_computed():
    """NaN times zero is NaN: if such a tile were computed, the results would show it."""
    case = Case(1, 1024, 1024, 1, 1, 16, 16, low=-60, high=0, align="bottom_right")
    clean = case.run(tensors_of(case, "float32"))
    near, far = slice(640, 1024), slice(0, 512)  # no query in `near` sees a key in `far`
    for names, place, results, whole in (
        (("key", "value"), far, (0, 4), near),  # out and dq
        (("query", "out_grad"), near, (5, 6), far),  # dk and dv
    ):
        tensors = tensors_of(case, "float32")
        for name in names:
            tensors[name][:, place] = float("nan")
        changed = case.run(tensors)
        for i in results:
            np.testing.assert_array_equal(changed[i].numpy()[:, whole], clean[i].numpy()[:, whole])


MEMORY = """
    import sys
    import numpy as np
    import paddle
    sys.path[:0] = {tests!r}
    from attention_operator import attend
    from peak_memory import grown_by

    def run(s):
        random = np.random.default_rng(0)
        arrays = (random.standard_normal((1, s, 1, 128)).astype("float32") for _ in range(3))
        q, k, v = (paddle.to_tensor(x).astype("bfloat16") for x in arrays)
        for x in (q, k, v):
            x.stop_gradient = False

        def attention():
            out = attend(q, k, v, **{arguments})[0]
            paddle.grad(out, [q, k, v], out.detach())

        return grown_by(attention)

    paddle.set_device("npu:0")
    run(64)
    print(run({s}) / 2**20)
"""


def _extra_megabytes(run_program, s, **arguments):
    done = run_program(
        MEMORY.format(tests=[str(SHARED), str(Path(__file__).parent)], s=s, arguments=arguments), timeout=1800
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_long_window_needs_little_memory(run_program):
    assert _extra_megabytes(run_program, 32768, bands=[-127, 0, 0]) < 100


@pytest.mark.slow
def test_a_long_causal_sequence_needs_little_memory(run_program):
    assert _extra_megabytes(run_program, 32768, bands=[-(2**40), 0, 0]) < 300
