"""Trains a small Llama on a mesh, in dygraph and as a static program, and alone. Run by tests/ranks.py:

llama.py FOLDER SETTINGS      SETTINGS: JSON, a list of the fields of ``Settings``, and dp, mp, pp
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import paddle
import paddle.distributed as dist
import ranks
from paddlenlp.transformers import LlamaConfig
from tiny_models import SIZES, VOCABULARY

import paddle_fused
from llm_npu import compat, families, layout, surgery
from llm_npu.checkpoint import tensors
from llm_npu.parallel import Degrees, Session, Settings
from llm_npu.parallel.communication import collectives_of, collectives_sent
from llm_npu.parallel.loss import CausalLoss
from paddle_fused import virtual_npu

STEPS = 3
ROWS, SEQUENCE = 4, 16  # of all processes together, in each step


def new_model():
    paddle.seed(7)
    model = families.new_model(LlamaConfig(**SIZES, use_cache=False))
    surgery.apply_fused_kernels(model, strict=True)
    return model


def new_optimizer(parameters):
    clip = paddle.nn.ClipGradByGlobalNorm(1.0)
    return paddle.optimizer.AdamW(1e-2, parameters=parameters, grad_clip=clip)


def batch(step: int):
    random = np.random.default_rng(step)
    ids, labels = random.integers(0, VOCABULARY, (2, ROWS, SEQUENCE))
    labels[:, 0] = -100
    return ids, labels


def alone() -> dict:
    """The losses of one process, after them that of a batch it has not seen, and its moments."""
    model = new_model()
    causal = CausalLoss(model)
    optimizer = new_optimizer(causal.parameters())
    losses = []
    for step in range(STEPS):
        loss = causal(*map(paddle.to_tensor, batch(step)))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    with paddle.no_grad():
        evaluated = float(causal(*map(paddle.to_tensor, batch(STEPS))))
    return {"alone": losses, "evaluated": evaluated, "moments": moments(model, optimizer)}


def own_rows(session: Session, rows: np.ndarray) -> np.ndarray:
    """Micro batch by micro batch, the part of this process along dp."""
    degrees, parts = session.settings.degrees, np.split(rows, session.settings.accumulation)
    return np.concatenate([np.split(part, degrees.dp)[degrees.row] for part in parts])


def moments(model, optimizer) -> dict[str, dict[str, float]]:
    """{name: {where it begins: its sum of squares}} of this process's parts of Adam's first moments.

    They are those that a checkpoint would have.
    """
    found: dict[str, dict[str, float]] = {}
    for each in tensors.of_optimizer(optimizer, layout.parameters(model), model.config):
        for block in each.blocks:
            if block.name.endswith(".moment1"):
                values = block.of(each.array())
                found.setdefault(block.name, {})[str(block.offset)] = float((values**2).sum())
    return found


def train(settings: Settings) -> dict:
    session = Session(new_model(), settings, new_optimizer)
    paddle_fused.reset_what_ran()
    losses, sent = [], []
    for step in range(STEPS):
        virtual_npu.reset_transfers()
        losses.append(session.step(*(own_rows(session, rows) for rows in batch(step))))
        sent.append([[each.kind, each.processes, list(each.shape)] for each in collectives_sent()])
    found = {
        "losses": losses,
        "evaluated": session.evaluate(*(own_rows(session, rows) for rows in batch(STEPS))),
        "moments": moments(session.model, session.optimizer),
        "sent": sent[-1],
        "ran": sorted({(each.operator, each.backend) for each in paddle_fused.what_ran()}),
    }
    if settings.to_static:
        program = session.program(*(own_rows(session, rows) for rows in batch(0))).dist_model
        found["program"] = [
            [each.role, each.kind, each.processes, list(each.shape)] for each in collectives_of(program)
        ]
        if os.environ.get("SHOW_PROGRAM"):
            Path(sys.argv[1], f"program{dist.get_rank()}.txt").write_text(
                str(program._engine._pir_dense_main_progs["train"])
            )
    return found


def main() -> None:
    compat.apply()
    dist.init_parallel_env()
    found = {**alone(), "split": []}
    for given in json.loads(sys.argv[2]):
        fields = dict(given)
        degrees = Degrees(*(fields.pop(axis, 1) for axis in ("dp", "mp", "pp")))
        try:
            found["split"].append(train(Settings(degrees, **fields)))
        except Exception:
            found["split"].append({"failure": traceback.format_exc()})
            paddle.disable_static()  # the next one may be in dygraph
        os.environ.pop("skip_sharding3_output_reshard", None)  # Paddle's stage 3 leaves it to what follows
    ranks.write(found)


main()
