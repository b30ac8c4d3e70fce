"""Detects and locates NaN and infinity in the loss or gradients of a step, on all ranks together.

The loss is gathered from every rank, and the gradient norm is the same on all ranks, so either all ranks skip
the step or all ranks stop. With fp16, PaddleNLP's loss scaler skips such steps and lowers the scale. Without
clipping (``--max_grad_norm 0``) there is no norm, and only the losses are checked.

A run that skips steps ends if it cannot recover (``SkippedSteps``). A checkpoint with non-finite weights is
never written (``check_weights``).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping

import paddle

from llm_npu.core import ranks
from llm_npu.core.errors import ErrorOfAllRanks, UserError
from llm_npu.core.ranks import Ranks
from llm_npu.models import layout
from llm_npu.training import checkpoint
from llm_npu.training.step import FinishedStep
from llm_npu.training.upstream_trainer import TrainerCallback

Weights = Iterable[tuple[str, paddle.Tensor]]


class SkipStep(Exception):
    """Raised to leave the optimizer before it changes anything."""


class Guard:
    """Stops the run or skips the step if loss or gradients of an optimizer step are not finite.

    Args:
        action: ``stop`` or ``skip``.
        locate: Describes the location of the non-finite value on this rank. Collective.
        report: Prints a line for each skipped step.
    """

    def __init__(self, action: str, locate: Callable[[], str], report: Callable[[str], None]):
        self._action, self._locate, self._report = action, locate, report
        self._bad_loss = self._skipped = False

    def take_skipped(self) -> bool:
        """Whether the last step was skipped."""
        skipped, self._skipped = self._skipped, False
        return skipped

    def check_loss(self, loss: float) -> None:
        """Raise UserError if a rank's loss is not finite and the action is stop. Collective, per step."""
        losses = ranks.table([loss])[:, 0].tolist()
        self._bad_loss = not all(map(math.isfinite, losses))
        if self._bad_loss:
            self._act("loss", losses)

    def check_norm(self, norm: paddle.Tensor) -> float:
        """Return the global gradient norm. Raise SkipStep or UserError if it is not finite."""
        value = float(norm)  # waits for the device, before the optimizer changes weights
        if not math.isfinite(value):
            if not self._bad_loss:
                self._act("norm of the gradients", [value])
            raise SkipStep
        return value

    def around(self, optimizer) -> None:
        """Make the steps of ``optimizer`` skippable."""
        for name in ("step", "_step"):
            if callable(getattr(optimizer, name, None)):
                # Not setattr: auto-parallel's optimizer forwards it to the inner optimizer.
                vars(optimizer)[name] = self._skippable(getattr(optimizer, name))

    def _skippable(self, step: Callable) -> Callable:
        def guarded(*args, **kwargs):
            if self._bad_loss:
                self._bad_loss = False
                return
            with contextlib.suppress(SkipStep):
                step(*args, **kwargs)

        return guarded

    def _act(self, name: str, values: list[float]) -> None:
        of_ranks = Ranks.of_run().gather(self._locate())
        where = "; ".join(f"rank {rank}: {place}" for rank, place in enumerate(of_ranks) if place)
        value = next(value for value in values if not math.isfinite(value))
        text = f"the {name} is {value}{f' ({where})' if where else ''}"
        if self._action == "skip":
            self._skipped = True
            self._report(f"{text}; the step is skipped")
            return
        skip = "" if "the weight" in where else "; --nonfinite skip skips such steps"
        raise UserError(f"{text}. Lower --learning_rate or check the data{skip}.")


class SkippedSteps(TrainerCallback):
    """Ends a run that cannot recover from skipped steps, and protects good checkpoints.

    - A non-finite weight ends the run at once; otherwise ``MOST`` consecutive skipped steps do. With fp16, a
      step with a finite loss counts only at a loss scale below 1, because the scaler still searches for a
      scale above that.
    - A run fails if its last steps, or all of several steps, were skipped (``check_end``).
      One step may be skipped while the scaler searches.
    - A checkpoint that is due at a skipped step is written after the next step that is not skipped.

    The counts are the same on all ranks.

    Args:
        last: Returns the last step.
        loss_scale: Returns the current loss scale, None without one.
        weights: Returns the weights for `check_weights`.
    """

    MOST = 10

    def __init__(
        self,
        last: Callable[[], FinishedStep],
        loss_scale: Callable[[], float | None],
        weights: Callable[[], Weights],
    ):
        self._last, self._loss_scale, self._weights = last, loss_scale, weights
        self.in_a_row = self._counted = self._not_skipped = 0
        self._save_is_due = False

    def on_step_end(self, args, state, control, **kwargs):
        if not self._last().skipped:
            self._not_skipped += 1
            self.in_a_row = self._counted = 0
            control.should_save |= self._save_is_due
            self._save_is_due = False
            return
        self.in_a_row += 1
        check_weights(self._weights(), "no further step is possible", args.output_dir)
        scale = self._loss_scale()
        if scale is None or scale < 1 or not math.isfinite(self._last().loss):
            self._counted += 1
        if self._counted >= self.MOST:
            self._give_up(args.output_dir)
        ends = control.should_training_stop or state.global_step >= state.max_steps
        if control.should_save and not ends:
            control.should_save, self._save_is_due = False, True

    def check_end(self, output_dir: str) -> None:
        """After the last step, raise UserError if the last steps, or all of several steps, were skipped."""
        if self._counted > 1 or (self.in_a_row > 1 and not self._not_skipped):
            self._give_up(output_dir)

    def _give_up(self, output_dir: str) -> None:
        scale = self._loss_scale()
        at = "" if scale is None else f" at a loss scale of {scale:.3g}"
        raise ErrorOfAllRanks(
            f"the last {self.in_a_row} steps were skipped{at}: loss or gradients are not finite. "
            f"Lower --learning_rate or check the data; {_remaining_checkpoint(output_dir)}."
        )


def check_weights(weights: Weights, consequence: str, output_dir: str) -> None:
    """Raise UserError, with the ``consequence``, if a rank has a non-finite weight. Collective."""
    own = next((name for name, weight in weights if not _is_finite(weight)), "")
    bad = [(rank, name) for rank, name in enumerate(Ranks.of_run().gather(own)) if name]
    if bad:
        rank, name = bad[0]
        where = f" (rank {rank})" if ranks.count() > 1 else ""
        raise ErrorOfAllRanks(
            f"the weight {name}{where} is not finite: {consequence}. "
            f"Lower --learning_rate or check the data; {_remaining_checkpoint(output_dir)}."
        )


def _remaining_checkpoint(output_dir: str) -> str:
    complete = checkpoint.complete(output_dir)
    return f"{complete[-1]} is complete and is kept" if complete else "there is no checkpoint to resume from"


def bad_numbers(model, inputs: Mapping[str, object] | None) -> str:
    """The location of a non-finite value on this rank: a weight, a layer's output, or a gradient; else "".

    Collective. ``inputs`` is the last micro batch, for another forward pass; None if that is impossible.
    """
    weight = next((name for name, parameter in weights_of(model) if not _is_finite(parameter)), "")
    if any(Ranks.of_run().gather(weight)):  # all ranks must continue, or none: layers may communicate
        return f"the weight {weight}" if weight else ""
    if inputs is not None and (layer := _first_bad_output(model, inputs)):
        return f"the output of {layer}"
    bad = [name for name, parameter in model.named_parameters() if not _is_finite(gradient_of(parameter))]
    return f"the gradient of {bad[-1]}, the last of {len(bad)} in layer order" if bad else ""


def weights_of(model) -> Weights:
    """The weights of ``model`` on this rank; sharding stage 3 keeps its slices in ``fw_storage``."""
    return [(name, getattr(weight, "fw_storage", weight)) for name, weight in model.named_parameters()]


def gradient_of(parameter) -> paddle.Tensor | None:
    """The gradient used by the optimizer; float32 with ``--amp_master_grad``."""
    return getattr(parameter, "main_grad", None) if parameter.grad is None else parameter.grad


def _is_finite(tensor) -> bool:
    """Whether all values in this rank's part of the tensor are finite."""
    if tensor is None or not tensor._is_initialized():
        return True
    tensor = layout.local(tensor)
    if tensor.numel() == 0:
        return True
    return bool(paddle.isfinite(tensor.detach().astype("float32")).all())


def _first_bad_output(model, inputs: Mapping[str, object]) -> str:
    """The first layer in a forward pass with a non-finite output."""
    bad: list[str] = []
    hooks = [
        layer.register_forward_post_hook(
            lambda _, __, out, name=name: None if _all_finite(out) else bad.append(name)
        )
        for name, layer in model.named_sublayers()
        if not layer._sub_layers
    ]
    try:
        with paddle.no_grad():
            model(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return bad[0] if bad else ""


def _all_finite(out) -> bool:
    tensors = out if isinstance(out, (tuple, list)) else [out]
    floats = (out for out in tensors if isinstance(out, paddle.Tensor) and out.is_floating_point())
    return all(map(_is_finite, floats))
