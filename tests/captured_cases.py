"""``captured_cases.py OPERATOR``: every case of an operator gives the same bits captured in both ways."""

import sys

import numpy as np
import paddle

from paddle_fused import BackendError
from paddle_fused.cases import all_cases
from paddle_fused.parity import Case


def wrapper(full_graph):
    def wrap(call):
        if full_graph:
            call = paddle.jit.not_to_static(call)  # Paddle cannot rewrite the source of a lambda

        def program(tensors):
            return call(tensors)

        return paddle.jit.to_static(program, full_graph=full_graph)

    return wrap


def compare(case) -> list[str]:
    dtype = case.dtypes[-1]
    prepared = Case(case, dtype)
    try:
        plain = prepared.compute("native", "cpu", dtype)
    except BackendError:
        return []
    wrong = []
    for full_graph in (True, False):
        captured = prepared.compute("native", "cpu", dtype, wrap=wrapper(full_graph))
        assert captured.keys() == plain.keys()
        wrong += [
            f"{case}, full_graph={full_graph}: {name}"
            for name in plain
            if not np.array_equal(plain[name], captured[name], equal_nan=True)
        ]
    return wrong


cases = [case for case in all_cases() if case.operator == sys.argv[1]]
sys.exit("\n".join(line for case in cases for line in compare(case)) or 0)
