"""All tensors of a call must be on one device: every public function checks it before dispatch."""

import numpy as np
import paddle
import pytest

from paddle_fused import compat, registry
from paddle_fused.devices import elsewhere

PLACES = ["cpu", "npu:1"]  # while the other tensors are on npu:0


def adamw(*tensors):
    return compat.npu_apply_fused_adamw_v2(*tensors, 1, amsgrad=True)


def grouped(x, weight, group_list):
    return compat.npu_grouped_matmul([x], [weight], group_list=group_list, split_item=3, group_type=0)


def integers(*values, dtype="int64"):
    return lambda: paddle.to_tensor(values, dtype=dtype)


def zeros(*shape):
    return lambda: paddle.zeros(shape)


CALLS = {
    "npu_rms_norm": (compat.npu_rms_norm, zeros(2, 4), zeros(4)),
    "npu_grouped_matmul": (grouped, zeros(3, 4), zeros(2, 4, 5), integers(1, 3)),
    "npu_apply_fused_adamw_v2": (adamw, *[zeros(4)] * 5),
}


def assert_one_device(call, tensors):
    """``call(*tensors)`` runs, and refuses each tensor on another device."""
    call(*tensors)
    for number in range(len(tensors)):
        for place in PLACES:
            mixed = [t.to(place) if i == number else t for i, t in enumerate(tensors)]
            with pytest.raises(ValueError, match=f" is on {place}.*; accepted: one device for all"):
                call(*mixed)


@pytest.mark.sampled
@pytest.mark.parametrize("name", CALLS)
def test_tensors_of_two_devices_are_refused(name, on_npu):
    call, *makers = CALLS[name]
    assert_one_device(call, [make() for make in makers])


# An optimizer's tensors are made by its parameters.
OPERATORS = [operator for operator in registry.operators().values() if operator.name != "fused_adamw"]


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
def test_tensors_of_two_devices_are_refused_by_an_operator(operator, on_npu):
    """The case with the most tensors."""
    cases = [(case, case.arrays(np.random.default_rng(0))) for case in operator.cases()]
    case, arrays = max(cases, key=lambda pair: sum(array is not None for array in pair[1].values()))
    present = {name: array for name, array in arrays.items() if array is not None}
    tensors = [
        paddle.to_tensor(array, "float32" if array.dtype.kind == "f" else array.dtype)
        for array in present.values()
    ]
    assert len(tensors) > 1
    assert_one_device(lambda *mixed: case.call(dict(zip(present, mixed, strict=True))), tensors)


def test_the_reason_of_a_backend_names_what_is_mixed(on_npu):
    here, there, host = (paddle.zeros([2]).to(place) for place in ("npu:0", "npu:1", "cpu"))
    assert elsewhere(("cpu", "npu"), [here, None, here]) is None
    assert "are on cpu, not on npu" in elsewhere(("npu",), [host])
    assert "are on cpu and npu:0, " in elsewhere(("cpu", "npu"), [here, host])
    assert "are on npu:0 and npu:1, " in elsewhere(("npu",), [here, there])
