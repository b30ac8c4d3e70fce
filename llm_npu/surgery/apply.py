"""Applies the registered kernels to a model, and removes them."""

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

    Kernels that were applied before are removed first. May be called before or after the model is sharded,
    wrapped for LoRA or given recompute, and before ``paddle.jit.to_static``.

    Args:
        kernels: ``"auto"`` for all registered ones but ``linear_cross_entropy``, or names, such as
            ``["rms_norm", "attention"]``.
        strict: a layer that computes an operator of these kernels and cannot be fused is an error.
        switches: ``use_npu_fusion_attention``, ``use_fused_rms_norm``, ``use_fused_rope``,
            ``use_fused_swiglu``, ``use_fused_moe``, ``use_fused_dropout_add_layer_norm``,
            ``use_fused_geglu``: False leaves the kernel out.
            ``use_fused_add_rms_norm``: the same, and True takes it where it is off by default.
            ``use_fused_linear_cross_entropy``: True adds it to ``"auto"``. In training, a model then returns
            None instead of logits beside its loss.

    Raises:
        UserError: for a model without a layer that these kernels know, for unknown names, and if ``strict``.
    """
    if not isinstance(model, paddle.nn.Layer):
        raise UserError(f"model is a {type(model).__name__}; accepted: a paddle.nn.Layer.")
    chosen = _chosen(kernels, switches)
    earlier = [(layer, swap.remove(layer)) for layer in _swapped(model)]
    try:
        if kernels == "auto":
            chosen = [each for each in chosen if switches.get(each.switch) or not each.left_out(model)]
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
        replacements = {name: each for name, each in answers.items() if isinstance(each, Replacement)}
        for name, each in answers.items():
            if isinstance(each, NotFused):
                rows.append(Row(path, type(layer).__name__, name, False, each.reason))
            elif each is not None and each.is_site:
                rows.append(Row(path, type(layer).__name__, name, True))
        if replacements:
            swaps.append((layer, replacements))
    # Unfused layers could not read what the decoder passes to fused ones.
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
    """Undo ``apply_fused_kernels``; returns the number of layers that it had changed."""
    swapped = _swapped(model)
    for layer in swapped:
        swap.remove(layer)
    return len(swapped)


def _swapped(model) -> list[paddle.nn.Layer]:
    return [layer for _, layer in _named_layers(model) if swap.is_swapped(layer)]


def _named_layers(model) -> Iterator[tuple[str, paddle.nn.Layer]]:
    """The layers of ``model`` by path, with the criterion of a pipeline, which is in a list there."""
    for path, layer in model.named_sublayers(include_self=True):
        yield path, layer
        for criterion in layer.__dict__.get("_loss_fn") or ():
            if isinstance(criterion, paddle.nn.Layer):
                yield f"{path}.loss_fn".lstrip("."), criterion


def _chosen(kernels: str | Iterable[str], switches: dict[str, bool]) -> list[Kernel]:
    registered = scan()
    if kernels == "auto":
        given = {name: on for name, on in switches.items() if on is not None}
        chosen = [each for each in registered.values() if given.get(each.switch, each.in_auto)]
    elif isinstance(kernels, str):
        names = ", ".join(registered)
        raise UserError(f'kernels is {kernels!r}; accepted: "auto" or a list of names: {names}.')
    else:
        chosen = [find(name) for name in kernels]
    known = [kernel.switch for kernel in registered.values()]
    for switch, on in switches.items():
        if switch not in known:
            raise UserError(f"There is no switch {switch!r}; accepted: {', '.join(known)}.")
        if not isinstance(on, bool) and on is not None:
            raise UserError(f"{switch} is {on!r}; accepted: True, False, or None for the default.")
    chosen = [kernel for kernel in chosen if switches.get(kernel.switch) is not False]
    if not chosen:
        raise UserError(f"No kernel is left to apply; accepted: some of {', '.join(registered)}.")
    return chosen


class NoMatchingLayer(UserError):
    """A model without a layer that the kernels know."""


def _check(report: Report, chosen: list[Kernel], strict: bool) -> None:
    if not report.rows:
        nearest = difflib.get_close_matches(report.model, MODELS, n=1, cutoff=0.0)[0]
        names = ", ".join(kernel.name for kernel in chosen)
        raise NoMatchingLayer(
            f"{report.model} has no layer that the kernels ({names}) know. The nearest supported model is "
            f"{nearest}; all: {', '.join(MODELS)}."
        )
    unfused = [row for row in report.rows if not row.fused]
    if strict and unfused:
        first = "; ".join(f"{row.layer} ({row.operator}): {row.reason}" for row in unfused[:3])
        raise UserError(
            f"{len(unfused)} of {len(report.rows)} layers of {report.model} cannot be fused: {first}. "
            "Leave strict out to fuse the others, or switch these kernels off."
        )
