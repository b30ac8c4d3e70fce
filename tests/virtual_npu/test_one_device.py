"""Tensors of one call are on one device: every public function says so before a backend is asked."""

import paddle
import pytest

import paddle_fused as pf
from paddle_fused import compat
from paddle_fused.devices import elsewhere

PLACES = ["cpu", "npu:1"]  # while the other tensors are on npu:0


def attention(query, key, value, bias):
    return pf.flash_attention(query, key, value, bias=bias)


def dropout_add_layer_norm(*tensors):
    return pf.dropout_add_layer_norm(*tensors[:4], 0.0, 1e-6, *tensors[4:])


def dropout_add_rms_norm(*tensors):
    return pf.dropout_add_rms_norm(*tensors[:4], 0.0, 1e-6, *tensors[4:])


def adamw(*tensors):
    return compat.npu_apply_fused_adamw_v2(*tensors, 1, amsgrad=True)


def fused_moe(hidden, router, gate_up_weight, down_weight):
    return pf.fused_moe(hidden, router, gate_up_weight, down_weight, 1)


def fused_moe_of_a_pair(hidden, probs, indices, gate_up_weight, down_weight):
    return pf.fused_moe(hidden, (probs, indices), gate_up_weight, down_weight)


def grouped(x, weight, group_list):
    return compat.npu_grouped_matmul([x], [weight], group_list=group_list, split_item=3, group_type=0)


def integers(*values, dtype="int64"):
    return lambda: paddle.to_tensor(values, dtype=dtype)


def zeros(*shape):
    return lambda: paddle.zeros(shape)


DROPOUT_ADD = (*[zeros(2, 4)] * 2, *[zeros(4)] * 2, zeros(2), zeros(4))
CALLS = {
    "rms_norm": (pf.rms_norm, zeros(2, 4), zeros(4)),
    "npu_rms_norm": (compat.npu_rms_norm, zeros(2, 4), zeros(4)),
    "add_rms_norm": (pf.add_rms_norm, zeros(2, 4), zeros(2, 4), zeros(4)),
    "dropout_add_layer_norm": (dropout_add_layer_norm, *DROPOUT_ADD),
    "dropout_add_rms_norm": (dropout_add_rms_norm, *DROPOUT_ADD),
    "swiglu": (pf.swiglu, zeros(2, 4), zeros(2, 4)),
    "rotary_mul": (pf.rotary_mul, zeros(1, 3, 2, 4), *[zeros(1, 3, 1, 4)] * 2),
    "apply_rotary": (
        pf.apply_rotary,
        *[zeros(1, 3, 2, 4)] * 2,
        *[zeros(3, 4)] * 2,
        lambda: paddle.arange(3).reshape([1, 3]),
    ),
    "flash_attention": (attention, *[zeros(1, 3, 2, 4)] * 3, zeros(1, 2, 3, 3)),
    "moe_token_permute": (pf.moe_token_permute, zeros(3, 4), integers(1, 0, 1)),
    "moe_token_unpermute": (
        pf.moe_token_unpermute,
        zeros(3, 4),
        integers(1, 0, 2, dtype="int32"),
        zeros(3, 1),
    ),
    "grouped_matmul": (pf.grouped_matmul, zeros(3, 4), zeros(2, 4, 5), integers(1, 3)),
    "npu_grouped_matmul": (grouped, zeros(3, 4), zeros(2, 4, 5), integers(1, 3)),
    "fused_moe": (fused_moe, zeros(3, 4), zeros(3, 2), zeros(2, 4, 6), zeros(2, 3, 4)),
    "fused_moe of a pair": (
        fused_moe_of_a_pair,
        *(zeros(3, 4), zeros(3, 1), lambda: paddle.zeros([3, 1], "int64")),
        *(zeros(2, 4, 6), zeros(2, 3, 4)),
    ),
    "linear_cross_entropy": (pf.linear_cross_entropy, zeros(3, 4), zeros(4, 5), integers(1, 0, 4)),
    "npu_apply_fused_adamw_v2": (adamw, *[zeros(4)] * 5),
}


@pytest.mark.parametrize("name", CALLS)
def test_tensors_of_two_devices_are_refused(name, on_npu):
    call, *makers = CALLS[name]
    tensors = [make() for make in makers]
    call(*tensors)
    for number in range(len(tensors)):
        for place in PLACES:
            mixed = [t.to(place) if i == number else t for i, t in enumerate(tensors)]
            with pytest.raises(ValueError, match=f" is on {place}.*; accepted: one device for all"):
                call(*mixed)


def test_the_reason_of_a_backend_names_what_is_mixed(on_npu):
    here, there, host = (paddle.zeros([2]).to(place) for place in ("npu:0", "npu:1", "cpu"))
    assert elsewhere(("cpu", "npu"), [here, None, here]) is None
    assert elsewhere(("npu",), [host]) == "the tensors are on cpu, not on npu"
    mixed = "the tensors are on cpu and npu:0, not all on one of the cpu or npu devices"
    assert elsewhere(("cpu", "npu"), [here, host]) == mixed
    assert elsewhere(("npu",), [here, there]) == (
        "the tensors are on npu:0 and npu:1, not all on one of the npu devices"
    )
