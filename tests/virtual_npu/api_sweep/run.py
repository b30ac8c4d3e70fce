"""Runs one case on one place: inputs, call, cotangents, backward."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import paddle

from api_sweep.case import Case, map_draws
from api_sweep.inputs import Draw
from paddle_fused import captured
from paddle_fused.paddle_release import before

SEED = 2026

captured.apply_patches()  # else one of the many captures may end the process


@dataclass(frozen=True)
class Result:
    """What a case produced: arrays to compare, and the places of the tensors they came from."""

    outputs: list[numpy.ndarray]
    gradients: list[numpy.ndarray | None]
    places: list[str]


def resolve(api: str) -> Callable[..., Any]:
    """The object with a dotted public name."""
    parts = api.split(".")
    for length in range(max(len(parts) - 1, 1), 0, -1):
        try:
            target = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            target = getattr(target, part)
        return target
    raise ValueError(f"{api}: no such public API")


def run(case: Case, place: str) -> Result:
    """Runs ``case`` with the default device ``place`` ("cpu" or "npu")."""
    paddle.set_device(place)
    paddle.seed(SEED)
    random = numpy.random.RandomState(zlib.crc32(case.api.encode()))
    leaves: list[paddle.Tensor] = []
    tensors: list[paddle.Tensor] = []

    def realise(draw: Draw) -> Slot:
        leaf, tensor = _tensor(draw, random, case.compares_gradient)
        leaves.append(leaf)
        tensors.append(tensor)
        return Slot(len(tensors) - 1)

    args, kwargs = map_draws(realise, case.args), map_draws(realise, case.kwargs)
    function, parameters, buffers = _callable(case, random)

    @paddle.jit.not_to_static  # to_static shall trace the API, not rewrite the binding of its arguments
    def called(inputs: list):
        return function(*_bound(args, inputs), **_bound(kwargs, inputs))

    def program(inputs: list):
        return called(inputs)

    if case.static:
        program = paddle.jit.to_static(program, full_graph=True)
    produced = _flatten(program(tensors)) + _flatten(buffers)
    gradients = []
    if case.compares_gradient:
        _backward(produced, random)
        gradients = [leaf.grad for leaf in leaves + parameters if not leaf.stop_gradient]
    return Result(
        outputs=[_array(output) for output in produced],
        gradients=[None if gradient is None else gradient.numpy() for gradient in gradients],
        places=[str(tensor.place) for tensor in produced + gradients if isinstance(tensor, paddle.Tensor)],
    )


@dataclass(frozen=True)
class Slot:
    """The position of a tensor among the inputs, which to_static wants as arguments of the program."""

    index: int


def _bound(structure: Any, tensors: list) -> Any:
    if isinstance(structure, Slot):
        return tensors[structure.index]
    if isinstance(structure, list | tuple):
        return type(structure)(_bound(item, tensors) for item in structure)
    if isinstance(structure, dict):
        return {key: _bound(item, tensors) for key, item in structure.items()}
    return structure


def _tensor(draw: Draw, random: numpy.random.RandomState, backward: bool) -> tuple[Any, Any]:
    """The leaf that owns the memory, and the tensor the API is given (a view of it when strided)."""
    array = draw.array(random)
    if draw.strided and array.ndim > 1:
        array = numpy.ascontiguousarray(array.T)
    elif draw.strided and array.ndim == 1:
        array = numpy.repeat(array, 2)
    leaf = paddle.to_tensor(array, stop_gradient=not (draw.differentiable and backward))
    if not draw.strided or array.ndim == 0:
        return leaf, leaf
    view = leaf.transpose(list(range(array.ndim))[::-1]) if array.ndim > 1 else leaf[::2]
    return leaf, view


def _callable(case: Case, random: numpy.random.RandomState) -> tuple[Callable[..., Any], list, list]:
    """The callable, with its parameters and buffers."""
    api, parameters, buffers = resolve(case.api), [], []
    if case.build is not None:
        arguments, options = case.build
        api = api(*arguments, **options)
        parameters, buffers = list(api.parameters()), list(api.buffers())
        for parameter in parameters:
            parameter.set_value((0.5 * random.standard_normal(parameter.shape)).astype("float32"))
    if case.call is not None:
        return (lambda *args, **kwargs: case.call(api, *args, **kwargs)), parameters, buffers
    if case.api.endswith("_") and not case.api.endswith("__"):
        return (lambda x, *args, **kwargs: _in_place(api, x, *args, **kwargs)), parameters, buffers
    return api, parameters, buffers


def _in_place(api: Callable[..., Any], x: paddle.Tensor, *args: Any, **kwargs: Any) -> list[paddle.Tensor]:
    """In-place APIs change their first argument: they get a copy, which is compared like a return value."""
    target = x.clone()
    returned = api(target, *args, **kwargs)
    return [target] if returned is target else [target, returned]


def _flatten(output: Any) -> list[Any]:
    if isinstance(output, list | tuple):
        return [leaf for item in output for leaf in _flatten(item)]
    if isinstance(output, dict):
        return [leaf for item in output.values() for leaf in _flatten(item)]
    if isinstance(output, paddle.Tensor) and output.is_sparse_coo():
        return [output.indices(), output.values()]
    if isinstance(output, paddle.Tensor) and output.is_sparse_csr():
        return [output.crows(), output.cols(), output.values()]
    absent = output is None or (isinstance(output, paddle.Tensor) and not _has_place(output))
    return [] if absent else [output]


def _has_place(tensor: paddle.Tensor) -> bool:
    """False for optional outputs and buffers that no kernel has filled."""
    try:
        return "undefined" not in str(tensor.place)
    except RuntimeError:
        return False


def _backward(outputs: list[Any], random: numpy.random.RandomState) -> None:
    """Backward from all differentiable outputs, with fixed pseudo-random cotangents."""
    tensors = {id(output): output for output in outputs if isinstance(output, paddle.Tensor)}
    roots = [tensor for tensor in tensors.values() if not tensor.stop_gradient]
    if not roots:
        raise AssertionError(
            "a gradient is to be compared, but no output has one: declare the case forward_only"
        )
    cotangents = []
    for root in roots:
        weights = random.standard_normal(tuple(root.shape))
        if root.is_complex():
            weights = weights + 1j * random.standard_normal(tuple(root.shape))
        cotangents.append(paddle.to_tensor(numpy.asarray(weights, _array(root).dtype)))
    if before(3, 1) and not any(root.is_complex() for root in roots):
        # 3.0 fails for two outputs of one operator.
        paddle.add_n(
            [(root * weight).sum() for root, weight in zip(roots, cotangents, strict=True)]
        ).backward()
    else:
        paddle.autograd.backward(roots, cotangents)


def _array(output: Any) -> numpy.ndarray:
    return output.numpy() if isinstance(output, paddle.Tensor) else numpy.asarray(output)
