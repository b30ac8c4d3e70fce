"""What holds for the host kernels of every operator, case by case and bit by bit."""

import signal
from pathlib import Path

import numpy as np
import paddle
import pytest

from paddle_fused import BackendError
from paddle_fused.cases import all_cases
from paddle_fused.parity import Case

CASES = all_cases()
PROGRAM = Path(__file__).with_name("captured_cases.py")
every_case = pytest.mark.parametrize("case", CASES, ids=str)


def _computed(case, **options):
    """Outputs and gradients of the host kernels on the CPU place, or None for a case that they refuse."""
    dtype = case.dtypes[-1]
    try:
        return Case(case, dtype).compute("native", "cpu", dtype, **options)
    except BackendError:
        return None


def _assert_same_bits(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@every_case
def test_runs_and_threads_give_the_same_bits(case):
    try:
        paddle.base.core.set_num_threads(1)
        one = _computed(case)
        if one is None:
            return
        _assert_same_bits(one, _computed(case))
    finally:
        paddle.base.core.set_num_threads(2)
    _assert_same_bits(one, _computed(case))


@pytest.mark.parametrize("operator", sorted({case.operator for case in CASES}))
def test_captured_programs_give_the_same_bits(operator, run_python):
    """In processes of their own: with paddlepaddle 3.3.1 a process that has captured hundreds of programs
    now and then dies of a use after free (a pir::Value whose operation is gone) while it captures a custom
    operator. The cause is not known. Only such a death is tried again, a wrong result never."""
    arguments = ("-m", "paddle_fused.virtual_npu", PROGRAM, operator)
    result = run_python(*arguments, timeout=300)
    if result.returncode == -signal.SIGSEGV:
        result = run_python(*arguments, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]


def _transposed(tensor):
    axes = list(range(tensor.ndim))[::-1]
    return tensor.transpose(axes).contiguous().transpose(axes)


def _misaligned(tensor):
    # One element further than where memory is aligned.
    flat = paddle.concat([tensor.flatten()[:1], tensor.flatten()]) if tensor.size else tensor
    return flat[1:].reshape(tensor.shape) if tensor.size else tensor


@every_case
@pytest.mark.parametrize("arrange", [_transposed, _misaligned])
def test_the_place_in_memory_does_not_matter(case, arrange):
    plain = _computed(case)
    if plain is not None:
        _assert_same_bits(plain, _computed(case, arrange=arrange))
