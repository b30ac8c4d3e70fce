"""Checks a model, its optimizer and a batch before the first step."""

from __future__ import annotations

from collections.abc import Mapping

import paddle
from paddle import nn
from paddle.jit.dy2static.program_translator import (
    ASTStaticFunction,
    StaticFunction,
    SymbolicStaticFunction,
)

from llm_npu.core.errors import UserError

from . import programs, tensors
from .report import Finding, Report, report_of
from .watching import watch


def audit(model: nn.Layer, optimizer=None, sample=None, scaler=None) -> Report:
    """Reports the parts of this model that would leave a card's cores because of their dtype. It changes
    nothing.

    It covers parameters, buffers and other tensors and arrays in the layers, the default dtype, the states
    and the learning rate of ``optimizer``, the scale of ``scaler`` (a GradScaler), and with a ``sample`` (a
    dictionary of arguments, a list or tuple of them, or one tensor) the sample and the operators of one call
    of the model without gradients. For a model made by ``paddle.jit.to_static``, the operators are those of
    the program captured for the sample; it is not run. ValueError for a model that is not a layer.
    """
    if not isinstance(model, nn.Layer):
        raise UserError(f"audit takes a paddle.nn.Layer, not a {type(model).__name__}; give the model itself")
    findings = [*tensors.of_default_dtype(), *tensors.of_model(model)]
    checked = f"{len(model.parameters())} parameters, {len(model.buffers())} buffers"
    if optimizer is not None:
        findings += tensors.of_optimizer(optimizer)
        checked += ", the optimizer"
    if scaler is not None:
        findings += tensors.of_scaler(scaler)
        checked += ", the loss scaling"
    if sample is not None:
        findings += [*tensors.of_batch(sample), *_of_call(model, sample)]
        checked += ", a batch and the operators that compute it"
    return report_of(findings, checked)


def audit_program(program, model: nn.Layer | None = None) -> Report:
    """The operators of a PIR program that would leave a card's cores, with the lines that created them.

    ``model``: the layers to search for an operator's layer. ValueError for another kind of program.
    """
    if not isinstance(program, paddle.pir.Program):
        raise UserError(
            f"audit_program takes a PIR program, not a {type(program).__name__}; give the main_program of a "
            "concrete program, or paddle.static.default_main_program() under FLAGS_enable_pir_api=1"
        )
    count = len(program.global_block().ops)
    return report_of(programs.of_program(program, model), f"a program of {count} operators")


def _of_call(model: nn.Layer, sample) -> tuple[Finding, ...]:
    args, kwargs = arguments_of(sample)
    forward = model.forward
    if isinstance(forward, StaticFunction):
        return audit_program(_captured(forward, args, kwargs), model).findings
    state = paddle.get_rng_state()
    with paddle.no_grad(), watch(model, action="collect") as watched:
        model(*args, **kwargs)
    paddle.set_rng_state(state)
    return watched.report().findings


def _captured(forward: StaticFunction, args: tuple, kwargs: dict):
    """The program of one call. SOT, which follows bytecode, has no whole one: the function is captured
    anew."""
    if isinstance(forward, SymbolicStaticFunction):
        forward = ASTStaticFunction(forward.dygraph_function)
    return forward.get_concrete_program(*args, **kwargs)[0].main_program


def arguments_of(sample) -> tuple[tuple, dict]:
    """The arguments that a sample represents: ``model(*args, **kwargs)``."""
    if isinstance(sample, Mapping):
        return (), dict(sample)
    return (tuple(sample) if isinstance(sample, (list, tuple)) else (sample,)), {}
