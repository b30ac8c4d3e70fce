"""NaN and infinity in the loss or the gradients of a step: detected by all ranks together, and located.

The loss is gathered from every rank; the gradient norm is the same on all of them. So either all ranks skip
the step or all stop, wherever the bad number is. With fp16 the loss scaler handles it: PaddleNLP skips such
steps and lowers the scale. Without clipping (``--max_grad_norm 0``) there is no norm, and only the losses are
checked.

A run that skips steps ends where it cannot recover (``SkippedSteps``), and no checkpoint with a weight that
is not finite is written (``check_weights``).
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
    """Leaves the optimizer before it changes anything."""


class Guard:
    """Guards the steps of an optimizer; ``choice`` says what to do with a bad one: ``stop`` or ``skip``.

    ``find`` locates the bad number on this rank; all ranks call it together. ``report`` gets a line for each
    skipped step.
    """

    def __init__(self, choice: str, find: Callable[[], str], report: Callable[[str], None]):
        self._choice, self._find, self._report = choice, find, report
        self._bad_loss = self._skipped = False

    def take_skipped(self) -> bool:
        """Whether the step that has just ended was skipped."""
        skipped, self._skipped = self._skipped, False
        return skipped

    def check_loss(self, loss: float) -> None:
        """Once a step, collective: UserError if the loss of any rank is not finite and the choice is stop."""
        losses = ranks.table([loss])[:, 0].tolist()
        self._bad_loss = not all(map(math.isfinite, losses))
        if self._bad_loss:
            self._act("loss", losses)

    def check_norm(self, norm: paddle.Tensor) -> None:
        """SkipStep or UserError if the norm of all gradients, which every rank knows, is not finite."""
        if not math.isfinite(float(norm)):
            if not self._bad_loss:
                self._act("norm of the gradients", [float(norm)])
            raise SkipStep

    def around(self, optimizer) -> None:
        """Make the steps of ``optimizer`` skippable."""
        for name in ("step", "_step"):
            if callable(getattr(optimizer, name, None)):
                # Not setattr, which auto-parallel's optimizer forwards to the optimizer inside.
                vars(optimizer)[name] = self._skippable(getattr(optimizer, name))

    def _skippable(self, step: Callable) -> Callable:
        def guarded(*args, **kwargs):
            if self._bad_loss:
                self._bad_loss = False
                return
            with contextlib.suppress(SkipStep):
                step(*args, **kwargs)

        return guarded

    def _act(self, what: str, values: list[float]) -> None:
        found = Ranks.of_run().gather(self._find())
        where = "; ".join(f"rank {rank}: {each}" for rank, each in enumerate(found) if each)
        value = next(value for value in values if not math.isfinite(value))
        text = f"the {what} is {value}{f' ({where})' if where else ''}"
        if self._choice == "skip":
            self._skipped = True
            self._report(f"{text}; the step is skipped")
            return
        skip = "" if "the weight" in where else "; --nonfinite skip leaves such steps out"
        raise UserError(f"{text}. Lower --learning_rate or look at the data{skip}.")


class SkippedSteps(TrainerCallback):
    """Ends a run whose skipped steps cannot recover, and keeps them from replacing good checkpoints.

    A weight that is not finite ends the run at once; otherwise ``MOST`` skipped steps in a row do. With fp16,
    a step with a finite loss counts only when the loss scale is below 1: until then the scaler is looking for
    a scale. A run whose last steps were skipped, or all, has not succeeded (``check_end``). A checkpoint that
    is due after a skipped step waits for the next step that is not. ``last`` returns the last step,
    ``loss_scale`` the current scale (None without one), and ``weights`` what `check_weights` takes. All ranks
    have the same numbers.
    """

    MOST = 10

    def __init__(
        self,
        last: Callable[[], FinishedStep],
        loss_scale: Callable[[], float | None],
        weights: Callable[[], Weights],
    ):
        self._last, self._loss_scale, self._weights = last, loss_scale, weights
        self.in_a_row = self._counted = self._taken = 0
        self._save_is_due = False

    def on_step_end(self, args, state, control, **kwargs):
        if not self._last().skipped:
            self._taken += 1
            self.in_a_row = self._counted = 0
            control.should_save |= self._save_is_due
            self._save_is_due = False
            return
        self.in_a_row += 1
        check_weights(self._weights(), "no step can be taken any more", args.output_dir)
        scale = self._loss_scale()
        if scale is None or scale < 1 or not math.isfinite(self._last().loss):
            self._counted += 1
        if self._counted >= self.MOST:
            self._give_up(args.output_dir)
        ends = control.should_training_stop or state.global_step >= state.max_steps
        if control.should_save and not ends:
            control.should_save, self._save_is_due = False, True

    def check_end(self, output_dir: str) -> None:
        """After the last step: UserError if the run ends in skipped steps, or has taken none."""
        if self._counted > 1 or (self.in_a_row and not self._taken):
            self._give_up(output_dir)

    def _give_up(self, output_dir: str) -> None:
        scale = self._loss_scale()
        at = "" if scale is None else f" at a loss scale of {scale:.3g}"
        raise ErrorOfAllRanks(
            f"the last {self.in_a_row} steps were skipped{at}: loss or gradients are not finite. "
            f"Lower --learning_rate or look at the data; {_continues(output_dir)}."
        )


def check_weights(weights: Weights, consequence: str, output_dir: str) -> None:
    """UserError, with the ``consequence``, if a weight of any rank is not finite. Collective."""
    own = next((name for name, weight in weights if not _is_finite(weight)), "")
    found = [(rank, name) for rank, name in enumerate(Ranks.of_run().gather(own)) if name]
    if found:
        rank, name = found[0]
        where = f" (rank {rank})" if ranks.count() > 1 else ""
        raise ErrorOfAllRanks(
            f"the weight {name}{where} is not finite: {consequence}. "
            f"Lower --learning_rate or look at the data; {_continues(output_dir)}."
        )


def _continues(output_dir: str) -> str:
    complete = checkpoint.complete(output_dir)
    return f"{complete[-1]} is complete and stays" if complete else "there is no checkpoint to continue from"


def bad_numbers(model, inputs: Mapping[str, object] | None) -> str:
    """Where this rank has a bad number: a weight, a layer's output, or a gradient; "" if nowhere.

    All ranks call it together. ``inputs``: the last micro batch, for another forward pass; None where that is
    impossible.
    """
    weight = next((name for name, parameter in weights_of(model) if not _is_finite(parameter)), "")
    if any(Ranks.of_run().gather(weight)):  # all go on or none: layers may communicate
        return f"the weight {weight}" if weight else ""
    if inputs is not None and (layer := _first_bad_output(model, inputs)):
        return f"the output of {layer}"
    bad = [name for name, parameter in model.named_parameters() if not _is_finite(gradient_of(parameter))]
    return f"the gradient of {bad[-1]}, the last of {len(bad)} in the order of the layers" if bad else ""


def weights_of(model) -> Weights:
    """The weights of ``model`` on this rank; sharding stage 3 keeps its slices in ``fw_storage``."""
    return [(name, getattr(each, "fw_storage", each)) for name, each in model.named_parameters()]


def gradient_of(parameter) -> paddle.Tensor | None:
    """The gradient that the optimizer reads: in float32 with ``--amp_master_grad``."""
    return getattr(parameter, "main_grad", None) if parameter.grad is None else parameter.grad


def _is_finite(tensor) -> bool:
    """Of this rank's part of the tensor."""
    if tensor is None or not tensor._is_initialized():
        return True
    tensor = layout.local(tensor)
    if tensor.numel() == 0:
        return True
    return bool(paddle.isfinite(tensor.detach().astype("float32")).all())


def _first_bad_output(model, inputs: Mapping[str, object]) -> str:
    """The first layer of a forward pass whose output is not finite."""
    found: list[str] = []
    hooks = [
        layer.register_forward_post_hook(
            lambda _, __, out, name=name: None if _all_finite(out) else found.append(name)
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
    return found[0] if found else ""


def _all_finite(out) -> bool:
    tensors = out if isinstance(out, (tuple, list)) else [out]
    floats = (each for each in tensors if isinstance(each, paddle.Tensor) and each.is_floating_point())
    return all(map(_is_finite, floats))
