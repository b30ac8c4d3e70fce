"""Averages over ranks, which llm_npu.patches enables: a check of values.py."""

from __future__ import annotations

import numpy as np
import paddle
import paddle.distributed as dist
from collectives.golden import array, assert_equal, tensor

from llm_npu.patches import devices


def averages(group) -> None:
    """Without llm_npu.patches there are no averages if Paddle is built without NCCL."""
    average = dist.ReduceOp.AVG
    for call, problem in ((dist.all_reduce, "nccl_version"), (dist.stream.all_reduce, "Must be Min")):
        try:
            call(paddle.ones([3]), op=average, group=group.group)
        except (AttributeError, ValueError) as error:
            assert problem in str(error)
        else:
            raise AssertionError("Paddle has been cured, and llm_npu.patches can forget it")
    devices.fix_average_without_nccl()
    devices.fix_average_without_nccl()
    for dtype, error in (("float32", 1e-6), ("float64", 1e-12), ("bfloat16", 1e-2)):
        terms = group.all_values(group.size * 1003, dtype)
        mean, own_tensor = sum(terms) / group.size, tensor(terms[group.rank], dtype)
        own = mean.reshape(group.size, -1)[group.rank]
        near = {"rtol": error, "atol": error}
        for sync_op in (True, False):
            part, other = paddle.empty([1003], dtype), paddle.empty([1003], dtype)
            whole, at_root = own_tensor.clone(), own_tensor.clone()
            tasks = [
                dist.reduce_scatter(
                    part, list(paddle.split(own_tensor, group.size)), average, group.group, sync_op
                ),
                dist.stream.reduce_scatter(other, own_tensor, average, group.group, sync_op),
                dist.all_reduce(whole, average, group.group, sync_op),
                dist.reduce(at_root, group.members[0], average, group.group, sync_op),
            ]
            for task in tasks if not sync_op else ():
                task.wait()
            np.testing.assert_allclose(array(part), own, **near)
            np.testing.assert_allclose(array(other), own, **near)
            np.testing.assert_allclose(array(whole), mean, **near)
            if group.rank == 0:
                np.testing.assert_allclose(array(at_root), mean, **near)
            else:
                assert_equal(at_root, terms[group.rank])
        assert_equal(own_tensor, terms[group.rank])
    parameter = paddle.base.framework.EagerParamBase.from_tensor(paddle.full([3], float(group.rank)))
    dist.all_reduce(parameter, average, group.group)
    assert_equal(parameter.detach(), np.full([3], (group.size - 1) / 2, "float32"))
    integers = paddle.full([2], 3, "int32")
    for call in (dist.all_reduce, lambda *args: dist.reduce(args[0], group.members[0], *args[1:])):
        try:
            call(integers, average, group.group)
        except ValueError as error:
            assert "ReduceOp.AVG of int32; accepted: floating-point" in str(error)
        else:
            raise AssertionError("an average of integers, which is none")
        assert integers.tolist() == [3, 3]
