"""Gradients of a step: the loss scale of fp16, and the global norm that the optimizer's clipping computes.

Paddle 3.3.1 does not expose that norm. Computing it a second time, to record or check it, would repeat the
communication of every kind of parallelism.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType

import paddle

CLIPS = {  # classes, most of them Paddle's -> the method that computes the square root of the sum
    "ClipGradByGlobalNorm": "_dygraph_clip",
    "HybridParallelClipGrad": "_comm_and_clip",
    "GroupShardedClipGrad": "_dygraph_clip",
    "ClipWithExperts": "_dygraph_clip",  # of llm_npu.parallel.experts
}


NAME = "norm_of_all_gradients"


class GradientNorm:
    """Reads the norm from the clipping of ``optimizer``, which must already be wrapped for parallelism.

    Attributes:
        last: the norm, a number or a float32 tensor of one element; None without clipping by the global norm.
        check: called with the norm before the gradients are clipped; returns it, read or not, or raises.
    """

    def __init__(self, optimizer, check: Callable[[paddle.Tensor], paddle.Tensor | float]):
        self.last: paddle.Tensor | float | None = None
        self._check = check
        for clip in _clips(optimizer):
            name = CLIPS[type(clip).__name__]
            clip.__dict__[name] = types.MethodType(
                paddle.no_grad()(_reporting(clip, name, self.record)), clip
            )

    def record(self, norm: paddle.Tensor) -> None:
        """Store the norm of a step; called when clipping has computed it."""
        self.last = norm
        self.last = self._check(norm)

    def take(self) -> float:
        """Return the norm of the last step; NaN if there is none."""
        norm, self.last = self.last, None
        return float("nan") if norm is None else float(norm)


class ProgramNorm:
    """The norm in a program of ``dist.to_static``, which runs in ``scope``.

        with norm.kept(optimizer):
            dist_model.train()

    In a pipeline, only the processes of the first stage have the norm.
    """

    def __init__(self, scope: paddle.static.Scope):
        self._scope = scope

    @contextmanager
    def kept(self, optimizer) -> Iterator[None]:
        """Context in which captured programs store each step's norm in the scope, as the variable NAME.

        (With micro batches, Paddle can only fetch variables that exist in all of them.)
        """
        clips = _clips(optimizer)
        for clip in clips:
            clip.__dict__["_pir_clip"] = types.MethodType(_reporting(clip, "_pir_clip", _keep), clip)
        try:
            yield
        finally:
            for clip in clips:
                del clip.__dict__["_pir_clip"]

    def take(self) -> float:
        """Return the norm of the last step; NaN if there is none."""
        kept = self._scope.find_var(NAME)
        return float("nan") if kept is None else float(paddle.Tensor(kept.get_tensor()))


def _keep(norm: paddle.pir.Value) -> None:
    norm.persistable = True
    paddle._C_ops.set_persistable_value(norm, NAME)


def _reporting(clip, name: str, report: Callable) -> Callable:
    """The method ``name`` of ``clip``'s class, patched to pass the norm to ``report``.

    Paddle's code runs with a proxy for ``paddle`` that intercepts ``sqrt``. The method calls it once, for the
    global sum.
    """
    upstream = inspect.unwrap(getattr(type(clip), name))
    scope = {**upstream.__globals__, "paddle": _SqrtProxy(report)}
    return types.FunctionType(upstream.__code__, scope, name, upstream.__defaults__, upstream.__closure__)


class _SqrtProxy:
    def __init__(self, report: Callable):
        self._report = report

    def __getattr__(self, name: str):
        return getattr(paddle, name)

    def sqrt(self, x):
        root = paddle.sqrt(x)
        self._report(root)
        return root


def _clips(optimizer) -> list:
    """The clipping objects of an optimizer, inside all wrappers."""
    clips, seen = [], set()
    while optimizer is not None and id(optimizer) not in seen:
        seen.add(id(optimizer))
        clip = optimizer.__dict__.get("_grad_clip")
        if type(clip).__name__ in CLIPS and all(clip is not other for other in clips):
            clips.append(clip)
        optimizer = optimizer.__dict__.get("_inner_opt") or optimizer.__dict__.get("_optim")
    return clips


def unscale_master_gradients(scaler) -> None:
    """PaddleNLP 3.0.0b4, PaddleFormers 1.1 and 1.2: with one process or plain data parallelism, fp16
    gradients are not unscaled. Every step is clipped, and a step with infinite gradients is not skipped.

    Float32 gradients are in ``main_grad``. The trainers' ``_wrap_amp_model`` patches the ``GradScaler`` for
    this only if the model or the optimizer is sharded. An already patched ``scaler`` is not changed.
    """
    if "_unscale" not in vars(scaler):
        scaler._unscale = MethodType(_unscale, scaler)


def _unscale(scaler, optimizer) -> None:
    """Unscale ``main_grad``. The gradients are already reduced, so all ranks compute the same result."""
    gradients = [getattr(parameter, "main_grad", None) for parameter in optimizer._parameter_list]
    gradients = [gradient for gradient in gradients if gradient is not None]
    found_inf = paddle.zeros([1], "bool")
    if gradients:
        paddle._legacy_C_ops.check_finite_and_unscale(gradients, scaler._scale, gradients, found_inf)
    scaler._found_inf = found_inf
