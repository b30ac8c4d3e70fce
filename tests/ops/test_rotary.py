"""rotary_mul and apply_rotary, beyond the cases of tests/ops/test_operator_cases.py."""

import re

import numpy as np
import paddle
import pytest

from paddle_fused import apply_rotary, dispatch_log, reset_dispatch_log, rotary_mul, use_backend
from paddle_fused.compat import npu_rotary_mul

pytestmark = [pytest.mark.usefixtures("on_cpu"), pytest.mark.sampled]


def random(*shape, seed=0, gradient=True):
    tensor = paddle.to_tensor(np.random.default_rng(seed).standard_normal(shape).astype("float32"))
    tensor.stop_gradient = not gradient
    return tensor


def results(x, cos, sin, mode):
    """The output and the requested gradients, as arrays."""
    out = rotary_mul(x, cos, sin, mode)
    inputs = [tensor for tensor in (x, cos, sin) if not tensor.stop_gradient]
    return [t.numpy() for t in (out, *paddle.grad([(out * out * out).sum()], inputs))]


def assert_same(actual, other):
    for x, right in zip(actual, other, strict=True):
        np.testing.assert_array_equal(x, right)


@pytest.mark.parametrize("mode", ["half", "interleave"])
def test_layouts_are_permutations_of_each_other(mode):
    x, cos, sin = random(2, 5, 3, 8), random(1, 5, 1, 8, seed=1), random(1, 5, 1, 8, seed=2)
    plain = results(x, cos, sin, mode)
    with use_backend("native", strict=True):
        for axes in ([0, 2, 1, 3], [1, 0, 2, 3]):  # BNSD, SBND
            back = np.argsort(axes)
            moved = rotary_mul(*(t.transpose(axes) for t in (x, cos, sin)), mode)
            np.testing.assert_array_equal(moved.numpy().transpose(back), plain[0])
        packed = rotary_mul(x[0], cos[0], sin[0], mode)
    np.testing.assert_array_equal(packed.numpy(), plain[0][0])


@pytest.mark.parametrize("mode", ["half", "interleave"])
def test_rotating_back_gives_x(mode):
    x = random(2, 6, 3, 16, gradient=False)
    half = np.random.default_rng(1).uniform(0, 6, (1, 6, 1, 8))
    angles = np.concatenate([half, half], -1) if mode == "half" else np.repeat(half, 2, -1)
    cos, sin = (paddle.to_tensor(f(angles).astype("float32")) for f in (np.cos, np.sin))
    there = rotary_mul(x, cos, sin, mode)
    np.testing.assert_allclose(rotary_mul(there, cos, -sin, mode).numpy(), x.numpy(), atol=1e-6)
    np.testing.assert_allclose(there.square().sum(-1).numpy(), x.square().sum(-1).numpy(), rtol=1e-5)


@pytest.mark.parametrize("shape", [(0, 4, 2, 8), (2, 0, 2, 8), (2, 4, 0, 8), (0, 2, 8)])
def test_no_elements(shape):
    angles = random(*([1] * (len(shape) - 3)), shape[-3], 1, 8)
    x = random(*shape)
    out, dx, dcos, dsin = results(x, angles, angles.clone(), "half")
    assert out.shape == dx.shape == shape
    assert dcos.shape == tuple(angles.shape) and not dcos.any() and not dsin.any()


def test_the_sum_for_one_row_of_angles_does_not_lose_digits():
    """Two million terms of one sign: added one by one in float32 they would be off by 1e-3."""
    x = paddle.full([1, 1 << 20, 1, 2], 0.1)
    cos, sin = (random(1, 1, 1, 2, seed=seed) for seed in (1, 2))
    with use_backend("native", strict=True):
        dcos, _ = paddle.grad([rotary_mul(x, cos, sin).sum()], [cos, sin])
    np.testing.assert_allclose(dcos.numpy(), np.float32(0.1) * (1 << 20), rtol=1e-6)


MODES = {
    "fused_rope": (lambda: rotary_mul(*npu((2, 8, 4, 64), (1, 8, 1, 64))), "fused_rope"),
    "interleave": (
        lambda: rotary_mul(*npu((2, 8, 4, 64), (1, 8, 1, 64)), "interleave"),
        "composition .*interleave",
    ),
    "angles for each batch": (
        lambda: rotary_mul(*npu((2, 8, 4, 64), (2, 8, 1, 64))),
        r"composition .*\[1, S, 1, D\]",
    ),
    "head size": (lambda: rotary_mul(*npu((2, 8, 4, 32), (1, 8, 1, 32))), "composition .*896 .*64"),
    "heads": (lambda: rotary_mul(*npu((1, 1, 1000, 64), (1, 1, 1, 64))), "composition .*1000 heads"),
    "gradient of cos": (
        lambda: rotary_mul(*npu((2, 8, 4, 64), (1, 8, 1, 64), gradient=True)),
        "composition.*gradient.*cos.*sin",
    ),
}


def npu(x, angles, gradient=False):
    tensors = random(*x), random(*angles, gradient=gradient), random(*angles, gradient=gradient)
    moved = [tensor.detach().to("npu:0") for tensor in tensors]
    for tensor, original in zip(moved, tensors, strict=True):
        tensor.stop_gradient = original.stop_gradient
    return moved


@pytest.mark.parametrize("case", MODES)
def test_modes_on_npu(case):
    call, mode = MODES[case]
    reset_dispatch_log()
    call()
    (ran,) = dispatch_log()
    assert ran.backend == "ascend" and re.fullmatch(mode, ran.mode), ran.mode


# ---- apply_rotary


def table(length=16, head_dim=8):
    return random(length, head_dim, gradient=False), random(length, head_dim, seed=1, gradient=False)


def test_positions_choose_rows():
    q, k, (cos, sin) = random(2, 3, 4, 8), random(2, 3, 2, 8), table()
    positions = np.array([[5, 6, 15], [0, 0, 1]])
    for kind in ("int32", "int64"):
        rotated_pair = apply_rotary(q, k, cos, sin, paddle.to_tensor(positions.astype(kind)))
        for x, rotated in zip((q, k), rotated_pair, strict=True):
            rows = (t.numpy()[positions][:, :, None] for t in (cos, sin))
            expected = rotary_mul(x, *map(paddle.to_tensor, rows))
            np.testing.assert_array_equal(rotated.numpy(), expected.numpy())


def test_tables_of_both_ranks_and_positions_in_order():
    q, k, (cos, sin) = random(2, 3, 4, 8), random(2, 3, 2, 8), table()
    plain = apply_rotary(q, k, cos, sin)
    in_order = paddle.to_tensor([[0, 1, 2]])
    for angles, positions in (
        ((cos.reshape([1, 16, 1, 8]), sin.reshape([1, 16, 1, 8])), None),
        ((cos, sin), in_order),
        ((cos, sin), in_order.expand([2, 3])),
    ):
        for actual, right in zip(apply_rotary(q, k, *angles, positions), plain, strict=True):
            np.testing.assert_array_equal(actual.numpy(), right.numpy())


def test_tables_longer_than_a_sequence_whose_length_a_program_does_not_know(device):
    draw = np.random.default_rng(0)
    q, k, cos, sin = (
        paddle.to_tensor(draw.standard_normal(shape).astype("float32"))
        for shape in ([2, 5, 4, 8], [2, 5, 2, 8], [9, 8], [9, 8])
    )
    specs = [paddle.static.InputSpec([-1, -1, *x.shape[2:]], "float32") for x in (q, k)]

    def rotated(q, k):
        return apply_rotary(q, k, cos, sin)

    program = paddle.jit.to_static(rotated, input_spec=specs, full_graph=True)
    for length in (5, 3):
        expected = apply_rotary(q[:, :length], k[:, :length], cos, sin)
        outputs = program(q[:, :length], k[:, :length])
        assert all((a == b).all() for a, b in zip(outputs, expected, strict=True))


def test_packed_sequences_begin_again():
    q, k, (cos, sin) = random(5, 4, 8), random(5, 1, 8), table()
    rotated, _ = apply_rotary(q, k, cos, sin, paddle.to_tensor([0, 1, 0, 1, 2]))
    second, _ = apply_rotary(q[2:], k[2:], cos, sin)
    np.testing.assert_array_equal(rotated[2:].numpy(), second.numpy())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_tables(dtype):
    q, k = random(1, 3, 4, 8).astype(dtype), random(1, 3, 2, 8).astype(dtype)
    cos, sin = (t.astype(dtype) for t in table())
    positions = paddle.to_tensor([[4, 5, 6]])
    outputs = apply_rotary(q, k, cos, sin, positions)
    right = apply_rotary(q, k, cos[4:], sin[4:])
    for actual, other in zip(outputs, right, strict=True):
        np.testing.assert_array_equal(actual.astype("float32").numpy(), other.astype("float32").numpy())


def bad_inputs():
    x, angles = random(2, 6, 4, 8), random(1, 6, 1, 8)
    q, k, (cos, sin) = random(2, 3, 4, 8), random(2, 3, 2, 8), table()
    positions = paddle.to_tensor([[0, 1, 2]])
    far = paddle.to_tensor([[0, 1, 16]])
    return {
        "no tensor": (lambda: rotary_mul(x, 1.0, angles), "rotary_mul.*cos.*float"),
        "odd head": (lambda: rotary_mul(x[..., :7], *[angles[..., :7]] * 2), "head size.*7.*even"),
        "another D": (lambda: rotary_mul(x, *[angles[..., :6]] * 2), r"cos.*\[1, 6, 1, 6\]"),
        "sizes": (lambda: rotary_mul(x, *[angles[:, :5]] * 2), r"cos.*\[1, 5, 1, 8\]"),
        "cos unlike sin": (lambda: rotary_mul(x, angles, x), r"cos.*\[1, 6, 1, 8\].*sin.*\[2, 6, 4, 8\]"),
        "rank of cos": (lambda: rotary_mul(x, angles[0], angles[0]), "cos.*rank"),
        "devices": (lambda: rotary_mul(x, angles.to("npu:0"), angles), "x.*cpu.*cos.*npu:0.*sin.*cpu"),
        "ranks": (lambda: apply_rotary(q, k[0], cos, sin), "apply_rotary.*q.*shape"),
        "batches": (lambda: apply_rotary(q, k[:1], cos, sin), r"k.*\[1, 3, 2, 8\]"),
        "head sizes": (lambda: apply_rotary(q, k[..., :6], cos, sin), r"x.*\[2, 3, 2, 6\]"),
        "table": (lambda: apply_rotary(q, k, cos[None], sin), r"cos.*\[1, 16, 8\].*\[P, D\]"),
        "table of sin": (lambda: apply_rotary(q, k, cos, sin[:15]), "cos.*16.*sin.*15"),
        "short": (lambda: apply_rotary(q, k, cos[:2], sin[:2]), "2 positions.*q.*3"),
        "float positions": (
            lambda: apply_rotary(q, k, cos, sin, positions.astype("float32")),
            "position_ids.*float32.*int32, int64",
        ),
        "shape of positions": (
            lambda: apply_rotary(q, k, cos, sin, positions[0]),
            r"position_ids.*\[3\].*\[2, 3\].*\[1, 3\]",
        ),
        "far": (lambda: apply_rotary(q, k, cos, sin, far), "0 to 16.*0 to 15"),
        "negative": (lambda: apply_rotary(q, k, cos, sin, -far), "-16 to 0"),
    }


@pytest.mark.parametrize("case", list(bad_inputs()))
def test_bad_input(case):
    call, message = bad_inputs()[case]
    with pytest.raises(ValueError, match=rf"(?s){message}"):
        call()


def test_the_host_operator_checks_its_memory():
    x, angles = random(2, 6, 4, 8), random(1, 6, 1, 8)
    rotary_mul(x, angles, angles)  # loads the operators
    for arguments, message in (
        ((x, angles[:, :5], angles[:, :5]), r"cos.*\[1, 5, 1, 8\]"),
        ((x, angles, x), r"sin.*\[2, 6, 4, 8\]"),
        ((x[0, 0], angles, angles), "three or four"),
        ((x, angles.astype("float16"), angles), "cos.*float16.*x.*float32"),
        ((x, angles.to("npu:0"), angles), "cos.*npu:0"),
    ):
        with pytest.raises(ValueError, match=f"(?s)pf_rotary.*{message}"):
            paddle._C_ops._run_custom_op("pf_rotary", *arguments, False, False)


# ---- torch_npu's function

LEGAL = {
    "BNSD, 11SD": ((2, 3, 7, 8), (1, 1, 7, 8), "half"),
    "BNSD, B1SD": ((2, 3, 7, 8), (2, 1, 7, 8), "half"),
    "BSND, BS1D": ((2, 7, 3, 8), (2, 7, 1, 8), "half"),
    "SBND, SB1D": ((7, 2, 3, 8), (7, 2, 1, 8), "half"),
    "all": ((2, 7, 3, 8), (2, 7, 3, 8), "half"),
    "TND, T1D": ((7, 3, 8), (7, 1, 8), "half"),
    "TND, TND": ((7, 3, 8), (7, 3, 8), "half"),
    "interleave, S11D": ((7, 2, 3, 8), (7, 1, 1, 8), "interleave"),
    "interleave, T1D": ((7, 3, 8), (7, 1, 8), "interleave"),
    "a long sequence first": ((4000, 2, 3, 8), (4000, 1, 1, 8), "half"),
}


@pytest.mark.parametrize("case", LEGAL)
def test_torch_npu_s_function(case, monkeypatch):
    monkeypatch.setenv("VIRTUAL_NPU_CANN", "9.1.0")  # three dimensions are accepted since this release
    x, angles, mode = LEGAL[case]
    tensors = random(*x), random(*angles, seed=1), random(*angles, seed=2)
    rotated_by_npu = npu_rotary_mul(*tensors, rotary_mode=mode)
    np.testing.assert_array_equal(rotated_by_npu.numpy(), rotary_mul(*tensors, mode).numpy())
