"""Apply the registered kernels to a model, and remove them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

import paddle

from llm_npu.core.errors import UserError

from . import swap
from .fusable_layers import MODELS
from .registry import Kernel, NotFused, Replacement, find, scan
from .report import Report, Row


def apply_fused_kernels(
    model: paddle.nn.Layer,
    kernels: str | Iterable[str] = "auto",
    strict: bool = False,
    **switches: bool | None,
) -> Report:
    """Make ``model`` use the fused operators, and report on every layer that computes one.

    Previously applied kernels are removed first. May be called before or after the model is sharded, wrapped
    for LoRA or set up for recompute, but must be called before ``paddle.jit.to_static``.

    Args:
        kernels: ``"auto"`` for all registered kernels except ``linear_cross_entropy``, or a list of names,
            for example ``["rms_norm", "attention"]``.
        strict: raise an error for a layer that computes an operator of these kernels but cannot be fused.
        switches: ``use_npu_fusion_attention``, ``use_fused_rms_norm``, ``use_fused_rope``,
            ``use_fused_swiglu``, ``use_fused_moe``, ``use_fused_dropout_add_layer_norm``,
            ``use_fused_geglu``: False disables the kernel.
            ``use_fused_add_rms_norm``: also, True enables it where it is off by default.
            ``use_fused_linear_cross_entropy``: True adds it to ``"auto"``. In training, a model then returns
            None in place of the logits.

    Raises:
        UserError: for a model without a matching layer, for unknown names, and if ``strict``.
    """
    if not isinstance(model, paddle.nn.Layer):
        raise UserError(f"model is a {type(model).__name__}; accepted: a paddle.nn.Layer")
    chosen = _chosen(kernels, switches)
    earlier = [(layer, swap.remove(layer)) for layer in _swapped(model)]
    try:
        if kernels == "auto":
            chosen = [
                kernel for kernel in chosen if switches.get(kernel.switch) or not kernel.left_out(model)
            ]
        report, swaps = _plan(model, chosen)
        _check(report, chosen, strict)
    except ValueError:
        for layer, attributes in earlier:
            layer.__dict__.update(attributes)
        raise
    for layer, replacements in swaps:
        swap.install(layer, replacements)
    return report


def _plan(model, chosen: list[Kernel]) -> tuple[Report, list[tuple[paddle.nn.Layer, dict[str, Replacement]]]]:
    rows, swaps = [], []
    answers_of = {kernel.name: kernel.answers(model) for kernel in chosen}
    for path, layer in _named_layers(model):
        answers = {name: _checked(answer(layer), layer) for name, answer in answers_of.items()}
        replacements = {name: answer for name, answer in answers.items() if isinstance(answer, Replacement)}
        for name, answer in answers.items():
            if isinstance(answer, NotFused):
                rows.append(Row(path, type(layer).__name__, name, False, answer.reason))
            elif answer is not None and answer.is_site:
                rows.append(Row(path, type(layer).__name__, name, True))
        if replacements:
            swaps.append((layer, replacements))
    # A decoder passes fused layers inputs that unfused layers cannot read.
    incomplete = {row.operator for row in rows if not row.fused}
    for _, replacements in swaps:
        for name in incomplete & replacements.keys():
            if not (replacements[name].is_site or replacements[name].independent):
                del replacements[name]
    return Report(type(model).__name__, rows), [swap for swap in swaps if swap[1]]


def _checked(answer, layer) -> Replacement | NotFused | None:
    if isinstance(answer, Replacement) and answer.is_site and (name := swap.missed_call(layer, answer)):
        return NotFused(f"its forward does not call {name}")
    return answer


def applied_kernels(model: paddle.nn.Layer) -> list[str]:
    """The names of the kernels installed on the layers of ``model``."""
    return sorted({name for layer in _swapped(model) for name in swap.kernels_of(layer)})


def remove_fused_kernels(model: paddle.nn.Layer) -> int:
    """Undo ``apply_fused_kernels``; returns the number of restored layers."""
    swapped = _swapped(model)
    for layer in swapped:
        swap.remove(layer)
    return len(swapped)


def _swapped(model) -> list[paddle.nn.Layer]:
    return [layer for _, layer in _named_layers(model) if swap.is_swapped(layer)]


def _named_layers(model) -> Iterator[tuple[str, paddle.nn.Layer]]:
    """The layers of ``model`` by path, including a pipeline's criterion, which it keeps in a list."""
    for path, layer in model.named_sublayers(include_self=True):
        yield path, layer
        for criterion in layer.__dict__.get("_loss_fn") or ():
            if isinstance(criterion, paddle.nn.Layer):
                yield f"{path}.loss_fn".lstrip("."), criterion


def _chosen(kernels: str | Iterable[str], switches: dict[str, bool]) -> list[Kernel]:
    registered = scan()
    if kernels == "auto":
        decided = {name: on for name, on in switches.items() if on is not None}
        chosen = [kernel for kernel in registered.values() if decided.get(kernel.switch, kernel.in_auto)]
    elif isinstance(kernels, str):
        names = ", ".join(registered)
        raise UserError(f'kernels is {kernels!r}; accepted: "auto" or a list of names: {names}')
    else:
        chosen = [find(name) for name in kernels]
    known = [kernel.switch for kernel in registered.values()]
    for switch, on in switches.items():
        if switch not in known:
            raise UserError(f"Unknown switch {switch!r}; accepted: {', '.join(known)}")
        if not isinstance(on, bool) and on is not None:
            raise UserError(f"{switch} is {on!r}; accepted: True, False, or None for the default")
    chosen = [kernel for kernel in chosen if switches.get(kernel.switch) is not False]
    if not chosen:
        raise UserError(f"No kernel is left to apply; accepted: any of {', '.join(registered)}")
    return chosen


class NoMatchingLayer(UserError):
    """The model has no layer that the kernels match."""


def _check(report: Report, chosen: list[Kernel], strict: bool) -> None:
    if not report.rows:
        nearest = difflib.get_close_matches(report.model, MODELS, n=1, cutoff=0.0)[0]
        names = ", ".join(kernel.name for kernel in chosen)
        raise NoMatchingLayer(
            f"{report.model} has no layer that the kernels ({names}) match. The most similar supported model "
            f"is {nearest}; all: {', '.join(MODELS)}."
        )
    unfused = [row for row in report.rows if not row.fused]
    if strict and unfused:
        first = "; ".join(f"{row.layer} ({row.operator}): {row.reason}" for row in unfused[:3])
        raise UserError(
            f"{len(unfused)} of {len(report.rows)} layers of {report.model} cannot be fused: {first}. "
            "Omit strict to fuse the other layers, or switch these kernels off."
        )
