"""A pipeline of communication on many ranks of a dry run, with one mistake in its second stage.

ranks_program.py MISTAKE: what ``MISTAKES`` lists, or "none".
"""

import os
import sys

import virtual_npu

os.environ |= {"PADDLE_DISTRI_BACKEND": "xccl", virtual_npu.LAUNCHED_DEVICE: "npu"}
virtual_npu.activate()

import paddle  # noqa: E402
from paddle import distributed as dist  # noqa: E402
from paddle.distributed import fleet  # noqa: E402

from llm_npu.launch import fake_process_group  # noqa: E402

MISTAKES = ("group", "size", "order", "created", "deadlock", "parts")
STAGES, TENSOR = 2, 8


def main(mistake: str) -> None:
    fake_process_group.install()
    strategy = fleet.DistributedStrategy()
    ranks = int(os.environ["PADDLE_TRAINERS_NUM"])
    strategy.hybrid_configs = {
        "dp_degree": ranks // STAGES // TENSOR,
        "mp_degree": TENSOR,
        "pp_degree": STAGES,
    }
    fleet.init(is_collective=True, strategy=strategy)
    mesh = fleet.get_hybrid_communicate_group()
    fake_process_group.announce(mesh.get_pipe_parallel_group().ranks)
    communicate(mesh, mistake if mesh.get_stage_id() == 1 else "none")


def communicate(mesh, mistake: str) -> None:
    pipeline, data, tensor = (
        mesh.get_pipe_parallel_group(),
        mesh.get_data_parallel_group(),
        mesh.get_model_parallel_group(),
    )
    if mistake == "created":
        dist.new_group([0, 2])
    pairs = [dist.new_group([rank, rank + 1]) for rank in range(0, dist.get_world_size(), 2)]
    own = next(pair for pair in pairs if dist.get_rank() in pair.ranks)
    dist.all_reduce(paddle.ones([2]), group=own)

    first = mesh.get_stage_id() == 0
    activation = paddle.ones([4, 8] if mistake != "size" else [4, 4])
    if first:
        dist.send(activation, pipeline.ranks[1], pipeline)
    else:
        dist.recv(activation, pipeline.ranks[0], pipeline)  # first
    dist.all_reduce(activation, group=tensor)

    if first or mistake == "deadlock":
        dist.send(activation, pipeline.ranks[1 if first else 0], pipeline)
        dist.recv(activation, pipeline.ranks[1 if first else 0], pipeline)
    else:
        dist.recv(activation, pipeline.ranks[0], pipeline)
        dist.send(activation, pipeline.ranks[0], pipeline)

    norm = paddle.ones([1])
    if mistake == "order":
        dist.broadcast(norm, pipeline.ranks[0], pipeline)  # first
        dist.all_reduce(norm, group=pipeline)
    else:
        dist.all_reduce(norm, group=data if mistake == "group" else pipeline)
        dist.broadcast(norm, pipeline.ranks[0], pipeline)  # last

    sent = [1, 2, 3, 4, 1, 2, 3, 4]
    received = [2 if mistake == "parts" else sent[tensor.rank]] * TENSOR
    rows, out = paddle.ones([sum(sent), 4]), paddle.empty([sum(received), 4])
    dist.alltoall_single(out, rows, sent, received, group=tensor)


main(sys.argv[1])
