"""Training steps, and how far two runs of one model may diverge.

Training is chaotic: one rounding grows from step to step. How far a fused run may diverge from the unfused
one is therefore not chosen but measured: the unfused model runs again while the results of its norms,
attention and feed-forward layers, which fused operators round differently, are off by a unit in the last
place at random. ``allowed`` has the bound that follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import paddle
from precision import ROUNDING
from roundings import ADAM_EPSILON

from fused_models.comparison import Batch, array, loss_and_logits, random_batch

if TYPE_CHECKING:
    from fused_models.families import Family

LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class Run:
    """Of every step the loss and the gradient's norm; the parameters after the last, as one vector."""

    losses: np.ndarray
    norms: np.ndarray
    parameters: np.ndarray


def train(family: Family, model, batches, operator: str | None = None, scale: float = 1.0) -> Run:
    """One step of AdamW for each of ``batches``; in the backward pass the loss is ``scale`` times larger."""
    model.train()
    optimizer = paddle.optimizer.AdamW(
        LEARNING_RATE,
        parameters=model.parameters(),
        weight_decay=0.01,
        epsilon=ADAM_EPSILON,
        multi_precision=next(iter(model.parameters())).dtype != paddle.float32,
        grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0),
    )
    losses, norms = [], []
    for batch in batches:
        loss, _ = loss_and_logits(family, model, batch, operator)
        (loss.astype("float32") * scale).backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        wide = [gradient.astype("float32") / scale for gradient in gradients]
        norms.append(np.sqrt(sum(float(array(gradient.square().sum())) for gradient in wide)))
        if scale != 1:
            for gradient, unscaled in zip(gradients, wide, strict=True):
                gradient.set_value(unscaled.astype(gradient.dtype))
        losses.append(float(array(loss)))
        optimizer.step()
        optimizer.clear_grad()
    model.eval()
    parameters = np.concatenate([array(p).ravel() for p in model.parameters()])
    return Run(np.array(losses), np.array(norms), parameters)


def memorised(steps: int) -> list[Batch]:
    """Two batches in turn, which are learnt by heart."""
    pair = [random_batch(seed=1), random_batch(seed=2)]
    return [pair[step % 2] for step in range(steps)]


def assert_tracks(fused: Run, unfused: Run, disturbed: list[Run], dtype: str) -> None:
    """``fused`` parts from ``unfused`` by no more than ``allowed`` of the ``disturbed`` runs.

    Losses and norms: until every step the furthest so far, plus one rounding of either run, or 4 of float32
    (tests/shared/roundings.py): in the first steps all disturbed runs may agree by luck. Norms by their
    logarithms: once a batch is learnt they jump a hundredfold from one step to the next where a choice of
    experts turns over, so that the furthest of their differences is that of one jump. Parameters: the
    distance.
    """
    relative = max(2 * ROUNDING[dtype], 4 * ROUNDING["float32"])
    for what, of, rounding in (
        ("losses", np.asarray, relative * np.abs(unfused.losses)),
        ("norms", np.log, relative),
    ):
        plain = of(getattr(unfused, what))
        bound = allowed([_furthest(of(getattr(run, what)) - plain) for run in disturbed], rounding)
        parted = _furthest(of(getattr(fused, what)) - plain)
        worst = np.argmax(parted / bound)
        assert np.all(parted <= bound), (
            f"{what} part by {parted[worst]:.3e} at step {worst}, allowed {bound[worst]:.3e}"
        )
    parted, *others = (np.linalg.norm(run.parameters - unfused.parameters) for run in (fused, *disturbed))
    rounding = ROUNDING[dtype] * np.linalg.norm(unfused.parameters)
    bound = allowed(others, rounding)
    assert parted <= bound, f"parameters part by {parted:.3e}, allowed {bound:.3e}"


def allowed(distances, rounding):
    """Twice the largest of ``distances``, or as far beyond it as it is beyond the least, plus ``rounding``.

    Where a choice of experts turns over, equal models part by very different distances.
    """
    largest, smallest = np.max(distances, axis=0), np.min(distances, axis=0)
    return np.maximum(2, (largest + rounding) / (smallest + rounding)) * largest + rounding


def _furthest(differences: np.ndarray) -> np.ndarray:
    return np.maximum.accumulate(np.abs(differences))
