"""Checks a model, its optimizer and a batch before the first step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import paddle
from paddle import nn
from paddle.jit.dy2static.program_translator import (
    ASTStaticFunction,
    StaticFunction,
    SymbolicStaticFunction,
)

from llm_npu.core.errors import UserError

from . import sources
from .placing import dtype_of, of_program
from .report import WIDE, Finding, Report, report_of
from .watching import watch


def audit(model: nn.Layer, optimizer=None, sample=None, scaler=None) -> Report:
    """Report the parts of ``model`` that would leave a card's cores because of their dtype.

    Covers the default dtype, and parameters, buffers and other tensors and arrays in the layers. Changes
    nothing.

    Args:
        optimizer: also check its states and its learning rate.
        sample: also check this input, and the operators of a forward pass without gradients. A dictionary of
            arguments, a list or tuple of them, or a tensor. A ``paddle.jit.to_static`` model is not run; the
            program captured for the sample is checked instead.
        scaler: also check the scale of this GradScaler.

    Raises:
        UserError: if ``model`` is not a layer.
    """
    if not isinstance(model, nn.Layer):
        raise UserError(
            f"audit requires a paddle.nn.Layer, not a {type(model).__name__}; pass the model itself"
        )
    findings = [*of_default_dtype(), *of_model(model)]
    checked = f"{len(model.parameters())} parameters, {len(model.buffers())} buffers"
    if optimizer is not None:
        findings += of_optimizer(optimizer)
        checked += ", the optimizer"
    if scaler is not None:
        findings += of_scaler(scaler)
        checked += ", the loss scaling"
    if sample is not None:
        findings += [*of_batch(sample), *_of_call(model, sample)]
        checked += ", a batch and the operators that process it"
    return report_of(findings, checked)


def audit_program(program, model: nn.Layer | None = None) -> Report:
    """The operators of a PIR program that would leave a card's cores, with the lines that created them.

    Args:
        model: searched for the layer of each operator.

    Raises:
        UserError: if ``program`` is not a PIR program.
    """
    if not isinstance(program, paddle.pir.Program):
        raise UserError(
            f"audit_program requires a PIR program, not a {type(program).__name__}; pass main_program of a "
            "concrete program, or paddle.static.default_main_program() under FLAGS_enable_pir_api=1"
        )
    count = len(program.global_block().ops)
    return report_of(of_program(program, model), f"a program of {count} operators")


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
    """The program of one call. SOT splits a function into several programs, so it is captured again."""
    if isinstance(forward, SymbolicStaticFunction):
        forward = ASTStaticFunction(forward.dygraph_function)
    return forward.get_concrete_program(*args, **kwargs)[0].main_program


def arguments_of(sample) -> tuple[tuple, dict]:
    """Convert a sample to arguments for ``model(*args, **kwargs)``."""
    if isinstance(sample, Mapping):
        return (), dict(sample)
    return (tuple(sample) if isinstance(sample, (list, tuple)) else (sample,)), {}


def wide(kind: str, name: str, value: object, layer: str = "", source=None) -> Iterator[Finding]:
    """Yield a finding if ``value`` is a float64 tensor."""
    dtype = dtype_of(value)
    if dtype in WIDE:
        yield Finding(kind, name, dtype, "aicpu", tuple(value.shape), layer, source)


def of_model(model: nn.Layer) -> Iterator[Finding]:
    """Check parameters, buffers and other attributes of the layers that are tensors or arrays."""
    for path, layer in model.named_sublayers(include_self=True):
        kinds = (("parameter", layer._parameters), ("buffer", layer._buffers), ("constant", vars(layer)))
        for kind, values in kinds:
            for name, value in list(values.items()):
                if kind == "constant" and isinstance(value, np.generic):
                    continue  # a scalar, which Paddle's operators treat as a Python number
                if dtype_of(value) in WIDE:
                    source = sources.of_attribute(path, layer, name, model)
                    yield from wide(kind, f"{path}.{name}".lstrip("."), value, path, source)


def of_default_dtype() -> Iterator[Finding]:
    """Check the default dtype, which applies to tensors created from Python floats."""
    default = paddle.get_default_dtype()
    if default in WIDE:
        yield Finding("default dtype", "paddle.get_default_dtype()", default, "aicpu")


def of_optimizer(optimizer) -> Iterator[Finding]:
    """Check the optimizer's states, master weights, learning rates, and the schedule's attributes."""
    inner = optimizer
    while hasattr(inner, "_inner_opt"):  # a wrapper for distributed training
        inner = inner._inner_opt
    for state, values in inner._accumulators.items():
        for parameter, value in values.items():
            if dtype_of(value) in WIDE:
                source = sources.mention(type(inner), state)
                yield from wide("optimizer state", f"{state} of {parameter}", value, source=source)
    for parameter, value in inner._master_weights.items():
        yield from wide("master weight", parameter, value)
    for value in inner._learning_rate_map.values():
        yield from wide("learning rate", "the optimizer's tensor", value)
    schedule = inner._learning_rate
    if isinstance(schedule, paddle.optimizer.lr.LRScheduler):
        for name, value in vars(schedule).items():
            if not isinstance(value, np.generic):
                source = sources.assignment(type(schedule), name)
                yield from wide("learning rate", f"{type(schedule).__name__}.{name}", value, source=source)
    else:
        yield from wide("learning rate", "learning_rate", schedule)


def of_scaler(scaler) -> Iterator[Finding]:
    """Check the loss scale of a GradScaler."""
    for name, value in vars(scaler).items():
        yield from wide("loss scaling", f"{type(scaler).__name__}.{name.lstrip('_')}", value)


def of_batch(batch: object, name: str = "sample") -> Iterator[Finding]:
    """Check tensors and arrays in nested dictionaries, lists and tuples."""
    if isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from of_batch(value, f"{name}[{key!r}]")
    elif isinstance(batch, (list, tuple)):
        for position, value in enumerate(batch):
            yield from of_batch(value, f"{name}[{position}]")
    else:
        yield from wide("input", name, batch)
