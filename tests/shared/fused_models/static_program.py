"""Trains auto-parallel Llamas through dist.to_static in one process: static_program.py NAME...

Prints JSON: by name, "fused" and "unfused", the losses and what ran.

Run by tests/models/test_fused_models_modes.py, in a process of its own: dist.to_static leaves Paddle in
static mode.
"""

import json
import sys

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed import fleet
from roundings import ADAM_EPSILON

import paddle_fused
from fused_models.comparison import built, random_batch
from fused_models.families import BY_NAME, one_process_mesh

STEPS = 5


class Text(paddle.io.Dataset):
    """The sequences of one batch."""

    def __init__(self, batch):
        self.rows = list(zip(batch.ids, batch.labels, strict=True))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def losses(name: str, operator: str | None) -> list[float]:
    family = BY_NAME[name]
    fleet.auto.set_mesh(one_process_mesh())
    # Unfused, attention gets no mask in these models: on an npu they cannot make one.
    model = built(family, operator, use_flash_attention=operator is None, num_key_value_heads=4)
    optimizer = paddle.optimizer.AdamW(1e-3, parameters=model.parameters(), epsilon=ADAM_EPSILON)
    if name == "llama-network":
        model, optimizer = dist.parallelize(model, optimizer, config={})
    else:
        optimizer = dist.shard_optimizer(optimizer)
    text = Text(random_batch())
    loader = paddle.io.DataLoader(text, batch_sampler=paddle.io.BatchSampler(text, batch_size=len(text)))
    loader = dist.shard_dataloader(loader, meshes=one_process_mesh(), shard_dims="dp")
    program = dist.to_static(model, loader, family.criterion(model.config), optimizer)
    program.train()
    return [float(np.mean(program(*batch))) for _ in range(STEPS) for batch in loader()]


def trained(name: str, kind: str) -> dict:
    paddle.disable_static()
    paddle_fused.reset_dispatch_log()
    loss_values = losses(name, "all" if kind == "fused" else None)
    return {"losses": loss_values, "ran": sorted({ran.operator for ran in paddle_fused.dispatch_log()})}


if __name__ == "__main__":
    runs = {name: {kind: trained(name, kind) for kind in ("fused", "unfused")} for name in sys.argv[1:]}
    print(json.dumps(runs))
