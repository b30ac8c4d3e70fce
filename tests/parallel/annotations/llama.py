"""Trains a small Llama on a mesh, in dygraph and as a static program, and alone. Run by
tests/shared/ranks.py:

llama.py FOLDER SETTINGS SEED

SETTINGS: JSON, a list of the fields of ``Settings``, and dp, tp, pp, precision. SEED: of weights and batches.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import paddle
import paddle.distributed as dist
import ranks
from fused_models.rounding import round_otherwise
from paddlenlp.transformers import LlamaConfig
from roundings import ADAM_EPSILON
from tiny_models import SIZES, VOCABULARY

import paddle_fused
import virtual_npu
from llm_npu import patches, surgery
from llm_npu.models import families, layout
from llm_npu.parallel import Degrees, Session, Settings
from llm_npu.parallel.communication import collectives_of, collectives_sent
from llm_npu.parallel.loss import CausalLoss
from llm_npu.patches.gradients import GradientNorm
from llm_npu.training.checkpoint import tensors
from paddle_fused import paddle_release

SEED = int(sys.argv[3])
OTHER_ROUNDINGS = range(4)  # seeds
STEPS = 3
ROWS, SEQUENCE = 4, 16  # of all processes together, in each step


def new_model(precision: str, fused: bool = True):
    paddle.seed(SEED)
    model = families.new_model(LlamaConfig(**SIZES, use_cache=False))
    if fused:
        surgery.apply_fused_kernels(model, strict=True, use_fused_add_rms_norm=True)
    if precision == "bfloat16":
        paddle.amp.decorate(model, level="O2", dtype=precision)
    return model


def new_optimizer(parameters):
    clip = paddle.nn.ClipGradByGlobalNorm(1.0)
    return paddle.optimizer.AdamW(
        1e-2, parameters=parameters, grad_clip=clip, multi_precision=True, epsilon=ADAM_EPSILON
    )


def batch(step: int):
    random = np.random.default_rng([SEED, step])
    ids, labels = random.integers(0, VOCABULARY, (2, ROWS, SEQUENCE))
    labels[:, 0] = -100
    return ids, labels


def alone(precision: str, fused: bool = True, otherwise: int | None = None) -> dict:
    """The losses of one process, that of a batch it has not seen, its norms, and its moments.

    ``otherwise``: the seed of other roundings.
    """
    model = new_model(precision, fused)
    if otherwise is not None:
        round_otherwise(model, otherwise)
    causal = CausalLoss(model)
    optimizer = new_optimizer(causal.parameters())
    norm = norm_of(optimizer)
    losses, norms = [], []
    for step in range(STEPS):
        loss = causal(*map(paddle.to_tensor, batch(step)))
        loss.backward()
        if precision != "float32":
            paddle_release.allow_float32_gradients(causal.parameters())
            for parameter in causal.parameters():
                gradient = parameter.grad.astype("float32")  # which are clipped, as with --amp_master_grad
                paddle_release.drop_gradient(parameter)
                parameter.grad = gradient
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
        norms.append(norm.take())
    with paddle.no_grad():
        evaluated = float(causal(*map(paddle.to_tensor, batch(STEPS))))
    return {"losses": losses, "evaluated": evaluated, "norms": norms, "moments": moments(model, optimizer)}


def norm_of(optimizer) -> GradientNorm:
    """That of the gradients, before they are clipped."""
    return GradientNorm(optimizer, lambda norm: norm)


def own_rows(session: Session, rows: np.ndarray) -> np.ndarray:
    """Micro batch by micro batch, the part of this process along dp."""
    degrees, parts = session.settings.degrees, np.split(rows, session.settings.accumulation)
    return np.concatenate([np.split(part, degrees.dp)[degrees.row] for part in parts])


def moments(model, optimizer) -> dict[str, dict[str, float]]:
    """{name: {where it begins: its sum of squares}} of this process's parts of Adam's first moments.

    They are those that a checkpoint would have.
    """
    squares: dict[str, dict[str, float]] = {}
    for tensor in tensors.of_optimizer(optimizer, layout.parameters(model), model.config):
        for block in tensor.blocks:
            if block.name.endswith(".moment1"):
                values = block.of(tensor.array())
                squares.setdefault(block.name, {})[str(block.offset)] = float((values**2).sum())
    return squares


def train(settings: Settings, precision: str) -> dict:
    session = Session(new_model(precision), settings, new_optimizer)
    with on_a_card() if precision == "bfloat16" else contextlib.nullcontext():
        return trained(session)


@contextlib.contextmanager
def on_a_card() -> Iterator[None]:
    """Inside, only the plugin's operators run, and a kernel that a card would leave to the host is an error.

    That is VIRTUAL_NPU_STRICT=1 for the steps; PaddleNLP's layers use such kernels while they are made.
    """
    refuse = virtual_npu.watch_host_fallbacks(lambda fallback: True)
    with paddle_fused.use_backend("ascend", strict=True), refuse:
        yield


def trained(session: Session) -> dict:
    settings = session.settings
    paddle_fused.reset_dispatch_log()
    if settings.to_static:
        program = session.program(*(own_rows(session, rows) for rows in batch(0)))
    norm = program.norm if settings.to_static else norm_of(session.optimizer)
    losses, norms, sent = [], [], []
    for step in range(STEPS):
        virtual_npu.reset_transfers()
        losses.append(session.step(*(own_rows(session, rows) for rows in batch(step))))
        norms.append(norm.take())
        sent.append(
            [
                [collective.kind, collective.processes, list(collective.shape)]
                for collective in collectives_sent()
            ]
        )
    results = {
        "losses": losses,
        "norms": norms,
        "evaluated": session.evaluate(*(own_rows(session, rows) for rows in batch(STEPS))),
        "moments": moments(session.model, session.optimizer),
        "dtypes": dtypes(session),
        "sent": sent[-1],
        "ran": sorted({(entry.operator, entry.backend) for entry in paddle_fused.dispatch_log()}),
    }
    if settings.to_static:
        results["program"] = [
            [collective.role, collective.kind, collective.processes, list(collective.shape)]
            for collective in collectives_of(program.dist_model)
        ]
        if os.environ.get("SHOW_PROGRAM"):
            Path(sys.argv[1], f"program{dist.get_rank()}.txt").write_text(
                str(program.dist_model._engine._pir_dense_main_progs["train"])
            )
    return results


def dtypes(session: Session) -> list[str]:
    """Of the parameters of this process, and of what the optimizer updates for them."""
    masters = session.optimizer._inner_opt._master_weights
    pairs = {
        (str(parameter.dtype), str(masters[parameter.name].dtype) if masters else str(parameter.dtype))
        for parameter in session.model.parameters()
    }
    (pair,) = pairs
    return [dtype.removeprefix("paddle.") for dtype in pair]


def main() -> None:
    patches.apply()
    dist.init_parallel_env()
    cases = json.loads(sys.argv[2])
    precisions = sorted({case["precision"] for case in cases})
    results = {
        "alone": {kind: alone(kind) for kind in precisions},
        "not fused": {
            kind: [alone(kind, fused=False, otherwise=seed) for seed in (None, *OTHER_ROUNDINGS)]
            for kind in precisions
        },
        "split": [],
    }
    for case in cases:
        fields = dict(case)
        precision = fields.pop("precision")
        degrees = Degrees(*(fields.pop(axis, 1) for axis in ("dp", "tp", "pp")))
        try:
            results["split"].append(train(Settings(degrees, **fields), precision))
        except Exception:
            results["split"].append({"failure": traceback.format_exc()})
            traceback.print_exc()  # the other ranks may now wait for this one
            paddle.disable_static()  # the next one may be in dygraph
        os.environ.pop("skip_sharding3_output_reshard", None)  # Paddle's stage 3 leaves it to what follows
    ranks.write(results)


main()
