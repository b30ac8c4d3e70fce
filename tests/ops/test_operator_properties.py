"""Properties of the host kernels of every operator: case by case, bit by bit."""

from dataclasses import replace

import numpy as np
import paddle
import pytest

from paddle_fused import BackendError
from paddle_fused.parity import Case
from paddle_fused.registry import all_cases

CASES = all_cases()
pytestmark = pytest.mark.sampled(key=lambda parameters: parameters["case"].operator)
every_case = pytest.mark.parametrize("case", CASES, ids=str)


def _computed(case, **options):
    """Outputs and gradients of the host kernels on the CPU place. Skips a case that they refuse."""
    dtype = case.dtypes[-1]
    try:
        return Case(case, dtype).compute("native", "cpu", dtype, **options)
    except BackendError as error:
        pytest.skip(error.reasons["native"])


def _assert_same_bits(first, other):
    assert first.keys() == other.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], other[name], err_msg=name)


@every_case
def test_runs_and_threads_give_the_same_bits(case):
    try:
        paddle.base.core.set_num_threads(1)
        first = _computed(case)
        _assert_same_bits(first, _computed(case))
    finally:
        paddle.base.core.set_num_threads(2)
    _assert_same_bits(first, _computed(case))


@every_case
@pytest.mark.parametrize("full_graph", [True, False])
def test_a_captured_program_gives_the_same_bits(case, full_graph):
    plain = _computed(case)

    def captured(call):
        if full_graph:
            call = paddle.jit.not_to_static(call)  # Paddle cannot rewrite the source of a lambda

        def program(tensors):
            return call(tensors)

        return paddle.jit.to_static(program, full_graph=full_graph)

    _assert_same_bits(plain, _computed(case, wrap=captured))


def _transposed(tensor):
    axes = list(range(tensor.ndim))[::-1]
    return tensor.transpose(axes).contiguous().transpose(axes)


def _misaligned(tensor):
    # One element further than where memory is aligned.
    flat = paddle.concat([tensor.flatten()[:1], tensor.flatten()]) if tensor.size else tensor
    return flat[1:].reshape(tensor.shape) if tensor.size else tensor


def _in_wider_rows(tensor):
    return paddle.concat([tensor, tensor], -1)[..., : tensor.shape[-1]] if tensor.ndim else tensor


def _every_other(tensor):
    return paddle.stack([tensor, tensor], -1).flatten(-2)[..., ::2] if tensor.ndim else tensor


@every_case
@pytest.mark.parametrize("arrange", [_transposed, _misaligned, _in_wider_rows, _every_other])
def test_the_place_in_memory_does_not_matter(case, arrange):
    plain = _computed(case)
    _assert_same_bits(plain, _computed(case, arrange=arrange))


FROZEN = [(case, name) for case in CASES if len(case.gradients) > 1 for name in case.gradients]


@pytest.mark.parametrize(("case", "frozen"), FROZEN, ids=str)
def test_a_frozen_tensor_leaves_the_other_gradients_as_they_are(case, frozen):
    plain = _computed(case)
    others = tuple(name for name in case.gradients if name != frozen)
    prepared = Case(case, case.dtypes[-1])
    prepared.case = replace(case, gradients=others)
    gradients = prepared.compute("native", "cpu", prepared.dtype)
    _assert_same_bits({name: plain[name] for name in plain if name != f"gradient of {frozen}"}, gradients)
