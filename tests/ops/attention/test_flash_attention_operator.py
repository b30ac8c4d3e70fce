"""``pf_flash_attention`` as an operator: refusals, captured programs, memory layouts, randomness."""

import numpy as np
import paddle
import pytest
from attention_operator import CAUSAL, FAR, Case, attend, lengths, tensors
from precision import npu, values

import virtual_npu

pytestmark = [pytest.mark.usefixtures("on_npu"), pytest.mark.sampled]


def zeros(*shape, dtype="float32"):
    return paddle.zeros(shape, dtype)


Q, K = (2, 6, 4, 8), (2, 9, 2, 8)
TND = {"layout": "TND", "query_ends": (2, 6), "key_ends": (5, 9)}


# ---- refusals


REFUSED = {
    "unknown layout": ((Q, K, K), {"layout": "BNDS"}, "layout is BNDS; accepted: BSH, SBH, BSND, BNSD, TND"),
    "rank": ((Q, K[1:], K), {}, r"key \[9, 2, 8\] .* in layout BSND; accepted: 4 dimensions"),
    "no num_heads": (((2, 6, 32), (2, 9, 16), (2, 9, 16)), {"layout": "BSH"}, "num_heads is 0; layout BSH "),
    "num_heads": (((2, 6, 32), (2, 9, 16), (2, 9, 16)), {"layout": "SBH", "num_heads": 5}, "num_heads = 5"),
    "key's heads": (((2, 6, 32), (2, 9, 12), (2, 9, 12)), {"layout": "BSH", "num_heads": 4}, "num_heads = 4"),
    "batches": ((Q, (3, 9, 2, 8), (3, 9, 2, 8)), {}, "equal batch sizes"),
    "value's tokens": ((Q, K, (2, 8, 2, 8)), {}, "equal numbers of tokens and heads"),
    "value's heads": ((Q, K, (2, 9, 1, 8)), {}, "equal numbers of tokens and heads"),
    "head sizes": ((Q, (2, 9, 2, 7), (2, 9, 2, 7)), {}, "equal head sizes of query and key"),
    "value's head size": ((Q, K, (2, 9, 2, 9)), {}, r"value's head size \(9\) must not exceed key's \(8\)"),
    "head groups": ((Q, (2, 9, 3, 8), (2, 9, 3, 8)), {}, r"query heads \(4\) must be a multiple .* \(3\)"),
    "no heads": ((Q, (2, 9, 0, 8), (2, 9, 0, 8)), {}, "at least one head"),
    "no head size": (((2, 6, 4, 0), (2, 9, 2, 0), (2, 9, 2, 0)), {}, "at least one head"),
    "dropout": ((Q, K, K), {"dropout": 1.5}, "dropout is 1.5.*; accepted: a probability"),
    "no band": ((Q, K, K), {"bands": []}, "bands has 0 numbers; accepted: low, high and prefix, once or"),
    "half a band": ((Q, K, K), {"bands": [0, 0]}, "bands has 2 numbers"),
    "bands of three": (
        (Q, K, K),
        {"bands": [*CAUSAL] * 3},
        "bands has 9 numbers; accepted: .* the 2 sequences",
    ),
    "bands of one in TND": (
        (Q[1:], K[1:], K[1:]),
        {**TND, "query_ends": (2, 4, 6), "key_ends": (3, 5, 9), "bands": [*CAUSAL] * 2},
        "bands has 6 numbers; accepted: .* the 3 sequences",
    ),
    "align": ((Q, K, K), {"align": "left"}, "align is left; accepted: top_left, bottom_right"),
    "long prefix": (
        (Q, K, K),
        {"bands": [0, 0, 3, 0, 0, 10]},
        "a prefix is 10; accepted: .* which is 9 in sequence 1",
    ),
    "negative prefix": ((Q, K, K), {"bands": [0, 0, -1]}, "a prefix is -1"),
    "ends in BSND": ((Q, K, K), {**TND, "layout": "BSND"}, "accepted: layout TND"),
    "no ends": ((Q[1:], K[1:], K[1:]), {"layout": "TND"}, "requires query_ends and key_ends"),
    "one end only": (
        (Q[1:], K[1:], K[1:]),
        {"layout": "TND", "key_ends": (9,)},
        "requires query_ends and key_ends",
    ),
    "counts": ((Q[1:], K[1:], K[1:]), {**TND, "key_ends": (9,)}, "query_ends has 2 elements and key_ends 1"),
    "order": (
        (Q[1:], K[1:], K[1:]),
        {**TND, "query_ends": (4, 2)},
        r"query_ends is \[4, 2\]; .*cumulative lengths",
    ),
    "negative end": ((Q[1:], K[1:], K[1:]), {**TND, "query_ends": (-1, 2)}, "cumulative lengths"),
    "beyond": ((Q[1:], K[1:], K[1:]), {**TND, "key_ends": (5, 10)}, "the tensor has 9 tokens"),
    "ends' dtype": (
        (Q[1:], K[1:], K[1:]),
        {**TND, "key_ends": paddle.to_tensor([5, 9], dtype="int32")},
        "key_ends is int32 of shape .2.; accepted: one-dimensional int64",
    ),
    "ends' rank": ((Q[1:], K[1:], K[1:]), {**TND, "key_ends": ((5, 9),)}, "one-dimensional int64"),
    "bias in TND": ((Q[1:], K[1:], K[1:]), {**TND, "bias": zeros(1, 4, 6, 9)}, "in layouts other than TND"),
    "bias' shape": ((Q, K, K), {"bias": zeros(2, 2, 6, 9)}, r"bias has shape .* = \[2, 4, 6, 9\]"),
    "bias' keys": ((Q, K, K), {"bias": zeros(2, 4, 6, 1)}, r"bias has shape \[2, 4, 6, 1\]"),
    "bias' rank": ((Q, K, K), {"bias": zeros(6, 9)}, r"bias has shape \[6, 9\]"),
    "bias' dtype": (
        (Q, K, K),
        {"bias": zeros(1, 4, 6, 9, dtype="float16")},
        "bias is float16 and query is float32",
    ),
    "mask's dtype": ((Q, K, K), {"mask": zeros(6, 9)}, "mask is float32; accepted: bool"),
    "mask's shape": ((Q, K, K), {"mask": zeros(9, 6, dtype="bool")}, r"mask has shape \[9, 6\].* = \[6, 9\]"),
    "mask's heads": ((Q, K, K), {"mask": zeros(2, 2, 6, 9, dtype="bool")}, "mask has shape .* N = 4"),
    "mask in TND": (
        (Q[1:], K[1:], K[1:]),
        {**TND, "mask": zeros(6, 9, dtype="bool")},
        r"= \[4, 5\], the longest",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_served_is_refused(name):
    shapes, arguments, message = REFUSED[name]
    for key, value in arguments.items():
        if isinstance(value, tuple):
            arguments = {**arguments, key: lengths(*value)}
        elif isinstance(value, paddle.Tensor):  # made before the test had its device
            arguments = {**arguments, key: value.to(paddle.CustomPlace("npu", 0))}
    with pytest.raises(ValueError, match=f"pf_flash_attention: .*{message}"):
        attend(*(zeros(*shape) for shape in shapes), scale=1.0, **arguments)


def test_dtypes_and_places_are_refused():
    q, k = zeros(*Q), zeros(*K)
    with pytest.raises(ValueError, match="query is float64; accepted: float32, bfloat16, float16"):
        attend(*(x.astype("float64") for x in (q, k, k)))
    with pytest.raises(ValueError, match="key is float16 and query is float32"):
        attend(q, k.astype("float16"), k)
    with pytest.raises(ValueError, match="query is on npu:0, key is on cpu"):
        attend(q, k.cpu(), k)
    with pytest.raises(ValueError, match="query is on npu:0, mask is on cpu"):
        attend(q, k, k, mask=zeros(6, 9, dtype="bool").cpu())


def test_statistics_have_no_gradient():
    q, k, v = tensors(Q, K, K)
    _, softmax_max, *_ = attend(q, k, v)
    with pytest.raises(ValueError, match="only out has a gradient"):
        paddle.grad(softmax_max, [q])


# ---- sequences


def test_tokens_behind_the_last_sequence_are_zero():
    q, k, v = tensors((10, 2, 8), (12, 2, 8), (12, 2, 8))
    arguments = {"layout": "TND", "query_ends": lengths(3, 7), "key_ends": lengths(5, 9)}
    out, softmax_max, softmax_sum, _ = attend(q, k, v, **arguments)
    gradients = paddle.grad(out, [q, k, v], paddle.ones_like(out))
    for x, used in ((out, 7), (softmax_max, 7), (softmax_sum, 7), *zip(gradients, (7, 9, 9), strict=True)):
        assert (x[used:] == 0).all() and (x[:used] != 0).any()
    shorter = attend(q[:7], k[:9], v[:9], **arguments)[0]
    assert (shorter == out[:7]).all()


def test_unused_places_for_sequences_are_zeros():
    q, k, v = tensors((7, 2, 8), (9, 2, 8), (9, 2, 8))
    bands = [*CAUSAL, -FAR, 1, 0]
    out, *_ = attend(q, k, v, layout="TND", query_ends=lengths(3, 7), key_ends=lengths(5, 9), bands=bands)
    filled = {"query_ends": lengths(3, 7, 0, 0), "key_ends": lengths(5, 9, 0, 0)}
    for unused in ([], [*CAUSAL, *CAUSAL]):
        assert (attend(q, k, v, layout="TND", **filled, bands=bands + unused)[0] == out).all()


def test_lengths_may_be_on_the_cpu():
    q, k, v = tensors((7, 2, 8), (9, 2, 8), (9, 2, 8))
    ends = lengths(3, 7), lengths(5, 9)
    on_npu, on_cpu = (
        attend(q, k, v, layout="TND", query_ends=a, key_ends=b)[0] for a, b in (ends, (x.cpu() for x in ends))
    )
    assert (on_npu == on_cpu).all()


@pytest.mark.parametrize(
    "sizes", [(0, 5, 6), (2, 0, 6), (2, 5, 0), (2, 0, 0)], ids=["no batch", "no query", "no key", "neither"]
)
def test_empty_tensors(sizes):
    b, sq, skv = sizes
    for bias in (None, (b, 4, sq, skv), (1, 4, 1, skv)):
        q, k, v = tensors((b, sq, 4, 8), (b, skv, 2, 8), (b, skv, 2, 4))
        inputs = [q, k, v] if bias is None else [q, k, v, *tensors(bias)]
        out, softmax_max, softmax_sum, _ = attend(q, k, v, bias=None if bias is None else inputs[3])
        assert out.shape == [b, sq, 4, 4] and softmax_max.shape == softmax_sum.shape == [b, 4, sq, 8]
        gradients = paddle.grad(out, inputs, paddle.ones_like(out))
        for x, gradient in zip(inputs, gradients, strict=True):
            assert gradient.shape == x.shape and (gradient.numpy() == 0).all()
        assert (out.numpy() == 0).all()


def test_no_tokens_in_layout_tnd():
    q, k, v = tensors((0, 4, 8), (0, 2, 8), (0, 2, 8))
    out = attend(q, k, v, layout="TND", query_ends=lengths(0), key_ends=lengths(0), bands=CAUSAL)[0]
    assert out.shape == [0, 4, 8] == paddle.grad(out, [q], paddle.ones_like(out))[0].shape


# ---- layouts in memory


@pytest.mark.parametrize("layout", ["BSND", "BNSD", "BSH", "SBH"])
def test_views_are_computed_as_their_copies(layout):
    case = Case(2, 40, 40, 4, 4, 16, 16, layout, bias=(1, 4, 40, 40), mask=(2, 1, 40, 40), high=5)
    random = np.random.default_rng(0)
    packed = npu(random.standard_normal((2, 40, 3, 4, 16)), "bfloat16", requires_grad=False)
    views = dict(zip(("query", "key", "value"), packed.unbind(axis=2), strict=True))
    views["bias"] = npu(random.standard_normal((1, 4, 40, 40)), "bfloat16", False).transpose([0, 1, 3, 2])
    views["mask"] = paddle.to_tensor(random.random((2, 1, 40, 40)) < 0.3).transpose([0, 1, 3, 2])
    views["out_grad"] = npu(random.standard_normal((2, 4, 40, 16)), "bfloat16", False).transpose([0, 2, 1, 3])
    assert not any(views[name].is_contiguous() for name in ("bias", "mask", "out_grad"))
    copies = {name: x.contiguous() for name, x in views.items()}
    for a, b in zip(case.run(views), case.run(copies), strict=True):
        np.testing.assert_array_equal(values(a), values(b))


# ---- random numbers


def test_dropout_is_reproducible_and_leaves_the_generator_alone_when_unused():
    q, k, v = tensors((1, 64, 2, 16), (1, 64, 2, 16), (1, 64, 2, 16))
    for place in ("npu", "cpu"):
        x = [t.cpu() if place == "cpu" else t for t in (q, k, v)]
        paddle.set_device("cpu" if place == "cpu" else "npu:0")
        paddle.seed(5)
        first, *_, seed_offset = attend(*x, dropout=0.3)
        second, *_, other = attend(*x, dropout=0.3)
        paddle.seed(5)
        attend(*x)
        again, *_, same = attend(*x, dropout=0.3)
        assert (first == again).all() and (seed_offset == same).all()
        assert (first != second).any() and (seed_offset != other).any()
        assert seed_offset.shape == [2] and seed_offset.dtype == paddle.int64
        assert (attend(*x)[3] == 0).all()
        assert (attend(*x, dropout=1.0)[0] == 0).all()


# ---- captured programs


def _plain(q, k, v):
    return attend(q, k, v, scale=0.3, bands=CAUSAL, align="bottom_right")


def _masked(q, k, v, mask):
    return attend(q, k, v, scale=0.3, mask=mask)


def _biased(q, k, v, bias):
    return attend(q, k, v, scale=0.3, bias=bias, bands=CAUSAL)


def _packed(q, k, v, query_ends, key_ends):
    bands = [*CAUSAL, -4, 1, 2]
    return attend(q, k, v, scale=0.3, layout="TND", query_ends=query_ends, key_ends=key_ends, bands=bands)


@pytest.mark.parametrize("function", [_plain, _masked, _biased, _packed])
def test_captured_equals_dygraph(function):
    packed = function is _packed
    q, k, v = (
        tensors((20, 4, 16), (30, 2, 16), (30, 2, 8))
        if packed
        else tensors((2, 20, 4, 16), (2, 30, 2, 16), (2, 30, 2, 8))
    )
    more = {
        _plain: [],
        _masked: [paddle.to_tensor(np.random.default_rng(1).random((20, 30)) < 0.3)],
        _biased: tensors((1, 4, 20, 30)),
        _packed: [lengths(8, 20), lengths(10, 30)],
    }[function]
    trained = [q, k, v] + (more if function is _biased else [])
    results = []
    for run in (function, paddle.jit.to_static(function, full_graph=True)):
        outputs = run(q, k, v, *more)
        gradients = paddle.grad(outputs[0], trained, paddle.ones_like(outputs[0]))
        results.append([x.numpy() for x in (*outputs, *gradients)])
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


STATIC = {
    "BSND": ([-1, 20, 4, 16], [-1, 30, 2, 16], [-1, 30, 2, 8], 0, [-1, 20, 4, 8], [-1, 4, 20, 8]),
    "BNSD": ([2, 4, -1, 16], [2, 2, -1, 16], [2, 2, -1, 8], 0, [2, 4, -1, 8], [2, 4, -1, 8]),
    "BSH": ([-1, -1, 64], [-1, -1, 32], [-1, -1, 16], 4, [-1, -1, 32], [-1, 4, -1, 8]),
    "SBH": ([20, -1, 64], [20, -1, 32], [20, -1, 32], 4, [20, -1, 64], [-1, 4, 20, 8]),
    "TND": ([-1, 4, 16], [-1, 2, 16], [-1, 2, 8], 0, [-1, 4, 8], [-1, 4, 8]),
}


@pytest.mark.parametrize("layout", STATIC)
def test_programs_know_shapes_and_dtypes(layout):
    *shapes, num_heads, out, statistics = STATIC[layout]
    paddle.enable_static()
    try:
        with paddle.static.program_guard(paddle.static.Program()):
            q, k, v = (paddle.static.data(f"x{i}", shape, "bfloat16") for i, shape in enumerate(shapes))
            ends = paddle.static.data("ends", [3], "int64") if layout == "TND" else None
            outputs = attend(
                q, k, v, scale=1.0, layout=layout, num_heads=num_heads, query_ends=ends, key_ends=ends
            )
            shapes_and_dtypes = [(list(x.shape), x.dtype) for x in outputs]
            # A wrong call does not end the process while a program is built; it is refused when it runs.
            assert len(attend(q, k, v, scale=1.0, layout="TND" if q.ndim == 4 else "BSND")) == 4
    finally:
        paddle.disable_static()
    assert shapes_and_dtypes == [
        (out, paddle.bfloat16),
        *[(statistics, paddle.float32)] * 2,
        ([2], paddle.int64),
    ]


# ---- the record


def test_calls_are_recorded_as_work_of_the_host():
    q, k, v = tensors(Q, K, K, dtype="float16")
    virtual_npu.reset_kernel_record()
    paddle.grad(attend(q, k, v)[0], [q])
    calls = {(r.name, r.dtype): (r.placement, r.calls) for r in virtual_npu.kernel_record()}
    for name in ("pf_flash_attention", "pf_flash_attention_grad"):
        assert calls[name, "float16"] == ("host", 1)
