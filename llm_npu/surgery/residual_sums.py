"""The sums of residuals in a decoder layer, each computed with the norm that reads it.

    residual_out = residual + dropout(out of the sub-layer),  norm's result = rms_norm(residual_out)

The forward of a layer adds ``residual`` in plain Python, which no attribute of the layer replaces. Its source
is compiled again with a call in place of each sum:

    hidden_states = residual + hidden_states
    hidden_states = residual_sum(self, "post_attention_layernorm", residual, hidden_states)

With dropout before the sum, ``self.hidden_dropout(hidden_states) + residual``, the call takes the dropout.

The layer continues with the sum, as before. The norm's result waits at the norm. Called with that very
tensor, the norm returns it; called with another, it computes its own. Any code may stand between two layers.
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

NORM, NEXT = "post_attention_layernorm", "next_norm"  # which norm reads a sum
NORMS = "_norms_of_sums"  # attribute of a layer: {which: weak reference to the norm}
DROPOUT = "hidden_dropout"  # attribute of a layer: the dropout before its sums
UPSCALED = "upscale_in_train"  # a mode of dropout
WAITING, READS = "_norm_of_sum", "_reads_sum"  # attributes of a norm: what waits or None, and which it is
RECOMPUTE = {"recompute.py", "recompute_hybrid.py", "refined_recompute.py"}  # of Paddle and PaddleNLP


@paddle.jit.not_to_static
def residual_sum(layer, which: str, residual, x, dropout=None):
    """``residual + dropout(x)``; the norm ``which`` of ``layer``, if it has one, gets the norm of it.

    ``dropout``: a layer, or None.
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
    """The probability with which ``dropout``, a layer or None, drops elements now.

    None if the operator does not compute the same.
    """
    if dropout is None:
        return 0.0
    if not is_plain(dropout, paddle.nn.Dropout) or dropout.axis is not None or dropout.mode != UPSCALED:
        return None
    return float(dropout.p) if dropout.training else 0.0


@paddle.jit.not_to_static
def norm_of_sum(norm, inputs):
    """What waits at ``norm`` for these inputs, or None.

    ``inputs``: hidden states, or a stage's tuple that begins with them.
    """
    waiting, norm.__dict__[WAITING] = norm.__dict__[WAITING], None
    hidden_states = inputs[0] if isinstance(inputs, tuple) else inputs
    return waiting[1] if waiting is not None and waiting[0]() is hidden_states else None


def _fits(residual, x, weight) -> bool:
    """Whether the operator takes them: it neither casts nor broadcasts, and has one mesh."""
    if not (x.dtype == residual.dtype == weight.dtype and list(x.shape) == list(residual.shape)):
        return False
    meshes = [each.process_mesh for each in (residual, weight) if _is_dist(each)]
    return len(meshes) < 2 or meshes[0] == meshes[1]


def _is_dist(x) -> bool:
    return x.is_dist() if isinstance(x, paddle.Tensor) else x.is_dist_dense_tensor_type()


def _is_watched(layer) -> bool:
    """Whether only a plain sum may leave the layer.

    Recompute keeps what enters a layer, and would keep a second tensor. And hooks of the layer's output, such
    as those of --check_nan_inf, see the gradient that goes through the next norm in the plain sum only.
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
    """Why a function's sums cannot be replaced."""


@functools.cache
def with_sums(function: Callable, *norms: str) -> Callable:
    """``function``, a method of a decoder layer, with its sums of ``residual`` as calls of ``residual_sum``.

    ``norms``: for each sum in turn, the norm that reads it; "" leaves the sum as it is. CannotRewrite if the
    function has another number of sums, or no source.
    """
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, ValueError, SyntaxError) as error:
        raise CannotRewrite(f"the source of {function.__qualname__} cannot be read") from error
    if definition.decorator_list or function.__closure__:
        raise CannotRewrite(f"{function.__qualname__} is decorated, or refers to its class")
    sums = _Sums(norms)
    text = ast.unparse(ast.fix_missing_locations(sums.visit(definition)))
    if sums.found != len(norms):
        raise CannotRewrite(f"{function.__qualname__} adds residual {sums.found} times, not {len(norms)}")
    # As the standard library's own generated functions: to_static and tracebacks read the source there.
    file = f"<{function.__module__}.{function.__qualname__} with residual_sum>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    flags = function.__code__.co_flags & __future__.annotations.compiler_flag
    scope = {**function.__globals__, residual_sum.__name__: residual_sum}
    exec(compile(text, file, "exec", flags, dont_inherit=True), scope)
    made: types.FunctionType = scope[function.__name__]
    made.__qualname__ = function.__qualname__
    return made


class _Sums(ast.NodeTransformer):
    """Replaces ``residual + x`` and ``x + residual``; ``found`` counts them."""

    def __init__(self, norms: tuple[str, ...]):
        self.norms, self.found = norms, 0

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        sides = [node.left, node.right]
        residual = next(
            (each for each in sides if isinstance(each, ast.Name) and each.id == "residual"), None
        )
        if residual is None or not isinstance(node.op, ast.Add):
            return self.generic_visit(node)
        sides.remove(residual)
        which = self.norms[self.found] if self.found < len(self.norms) else ""
        self.found += 1
        other = self.visit(sides[0])
        if not which:
            return ast.BinOp(residual, node.op, other)
        call = ast.Name(residual_sum.__name__, ast.Load())
        added = [other.args[0], other.func] if _is_dropout(other) else [other]
        return ast.Call(call, [ast.Name("self", ast.Load()), ast.Constant(which), residual, *added], [])


def _is_dropout(node: ast.AST) -> bool:
    """Whether it is ``self.hidden_dropout(x)``."""
    return isinstance(node, ast.Call) and ast.unparse(node.func) == f"self.{DROPOUT}" and len(node.args) == 1
