"""A small model of fused operators, trained in one process, and as a static program of two."""

from __future__ import annotations

import re

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.base import core
from paddle.distributed.auto_parallel.static import process_group
from roundings import ADAM_EPSILON

from paddle_fused import (
    add_rms_norm,
    apply_rotary,
    dropout_add_layer_norm,
    flash_attention,
    linear_cross_entropy,
    masks,
    rms_norm,
    swiglu,
    use_backend,
)

VOCABULARY, HIDDEN, HEADS, STEPS = 64, 16, 2, 3
# What is split: the batch, or the vocabulary of the output layer.
SPLITS = ("batch", "vocabulary")
# (backend, order of the rows): other orders of the same sums.
OTHER_ORDERS = (("composed", 1), ("composed", -1), ("native", -1))
OPERATORS = {  # and how often the model calls them
    "pf_rms_norm": 1,
    "pf_rotary": 2,
    "pf_flash_attention": 1,
    "pf_add_rms_norm": 1,
    "pf_swiglu": 1,
    "pf_dropout_add_norm": 1,
    "pf_linear_cross_entropy": 1,
}


class Model(paddle.nn.Layer):
    def __init__(self, split: str | None, mesh, seed: int):
        super().__init__()
        random = np.random.default_rng([seed, 0])

        def parameter(*shape):
            values = paddle.nn.initializer.Assign(random.standard_normal(shape).astype("float32"))
            return self.create_parameter(shape, default_initializer=values)

        self.embedding, self.scale, self.head = (
            parameter(VOCABULARY, HIDDEN),
            parameter(HIDDEN),
            parameter(HIDDEN, VOCABULARY),
        )
        if split == "vocabulary":
            self.head = dist.shard_tensor(self.head, mesh, [dist.Shard(1)])

    def forward(self, ids, labels):
        residual = paddle.nn.functional.embedding(ids, self.embedding)
        heads = rms_norm(residual, self.scale).reshape([*ids.shape, HEADS, -1])
        angles = paddle.arange(ids.shape[1] * HIDDEN // HEADS, dtype="float32").reshape([ids.shape[1], -1])
        query, key = apply_rotary(heads, heads, angles.cos(), angles.sin())
        attended = flash_attention(query, key, heads, masks.causal()).reshape(residual.shape)
        hidden, residual = add_rms_norm(attended, residual, self.scale)
        hidden = dropout_add_layer_norm(swiglu(hidden, residual), residual, self.scale, None, 0.0, 1e-5)
        return linear_cross_entropy(hidden, self.head, labels)


def batch(seed: int):
    random = np.random.default_rng([seed, 1])
    ids, labels = random.integers(0, VOCABULARY, (2, 8, 5))
    labels[:, 0] = -100
    return ids, labels


def new_optimizer(parameters):
    return paddle.optimizer.AdamW(1e-2, parameters=parameters, epsilon=ADAM_EPSILON)


def train_alone(seed: int, backend: str = "native", order: int = 1) -> list[float]:
    """The losses; with an ``order`` of -1 the last row of the batch is the first."""
    model = Model(None, None, seed)
    optimizer = new_optimizer(model.parameters())
    losses = []
    with use_backend(backend, strict=True):
        for _ in range(STEPS):
            loss = model(*(paddle.to_tensor(rows[::order].copy()) for rows in batch(seed)))
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            losses.append(float(loss))
    return losses


def train_split(split: str, mesh, seed: int) -> dict:
    """The losses, and how often each operator and its gradient stand in the program."""
    model = Model(split, mesh, seed)
    optimizer = dist.shard_optimizer(new_optimizer(model.parameters()))
    ids, labels = batch(seed)
    data = paddle.io.TensorDataset([ids, labels, labels])  # the last one goes to the loss function

    def loader():
        return dist.shard_dataloader(
            paddle.io.DataLoader(data, batch_size=len(ids)),
            meshes=[mesh],
            shard_dims=mesh.dim_names[0] if split == "batch" else None,
        )

    with use_backend("native", strict=True):
        trained = dist.to_static(model, loader(), lambda loss, *_labels: loss, optimizer)
        trained.train()
        batches = list(loader()())  # before Paddle 3.1 a loader can be read once, after it has been called
        losses = [float(trained(*arrays)) for _ in range(STEPS) for arrays in batches]
    names = re.findall(r'"custom_op\.(\w+)"', str(trained.dist_main_program("train")))
    return {"losses": losses, "operators": sorted(names)}


def use_gloo_in_static_programs() -> None:
    """Paddle 3.3.1 sets up the groups of a static program for devices only ("No CUDA device found").

    The group of all processes exists already, as group 0. The others get gloo's context; the barriers that
    follow in Paddle want a device, too.
    """

    def instantiate(group):
        rank = process_group._get_global_env().rank
        if group.id != 0 and rank in group.ranks and not group.is_instantiate():
            store = core.create_or_get_global_tcp_store()
            core.CommContextManager.create_gloo_comm_context(
                store, str(group.id), group.local_rank(rank), group.nranks
            )
        group._is_instantiate = True

    process_group.ProcessGroup.instantiate = instantiate
    paddle._legacy_C_ops.barrier = lambda *_arguments: None
