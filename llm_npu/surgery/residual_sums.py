"""The residual sums of a decoder layer, fused with the norm that reads them.

    residual_out = residual + dropout(output of the sub-layer),  output of the norm = rms_norm(residual_out)

The forward of a layer adds ``residual`` in plain Python, which cannot be replaced by setting an attribute.
Its source is recompiled with a call in place of each sum:

    hidden_states = residual + hidden_states
    hidden_states = residual_sum(self, "post_attention_layernorm", residual, hidden_states)

With dropout before the sum, ``self.hidden_dropout(hidden_states) + residual``, the dropout is an argument.

The layer continues with the sum as before, and the norm layer stores the fused result. If the norm is called
with exactly that tensor, it returns the stored result; otherwise it computes the norm. Any code may run
between two layers.
"""

from __future__ import annotations
import __future__

import ast
import functools
import inspect
import linecache
import os
import sys
import textwrap
import types
import weakref
from collections.abc import Callable

import paddle

import paddle_fused
from llm_npu.surgery.fusable_layers import is_plain

NORM, NEXT = "post_attention_layernorm", "next_norm"  # the norm that reads a sum
NORMS = "_norms_of_sums"  # attribute of a layer: {which: weak reference to the norm}
DROPOUT = "hidden_dropout"  # attribute of a layer: the dropout before its sums
UPSCALED = "upscale_in_train"  # a mode of dropout
WAITING, READS = "_norm_of_sum", "_reads_sum"  # attributes of a norm: stored result, NORM or NEXT
RECOMPUTE = {"recompute.py", "recompute_hybrid.py", "refined_recompute.py"}  # of Paddle and PaddleNLP


@paddle.jit.not_to_static
def residual_sum(layer, which: str, residual, x, dropout=None):
    """``residual + dropout(x)``; stores the normalized sum at the norm ``which`` of ``layer``, if any.

    Args:
        dropout: a layer, or None.
    """
    norm = layer.__dict__[NORMS].get(which, lambda: None)()
    probability = probability_of(dropout)
    is_fused = norm is not None and probability is not None and _fits(residual, x, norm.weight)
    if not is_fused or (which == NEXT and _is_watched(layer)):
        return residual + (x if dropout is None else dropout(x))
    out, total = sum_and_norm(norm, x, residual, probability)
    norm.__dict__[WAITING] = weakref.ref(total), out
    return total


def sum_and_norm(norm, x, residual, probability: float) -> tuple:
    """(norm of the sum, sum), sum = residual + Dropout(x)."""
    if probability > 0:
        return paddle_fused.dropout_add_rms_norm(
            x, residual, norm.weight, None, probability, norm.variance_epsilon, prenorm=True
        )
    return paddle_fused.add_rms_norm(x, residual, norm.weight, norm.variance_epsilon)


def probability_of(dropout) -> float | None:
    """The current drop probability of ``dropout``, a layer or None; None for other kinds of dropout."""
    if dropout is None:
        return 0.0
    if not is_plain(dropout, paddle.nn.Dropout) or dropout.axis is not None or dropout.mode != UPSCALED:
        return None
    return float(dropout.p) if dropout.training else 0.0


@paddle.jit.not_to_static
def norm_of_sum(norm, inputs):
    """The result that ``norm`` stores for these inputs, or None.

    Args:
        inputs: hidden states, or a stage's tuple that begins with them.
    """
    waiting, norm.__dict__[WAITING] = norm.__dict__[WAITING], None
    hidden_states = inputs[0] if isinstance(inputs, tuple) else inputs
    return waiting[1] if waiting is not None and waiting[0]() is hidden_states else None


def _fits(residual, x, weight) -> bool:
    """Whether the operator accepts these inputs: same dtype and shape, and a single mesh."""
    if not (x.dtype == residual.dtype == weight.dtype and list(x.shape) == list(residual.shape)):
        return False
    meshes = [tensor.process_mesh for tensor in (residual, weight) if _is_dist(tensor)]
    return len(meshes) < 2 or meshes[0] == meshes[1]


def _is_dist(x) -> bool:
    return x.is_dist() if isinstance(x, paddle.Tensor) else x.is_dist_dense_tensor_type()


def _is_watched(layer) -> bool:
    """Whether the layer must return a plain sum.

    Recompute saves the inputs of a layer and would save a second tensor. Hooks on the layer's output, for
    example of --check_nan_inf, see the gradient through the next norm only with a plain sum.
    """
    return bool(layer._forward_post_hooks) or _is_recomputed()


def _is_recomputed() -> bool:
    frame = sys._getframe(1)
    while frame is not None:
        if os.path.basename(frame.f_code.co_filename) in RECOMPUTE:
            return True
        frame = frame.f_back
    return False


class CannotRewrite(Exception):
    """The residual sums of a function cannot be replaced; the message is the reason."""


@functools.cache
def with_sums(function: Callable, *norms: str) -> Callable:
    """``function``, a method of a decoder layer, with its residual sums as calls of ``residual_sum``.

    Raises CannotRewrite if the function has a different number of sums, or no source.

    Args:
        norms: the norm that reads each sum, in order; "" leaves the sum unchanged.
    """
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, ValueError, SyntaxError) as error:
        raise CannotRewrite(f"the source of {function.__qualname__} cannot be read") from error
    if definition.decorator_list or function.__closure__:
        raise CannotRewrite(f"{function.__qualname__} is decorated, or refers to its class")
    sums = _Sums(norms)
    text = ast.unparse(ast.fix_missing_locations(sums.visit(definition)))
    if sums.count != len(norms):
        raise CannotRewrite(f"{function.__qualname__} adds residual {sums.count} times, not {len(norms)}")
    # Like generated functions in the standard library: to_static and tracebacks read the source there.
    file = f"<{function.__module__}.{function.__qualname__} with residual_sum>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    flags = function.__code__.co_flags & __future__.annotations.compiler_flag
    scope = {**function.__globals__, residual_sum.__name__: residual_sum}
    exec(compile(text, file, "exec", flags, dont_inherit=True), scope)
    rewritten: types.FunctionType = scope[function.__name__]
    rewritten.__qualname__ = function.__qualname__
    return rewritten


class _Sums(ast.NodeTransformer):
    """Replaces ``residual + x`` and ``x + residual``; ``count`` is the number of sums."""

    def __init__(self, norms: tuple[str, ...]):
        self.norms, self.count = norms, 0

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        sides = [node.left, node.right]
        residual = next(
            (side for side in sides if isinstance(side, ast.Name) and side.id == "residual"), None
        )
        if residual is None or not isinstance(node.op, ast.Add):
            return self.generic_visit(node)
        sides.remove(residual)
        which = self.norms[self.count] if self.count < len(self.norms) else ""
        self.count += 1
        other = self.visit(sides[0])
        if not which:
            return ast.BinOp(residual, node.op, other)
        call = ast.Name(residual_sum.__name__, ast.Load())
        added = [other.args[0], other.func] if _is_dropout(other) else [other]
        return ast.Call(call, [ast.Name("self", ast.Load()), ast.Constant(which), residual, *added], [])


def _is_dropout(node: ast.AST) -> bool:
    """Whether ``node`` is ``self.hidden_dropout(x)``."""
    return isinstance(node, ast.Call) and ast.unparse(node.func) == f"self.{DROPOUT}" and len(node.args) == 1
