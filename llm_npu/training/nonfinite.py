"""NaN and infinity in the loss or the gradients of a step: noticed by all processes together, with the layer
named.

A loss is asked of every process; the norm of the gradients is the same number in all of them. So all skip the
step, or all stop, whoever has the bad number. With fp16 it is the loss scale's business: PaddleNLP skips such
steps and lowers the scale. Without clipping (``--max_grad_norm 0``) there is no norm, and only losses are
looked at.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping

import paddle

from llm_npu.core import ranks
from llm_npu.core.errors import UserError
from llm_npu.core.ranks import Ranks
from llm_npu.models.paddlenlp import layout


class SkipStep(Exception):
    """Leaves the optimizer before it has changed anything."""


class Guard:
    """Watches the steps of ``optimizer``; ``choice`` is what becomes of a bad one.

    ``find`` gives the description of what this process has of a bad number; all call it at once. ``report``
    takes a line for each step that is skipped.
    """

    def __init__(self, choice: str, find: Callable[[], str], report: Callable[[str], None]):
        self._choice, self._find, self._report = choice, find, report
        self._bad_loss = False

    def check_loss(self, loss: float) -> None:
        """Collective, once a step: ValueError if a process's loss is not finite and the choice is to stop."""
        losses = ranks.table([loss])[:, 0].tolist()
        self._bad_loss = not all(map(math.isfinite, losses))
        if self._bad_loss:
            self._act("loss", losses)

    def check_norm(self, norm: paddle.Tensor) -> None:
        """SkipStep or ValueError if the norm of all gradients, which all processes know, is not finite."""
        if not math.isfinite(float(norm)):
            if not self._bad_loss:
                self._act("norm of the gradients", [float(norm)])
            raise SkipStep

    def around(self, optimizer) -> None:
        """Let the optimizer's steps be skipped."""
        for name in ("step", "_step"):
            if callable(getattr(optimizer, name, None)):
                # Not setattr, which auto-parallel's optimizer hands on to the one inside.
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
    """Where the numbers of this process are bad: a weight, a layer's output, or the gradients; "" if nowhere.

    All processes call it at once.
    ``inputs``: those of the last micro batch, to run forward again; None where that cannot be done.
    """
    weight = next((name for name, parameter in model.named_parameters() if not _is_finite(parameter)), "")
    if any(Ranks.of_run().gather(weight)):  # all go on, or none: the layers may communicate
        return f"the weight {weight}" if weight else ""
    if inputs is not None and (layer := _first_bad_output(model, inputs)):
        return f"the output of {layer}"
    bad = [name for name, parameter in model.named_parameters() if not _is_finite(gradient_of(parameter))]
    return f"the gradient of {bad[-1]}, the last of {len(bad)} in the order of the layers" if bad else ""


def gradient_of(parameter) -> paddle.Tensor | None:
    """The gradient that the optimizer will read: in float32 with ``--amp_master_grad``."""
    return getattr(parameter, "main_grad", None) if parameter.grad is None else parameter.grad


def _is_finite(tensor) -> bool:
    """Of what this process has of the tensor."""
    if tensor is None or not tensor._is_initialized():
        return True
    tensor = layout.local(tensor)
    if tensor.numel() == 0:
        return True
    return bool(paddle.isfinite(tensor.detach().astype("float32")).all())


def _first_bad_output(model, inputs: Mapping[str, object]) -> str:
    """The first layer of a forward pass that makes a number that is not finite."""
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
