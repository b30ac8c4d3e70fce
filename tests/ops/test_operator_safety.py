"""No call of a host operator, however wrong, reads memory that is not its own or ends the process."""

import paddle
import pytest
from custom_operator import run

from paddle_fused import native, virtual_npu


def _moe():
    return paddle.to_tensor([[0, 1], [1, 0], [2, 1]], dtype="int64")  # [T, K]


def _float(*shape):
    tensor = paddle.rand(shape)
    tensor.stop_gradient = False
    return tensor


def _dropout(residual=True, dropout=0.0):
    has = 1 if residual else 0
    nothing = paddle.zeros([0])
    return [
        _float(4, 8), _float(4, 8) if residual else nothing, _float(8), nothing, nothing, nothing,
        paddle.to_tensor([1, 2], dtype="int64"), has, True, dropout, 1e-6, False,
    ]  # fmt: skip


# operator: a function that makes the arguments of a legal call, and how many of them are tensors
CALLS = {
    "pf_rms_norm": (lambda: [_float(4, 8), _float(8), 1e-6], 2),
    "pf_add_rms_norm": (lambda: [_float(4, 8), _float(4, 8), _float(8), 1e-6], 3),
    "pf_dropout_add_norm": (_dropout, 7),
    "pf_linear_cross_entropy": (
        lambda: [
            _float(4, 8), _float(8, 6), paddle.arange(4), paddle.zeros([1], dtype="int64"), -100, 6, False,
            True, True,
        ],
        4,
    ),
    "pf_grouped_matmul": (
        lambda: [_float(4, 8), _float(2, 8, 6), paddle.to_tensor([1, 4], dtype="int64"), 0, True, True],
        3,
    ),
    "pf_moe_token_permute": (lambda: [_float(3, 8), _moe(), 0], 2),
    "pf_moe_token_unpermute": (
        lambda: [_float(6, 8), paddle.arange(6).astype("int32"), _float(3, 2)],
        3,
    ),
    "pf_moe_token_restore": (lambda: [_float(6, 8), paddle.arange(6).astype("int32")], 2),
    "pf_rotary": (lambda: [_float(2, 4, 1, 8), _float(1, 4, 1, 8), _float(1, 4, 1, 8), False, True], 3),
    "pf_swiglu": (lambda: [_float(4, 8), _float(4, 8)], 2),
    "pf_swiglu_halves": (lambda: [_float(4, 8)], 1),
}  # fmt: skip


def _differentiable(arguments, count):
    return [tensor for tensor in arguments[:count] if not tensor.stop_gradient]


@pytest.mark.parametrize("shape", [[1], [2, 3], [1000, 8]])
@pytest.mark.parametrize("operator", CALLS)
def test_a_gradient_of_another_shape_is_refused(device, operator, shape):
    make, count = CALLS[operator]
    arguments = make()
    outputs = [out for out in native.call(operator, *arguments) if not out.stop_gradient]
    used = outputs[:2] if operator == "pf_linear_cross_entropy" else outputs[:1]
    with pytest.raises(ValueError, match=r"the gradient of \w+ has shape"):
        paddle.grad(used, _differentiable(arguments, count), [paddle.ones(shape)] * len(used))


@pytest.mark.parametrize("operator", CALLS)
def test_a_missing_tensor_is_refused(device, operator):
    make, count = CALLS[operator]
    for missing in range(count):
        arguments = make()
        arguments[missing] = None
        with pytest.raises(ValueError, match="is missing"):
            paddle._C_ops._run_custom_op(operator, *arguments)


def test_a_missing_state_of_adamw_is_refused(device):
    one = paddle.ones([1])
    state = [paddle.ones([4]) for _ in range(4)]  # param, grad, moment1, moment2
    tensors = [state[0], state[1], one, state[2], state[3], None, one, one, None]
    for missing in (0, 1, 2, 3, 4, 6, 7):
        spoiled = [None if i == missing else tensor for i, tensor in enumerate(tensors)]
        with pytest.raises(ValueError, match="is missing"):
            paddle._C_ops._run_custom_op("pf_adamw_", *spoiled, 0.1, 0.001, 1e-8, 1.0, 0.0, False)


@pytest.mark.parametrize("operator", ["pf_rms_norm", "pf_add_rms_norm"])
def test_a_loss_of_rstd_alone_is_refused(device, operator):
    arguments = CALLS[operator][0]()
    rstd = native.call(operator, *arguments)[-1]
    with pytest.raises(ValueError, match="Detach rstd"):
        rstd.sum().backward()


def test_gradients_of_what_is_missing_are_zeros(device):
    arguments = _dropout(residual=False)
    arguments[4] = absent = _float(8)
    native.call("pf_dropout_add_norm", *arguments)[0].sum().backward()
    assert absent.grad.abs().max().item() == 0.0

    x, cos, sin = _float(2, 4, 1, 8), _float(1, 4, 1, 8), _float(1, 4, 1, 8)
    native.call("pf_rotary", x, cos, sin, False, False)[0].sum().backward()
    assert cos.grad.abs().max().item() == 0.0 and sin.grad.abs().max().item() == 0.0


def test_sizes_whose_product_overflows_are_refused(device):
    x, weight = paddle.zeros([2**32, 0]), paddle.zeros([1, 0, 2**32 + 1])
    with pytest.raises(ValueError, match="2\\^63 bytes"):
        native.call("pf_grouped_matmul", x, weight, paddle.to_tensor([2**32], dtype="int64"), 0, True, True)


def test_refused_seeds_do_not_count(on_npu):
    arguments = _dropout(dropout=0.5)
    arguments[6] = paddle.zeros([2])
    virtual_npu.reset_kernel_record()
    with pytest.raises(ValueError, match="seed"):
        native.call("pf_dropout_add_norm", *arguments)
    assert "pf_dropout_add_norm" not in [row.name for row in virtual_npu.kernel_record()]


# What comes beside tensors of rank 0, which no operator takes
ATTRIBUTES = {
    "pf_rms_norm": (2, "1e-6"),
    "pf_add_rms_norm": (3, "1e-6"),
    "pf_dropout_add_norm": (7, "0, True, 0.0, 1e-6, False"),
    "pf_linear_cross_entropy": (4, "-100, 6, False, True, True"),
    "pf_linear_cross_entropy_with_backward": (3, "-100, False, True, True, True"),
    "pf_grouped_matmul": (3, "0, True, True"),
    "pf_grouped_matmul_dweight": (3, "0"),
    "pf_moe_token_permute": (2, "0"),
    "pf_moe_token_unpermute": (3, ""),
    "pf_moe_token_restore": (2, ""),
    "pf_rotary": (3, "False, True"),
    "pf_swiglu_halves": (1, ""),
}
CAPTURED = """
import paddle
from paddle_fused import native

paddle.set_device("cpu")
refused = []
"""
CAPTURED_CALL = """
@paddle.jit.to_static(full_graph=True)
def program(x):
    return native.call("{operator}", *[x] * {count}, {attributes})[0]

try:
    program(paddle.ones([]))
except ValueError:
    refused.append("{operator}")
"""


@pytest.mark.slow
def test_a_wrong_captured_program_is_refused_when_it_runs(run_program):
    """In a process of its own, which Paddle would end if shape inference threw."""
    calls = [
        CAPTURED_CALL.format(operator=operator, count=count, attributes=attributes)
        for operator, (count, attributes) in ATTRIBUTES.items()
    ]
    result = run_program("".join([CAPTURED, *calls, "print(*refused)"]))
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.split()[-len(ATTRIBUTES) :] == list(ATTRIBUTES)


PLUGIN_CALLS = {  # the tensors that are differentiated, and the call's other arguments
    "rms_norm_npu": lambda: ([_float(4, 128), _float(128)], [1e-6]),
    "fused_rope": lambda: ([_float(1, 4, 1, 128)], [_constant(1, 4, 1, 128), _constant(1, 4, 1, 128)]),
    "flash_attention_npu": lambda: (
        [_float(1, 16, 1, 64).astype("float16") for _ in range(3)],
        [None, None, None, None, 0.0, True, False, False, False, False],
    ),
}


def _constant(*shape):
    return paddle.ones(shape)


@pytest.mark.parametrize("operator", PLUGIN_CALLS)
def test_the_plugins_operators_refuse_a_gradient_of_another_shape(on_npu, operator):
    tensors, others = PLUGIN_CALLS[operator]()
    out = run(operator, *tensors, *others)[0]
    with pytest.raises(ValueError, match=r"the gradient of \w+ has shape"):
        paddle.grad([out], tensors, [paddle.ones([1], out.dtype)])


def test_the_plugins_operators_refuse_a_missing_tensor(on_npu):
    with pytest.raises(ValueError, match="gamma is missing"):
        run("rms_norm_npu", paddle.ones([4, 128]), None, 1e-6)
