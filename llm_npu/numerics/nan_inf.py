"""Stops at the first NaN or infinity and names the layer and the operator that produced it.

On the virtual NPU and on the CPU, Paddle's FLAGS_check_nan_inf checks the result of every operator, forward
and backward. It cannot be used on a card, because it reads device memory as host memory. It also ignores
operators that are registered outside Paddle, including the fused operators. Therefore the outputs of all
layers and their gradients are also checked, on every device.
"""

from __future__ import annotations

import functools
import re

import numpy as np
import paddle

from llm_npu.core.errors import UserError

from .dumped import as_float64
from .recording import floats

# Operators with intended infinities (masks, and where, which broadcasts them) or uninitialized results.
SKIPPED = ("full", "fill_constant", "full_like", "fill_any_like", "where", "masked_fill", "expand_v2")
SKIPPED += ("empty", "empty_like")
PADDLE_MESSAGE = re.compile(
    r"There are NAN or INF \(num_nan=(\d+), num_inf=(\d+), num_zero=\d+\) in "
    r"\[device=[^,]*, op=([^,]*), tensor=[^,]*, dtype=([^\]]*)\]"
)
FIX = "Lower --learning_rate or check the data; --compare_with composed detects a wrong operator."


class NonFiniteCheck:
    """Checks the layers of ``model`` in the training steps that ``around`` wraps.

    Args:
        operators: also check every operator with Paddle's flag; not supported on a card.
        backward: also check the backward pass. False for fp16, where gradients overflow until the loss scale
            has adapted.
    """

    def __init__(self, model, operators: bool, backward: bool):
        self._operators, self._backward = operators, backward
        # layers whose forward is running, outermost first
        self._running: list[tuple[str, paddle.nn.Layer, tuple]] = []
        self._last_backward = ""  # the layer whose backward pass started last
        self._message = ""
        if operators:
            paddle.base.core.set_skipped_op_list(",".join(SKIPPED))
        for path, layer in model.named_sublayers(include_self=True):
            path = path or type(layer).__name__
            layer.register_forward_pre_hook(functools.partial(self._enter, path))
            layer.register_forward_post_hook(functools.partial(self._leave, path))

    def around(self, training_step):
        """Wrap ``training_step`` to raise UserError at the first non-finite number."""

        @functools.wraps(training_step)
        def checked(*args, **kwargs):
            self._running, self._last_backward, self._message = [], "", ""
            try:
                self._switch(True)
                result = training_step(*args, **kwargs)
            except (RuntimeError, OSError) as error:  # OSError is raised inside recompute
                match = PADDLE_MESSAGE.search(str(error))
                if self._message:
                    raise UserError(self._message) from error
                if match is None:
                    raise
                raise UserError(self._operator_message(*match.groups())) from error
            finally:
                self._switch(False)
            if self._message:
                raise UserError(self._message)
            return result

        return checked

    def _switch(self, on: bool) -> None:
        if self._operators:
            paddle.set_flags({"FLAGS_check_nan_inf": on, "FLAGS_check_nan_inf_level": 0})

    def _enter(self, path: str, layer, inputs):
        self._running.append((path, layer, inputs))

    def _leave(self, path: str, layer, inputs, output):
        tensors = floats(output)
        for tensor in tensors:
            if numbers := describe_nonfinite(tensor):
                state = self._state(layer, inputs)
                raise UserError(f"the output of {path} contains {numbers}; {state}. {FIX}")
            if self._backward and not tensor.stop_gradient:
                tensor.register_hook(functools.partial(self._gradient, path))
        self._running.pop()
        if not self._running and not self._backward:
            self._switch(False)

    def _gradient(self, path: str, gradient):
        # Stored instead of raised: Paddle's engine would drop the exception's message.
        if not self._message and (numbers := describe_nonfinite(gradient)):
            source = (
                f"; it was computed by the backward pass of {self._last_backward}"
                if self._last_backward
                else ""
            )
            self._message = f"the gradient of the output of {path} contains {numbers}{source}. {FIX}"
        # A layer and its last sublayer return the same output; the sublayer is named.
        if not self._last_backward.startswith(f"{path}."):
            self._last_backward = path

    def _operator_message(self, nan: str, infinite: str, operator: str, dtype: str) -> str:
        numbers = _counted(int(nan), int(infinite))
        if self._running:
            path, layer, inputs = self._running[-1]
            return (
                f"the output of the operator {operator} ({dtype}) in {path} contains {numbers}; "
                f"{self._state(layer, inputs)}. {FIX}"
            )
        where = f"of {self._last_backward}" if self._last_backward else "after the last layer"
        return (
            f"the output of the operator {operator} ({dtype}) in the backward pass {where} "
            f"contains {numbers}; its inputs were finite. {FIX}"
        )

    def _state(self, layer, inputs) -> str:
        """Describe whether the inputs and the direct parameters of ``layer`` are finite."""
        parts = [("input", tensor) for tensor in floats(inputs)]
        parts += layer.named_parameters(include_sublayers=False)
        texts = [(name, describe_nonfinite(tensor)) for name, tensor in parts]
        bad = [f"its {name} contains {text}" for name, text in texts if text]
        if not parts:  # hooks receive no keyword arguments
            return "its inputs are keyword arguments, which are not checked"
        finite = " and ".join(dict.fromkeys(name for name, _ in parts))
        return " and ".join(bad) or f"its {finite} {'were' if len(parts) > 1 else 'was'} finite"


def describe_nonfinite(tensor: paddle.Tensor) -> str:
    """Count NaN and infinite elements, with dtype and shape of ``tensor``; "" if all are finite."""
    if not tensor._is_initialized():
        return ""
    # On the host, so that the check itself runs no operator.
    values = as_float64(tensor.detach().numpy())
    nan, infinite = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    if not (nan or infinite):
        return ""
    dtype = str(tensor.dtype).removeprefix("paddle.")
    return f"{_counted(nan, infinite)} among {values.size:,} elements ({dtype} {list(tensor.shape)})"


def _counted(nan: int, infinite: int) -> str:
    return " and ".join([f"{nan:,} NaN"] * bool(nan) + [f"{infinite:,} infinities"] * bool(infinite))
