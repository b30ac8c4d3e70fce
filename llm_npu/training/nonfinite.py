"""NaN and infinity in the loss or the gradients of a step: detected by all ranks together, and located.

The loss is gathered from every rank; the gradient norm is the same on all of them. So either all ranks skip
the step or all stop, wherever the bad number is. With fp16 the loss scaler handles it: PaddleNLP skips such
steps and lowers the scale. Without clipping (``--max_grad_norm 0``) there is no norm, and only the losses are
checked.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping

import paddle

from llm_npu.core import ranks
from llm_npu.core.errors import UserError
from llm_npu.core.ranks import Ranks
from llm_npu.models import layout


class SkipStep(Exception):
    """Leaves the optimizer before it changes anything."""


class Guard:
    """Guards the steps of an optimizer; ``choice`` says what to do with a bad one: ``stop`` or ``skip``.

    ``find`` locates the bad number on this rank; all ranks call it together. ``report`` gets a line for each
    skipped step.
    """

    def __init__(self, choice: str, find: Callable[[], str], report: Callable[[str], None]):
        self._choice, self._find, self._report = choice, find, report
        self._bad_loss = False

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
            self._report(f"{text}; the step is skipped")
            return
        raise UserError(
            f"{text}. Lower --learning_rate or look at the data; --nonfinite skip leaves such steps out."
        )


def bad_numbers(model, inputs: Mapping[str, object] | None) -> str:
    """Where this rank has a bad number: a weight, a layer's output, or a gradient; "" if nowhere.

    All ranks call it together. ``inputs``: the last micro batch, for another forward pass; None where that is
    impossible.
    """
    weight = next((name for name, parameter in model.named_parameters() if not _is_finite(parameter)), "")
    if any(Ranks.of_run().gather(weight)):  # all go on or none: layers may communicate
        return f"the weight {weight}" if weight else ""
    if inputs is not None and (layer := _first_bad_output(model, inputs)):
        return f"the output of {layer}"
    bad = [name for name, parameter in model.named_parameters() if not _is_finite(gradient_of(parameter))]
    return f"the gradient of {bad[-1]}, the last of {len(bad)} in the order of the layers" if bad else ""


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
