"""Runs a step on two backends with the same weights, batch and random state, and reports the differences.

The first run uses the training's own backend. The second uses ``composed`` (the fused operators computed by
plain Paddle) or ``upstream`` (PaddleNLP's own layers). The second run is repeated twice with perturbed
rounding, to measure the effect of rounding alone (``comparison``). The weights do not change, and the
training continues unaffected.

Two correct implementations round in different places, and rounding errors grow from layer to layer. The
tolerance is derived: the repeated runs add random errors of one unit in the last place to the outputs of
layers that fused operators round differently (``other_roundings``).

Rounding may change a router's choice between two nearly equal experts, and a different expert changes the
result by far more than rounding. Therefore the second run replays the expert choices of the first. The report
counts the rows in which its own choices would differ (``Choices``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext

import numpy as np
import paddle

import paddle_fused
import virtual_npu
from llm_npu import surgery
from llm_npu.core.errors import UserError
from llm_npu.core.ranks import Ranks
from llm_npu.training.checkpoint.random_state import random_state, set_random_state
from llm_npu.training.upstream_trainer import TrainerCallback
from paddle_fused.parity import ROUNDING

from .comparison import Comparison, compare
from .recording import Recording, recording

COMPOSED, UPSTREAM = "composed", "upstream"
OTHER_ROUNDINGS = (1, 2)  # seeds
OF_EXPERTS = ".experts."  # in the names of layers that process the rows routed to an expert
# Substrings of the class names of fusable layers, and of the projections around rotary and SwiGLU.
FUSABLE = ("RMSNorm", "Attention", "MLP", "MoeBlock", "MoEBlock", "Linear")


class CompareWith(TrainerCallback):
    """Compares both backends on the first micro batch of ``trainer`` and passes the report lines to ``say``.

    Runs forward and backward four times before the first step. Recordings of all layers are kept on the host
    until the comparison ends.

    Args:
        other: "composed" or "upstream".
        switches: the arguments of ``surgery.apply_fused_kernels``.
        report: the result of ``surgery.apply_fused_kernels``.
    """

    def __init__(self, trainer, other: str, switches: Mapping[str, bool], report, say: Callable[[str], None]):
        self._trainer, self._other, self._switches, self._report = trainer, other, switches, report
        self._say = say
        self._done = False
        self._choices, self._uncompared = Choices(), 0

    def on_load_data_end(self, args, state, control, inputs=None, **kwargs):
        if self._done:
            return
        self._done = True
        before = random_state()
        comparison = self._compare(inputs)
        set_random_state(before)
        paddle_fused.reset_dispatch_log()  # the run's own records
        if virtual_npu.is_active():
            virtual_npu.reset_kernel_record()
        lines = [f"compare  the first batch with {self._other}:"]
        lines += [f"           {line}" for line in self.lines(comparison)]
        self._log(lines, bool(comparison.beyond_rounding))

    def lines(self, comparison: Comparison) -> list[str]:
        """The report lines, including the operators fused in the first layer that differs."""
        lines = comparison.lines()
        if self._choices.count:
            lines.append(
                f"{self._other} would choose different experts in {self._choices.otherwise:,} of "
                f"{self._choices.count:,} rows; both use the choices of the training"
            )
        if self._uncompared:
            lines.append(f"{self._uncompared:,} expert tensors were not compared: their rows differ")
        if comparison.beyond_rounding:
            layer = comparison.beyond_rounding[0].name.partition("/")[2].partition(" ")[0].partition("[")[0]
            fused = sorted(
                f"{row.operator} of {row.layer}"
                for row in self._report.rows
                if row.fused and f"{layer}.".startswith(f"{row.layer}.")
            )
            if fused:
                lines.append(f"fused there: {', '.join(fused)}")
        return lines

    def _compare(self, inputs) -> Comparison:
        state = random_state()
        choices = self._choices
        with choices.recorded():
            own = self._run(inputs, state)
        with other_backend(self._trainer.model, self._other, self._switches):
            inputs = _for_upstream(inputs) if self._other == UPSTREAM else inputs
            with choices.replayed():
                second = self._run(inputs, state)
            otherwise = choices.otherwise
            noise_floors = []
            for seed in OTHER_ROUNDINGS:
                with choices.replayed():
                    noise_floors.append(self._run(inputs, state, seed))
            choices.otherwise = otherwise
        rows = [name for name in second if name in own and OF_EXPERTS in name]
        others = {name for name in rows if own[name].shape != second[name].shape}
        self._uncompared = len(others)
        own, second = ({name: run[name] for name in run if name not in others} for run in (own, second))
        return compare(own, second, noise_floors)

    def _run(self, inputs: Mapping, state: dict, seed: int | None = None) -> Recording:
        trainer = self._trainer
        set_random_state(state)
        disturbed = nullcontext() if seed is None else other_roundings(trainer.model, seed)
        with disturbed, recording(trainer.model) as tensors:  # outermost, so that it records the perturbation
            trainer.training_step(trainer.model_wrapped, dict(inputs), step_control=0)
        tensors.add_weight_gradients(trainer.model)
        trainer.optimizer.clear_grad()
        return tensors

    def _log(self, lines: list[str], parted: bool) -> None:
        """Print the lines of rank 0, and of every rank with differences."""
        for rank, (rank_lines, differs) in enumerate(Ranks.of_run().gather((lines, parted))):
            if rank == 0 or differs:
                for line in rank_lines:
                    self._say(f"rank {rank}: {line}" if rank else line)


@contextmanager
def other_backend(model, other: str, switches: Mapping[str, bool]) -> Iterator[None]:
    """Context in which ``model`` computes with ``other``."""
    if other == COMPOSED:
        with paddle_fused.use_backend("composed", strict=True):
            yield
        return
    surgery.remove_fused_kernels(model)
    try:
        yield
    finally:
        surgery.apply_fused_kernels(model, **switches)


def _for_upstream(inputs: Mapping) -> dict:
    """Replace ``masks.documents`` with a mask that PaddleNLP's own attention accepts."""
    mask = inputs.get("attention_mask")
    if mask is None or isinstance(mask, (paddle.Tensor, np.ndarray)):
        return dict(inputs)
    width = inputs["input_ids"].shape[1]
    return {**inputs, "attention_mask": paddle.to_tensor(~mask.to_dense(width))}


@contextmanager
def other_roundings(model, seed: int) -> Iterator[None]:
    """Context in which the outputs of FUSABLE layers are multiplied by 1 - u, 1 or 1 + u.

    u is one unit in the last place. The factor depends on ``seed``, the layer and the position; the
    training's random generators are not used.
    """

    def disturb(number: int):
        draw = np.random.default_rng([seed, number])

        def after(_layer, _inputs, output):
            first = output[0] if isinstance(output, tuple) else output
            unit = 2 * ROUNDING[str(first.dtype).removeprefix("paddle.")]
            signs = draw.integers(-1, 2, first.shape, np.int8).astype(np.float32)
            perturbed = first * paddle.to_tensor(1 + unit * signs, place=first.place).astype(first.dtype)
            return (perturbed, *output[1:]) if isinstance(output, tuple) else perturbed

        return after

    layers = [layer for layer in model.sublayers() if any(name in type(layer).__name__ for name in FUSABLE)]
    hooks = [layer.register_forward_post_hook(disturb(number)) for number, layer in enumerate(layers)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class Choices:
    """Records the results of ``paddle.topk`` (called by routers) in one run and replays them in other runs.

    Raises UserError if a replaying run calls ``topk`` more often, or with other shapes, than the first run.

    Attributes:
        count: number of recorded rows.
        otherwise: rows in which the last run would have chosen different experts.
    """

    def __init__(self):
        self._recorded: list[np.ndarray] = []
        self._turn = 0
        self.otherwise = 0

    @property
    def count(self) -> int:
        return sum(int(np.prod(indices.shape[:-1])) for indices in self._recorded)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Context in which choices are recorded."""
        with _topk(self._record):
            yield

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Context in which the recorded choices are replayed in order."""
        self._turn = self.otherwise = 0
        with _topk(self._replay):
            yield

    def _record(self, x, axis: int, values, indices) -> tuple:
        self._recorded.append(indices.numpy())
        return values, indices

    def _replay(self, x, axis: int, values, indices) -> tuple:
        own = indices.numpy()
        if self._turn == len(self._recorded) or own.shape != self._recorded[self._turn].shape:
            raise UserError(
                "The two runs call topk a different number of times. Compare a model without experts."
            )
        recorded = self._recorded[self._turn]
        self._turn += 1
        self.otherwise += int((np.sort(own, axis) != np.sort(recorded, axis)).any(axis).sum())
        chosen = paddle.to_tensor(recorded, place=indices.place)
        return paddle.take_along_axis(x, chosen, axis, broadcast=False), chosen


@contextmanager
def _topk(answer: Callable[..., tuple]) -> Iterator[None]:
    """Context in which results of ``paddle.topk`` pass through ``answer(x, axis, values, indices)``."""
    original = paddle.topk

    def topk(x, k, axis=None, *more, **options):
        return answer(x, -1 if axis is None else axis, *original(x, k, axis, *more, **options))

    paddle.topk = topk
    try:
        yield
    finally:
        paddle.topk = original
