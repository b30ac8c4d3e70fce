"""A model's outputs and gradients, fused or not, and how near they must be to float64.

The rule is that of tests/shared/precision.py, for root mean squares: from the same inputs, the fused model's
error against float64 may be twice that of the unfused model in the same dtype and on the same device, plus
one rounding of the largest value.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import paddle
import paddle.nn.functional as F
from precision import ROUNDING

from fused_models.rounding import round_otherwise
from fused_models.weights import VOCABULARY
from llm_npu.surgery import apply_fused_kernels

if TYPE_CHECKING:
    from fused_models.families import Family

BATCH, LENGTH = 2, 16
SHORTER = 11  # tokens of the last sequence of a padded batch
IGNORED = -100
OTHER_ROUNDINGS = range(2)  # seeds
SEEDS = 200
SIGMAS = 4.5  # of 200 seeds: fails for equal distributions in fewer than 1 of 10,000 runs


@dataclass(frozen=True)
class Batch:
    """Tokens and labels [B, S]; ``mask`` is 1 where there is a token and 0 where there is padding."""

    ids: np.ndarray
    labels: np.ndarray
    mask: np.ndarray | None = None


def random_batch(padded: bool = False, seed: int = 0) -> Batch:
    """Random tokens and those that follow; with ``padded`` the last sequence ends early."""
    tokens = np.random.default_rng(seed).integers(3, VOCABULARY, (BATCH, LENGTH + 1))
    ids, labels = tokens[:, :-1], tokens[:, 1:]
    if not padded:
        return Batch(ids, labels)
    mask = np.ones_like(ids)
    mask[-1, SHORTER:] = 0
    return Batch(np.where(mask, ids, 0), np.where(mask, labels, IGNORED), mask)


def built(family: Family, operator: str | None = None, dtype: str = "float32", **attributes):
    """The family's model on the current device with one ``operator`` fused, "all" of them, or none (None)."""
    model = family.build(dtype, **attributes)
    if operator not in ("moe", "all"):
        family.plain(model)
    if operator is not None:
        report = apply_fused_kernels(
            model, kernels=list(family.operators) if operator == "all" else [operator]
        )
        assert set(report.operators()) == set(fused_by(family, operator))
        assert report.count(fused=False) == 0, report
    return model


def fused_by(family: Family, operator: str | None) -> tuple[str, ...]:
    """The operators that the choice ``operator`` fuses in the family."""
    return () if operator is None else family.operators if operator == "all" else (operator,)


def loss_and_logits(family: Family, model, batch: Batch, operator: str | None = None, **inputs):
    """``inputs`` go to the model beside those of ``batch``."""
    ids, labels = paddle.to_tensor(batch.ids), paddle.to_tensor(batch.labels)
    if "attention_mask" not in inputs and batch.mask is not None:
        inputs["attention_mask"] = paddle.to_tensor(batch.mask)
    if family.criterion is None:
        loss, logits = model(input_ids=ids, labels=labels, **inputs)[:2]
        return loss, logits
    if "attention" not in fused_by(family, operator):
        # Where there is an npu, these models join a float mask with an int mask and stop, unless they get a
        # mask of four dimensions.
        inputs["attention_mask"] = paddle.to_tensor(_visible(batch))
    logits = model(input_ids=ids, **inputs)
    return family.criterion(model.config)(logits, labels), logits


def _visible(batch: Batch) -> np.ndarray:
    """bool [B, 1, S, S], True where a token sees another."""
    count, length = batch.ids.shape
    visible = np.tril(np.ones((length, length), bool))[None, None].repeat(count, 0)
    return visible if batch.mask is None else visible & batch.mask[:, None, None, :].astype(bool)


def results(family: Family, model, batch: Batch, operator: str | None = None, **inputs) -> dict:
    """Loss, logits and the gradient of every parameter, by name, as float64 arrays.

    Logits of padding are left out: nobody may use them.
    """
    loss, logits = loss_and_logits(family, model, batch, operator, **inputs)
    loss.backward()
    arrays = {"loss": array(loss), "logits": array(logits)[batch.labels != IGNORED]}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        arrays[name] = np.zeros(parameter.shape) if gradient is None else array(gradient)
    model.clear_gradients()
    return arrays


def array(tensor) -> np.ndarray:
    """The values in float64, of this process where the tensor is distributed."""
    tensor = tensor._local_value() if tensor.is_dist() else tensor
    wide = tensor if tensor.dtype == paddle.float64 else tensor.astype("float32")
    return wide.detach().numpy().astype(np.float64)


@functools.cache
def unfused(family: Family, device: str, dtype: str, padded: bool = False) -> list[dict]:
    """``unfused_results`` on this device."""
    paddle.set_device(device)
    return unfused_results(family, random_batch(padded), dtype)


def unfused_results(family: Family, batch: Batch, dtype: str = "float32", **inputs) -> list[dict]:
    """``results`` of the model without fused operators, as it is and with other roundings.

    The error of one run is a matter of luck; the noise floor is the largest of them.
    """
    models = [built(family, dtype=dtype) for _ in range(1 + len(OTHER_ROUNDINGS))]
    for seed, model in zip(OTHER_ROUNDINGS, models[1:], strict=True):
        round_otherwise(model, seed)
    return [results(family, model, batch, **inputs) for model in models]


@functools.cache
def truth(family: Family, padded: bool = False) -> dict:
    """``results`` in float64."""
    return float64_results(family, random_batch(padded))


def float64_results(family: Family, batch: Batch, **inputs) -> dict:
    """``results`` of the unfused model in float64, on the CPU place."""
    device = paddle.device.get_device()
    paddle.set_device("cpu")
    try:
        model = built(family.truth, dtype="float64")
        with float32_means_float64():
            return results(family.truth, model, batch, **inputs)
    finally:
        paddle.set_device(device)


@contextlib.contextmanager
def float32_means_float64():
    """The libraries' layers name float32 where they compute in more than 16 bits: float64 stays float64."""
    tensor, softmax = paddle.Tensor, F.softmax
    casts = {name: getattr(tensor, name) for name in ("astype", "cast")}

    def stays(cast):
        def cast_or_stay(x, dtype):
            narrows = x.dtype == paddle.float64 and dtype in ("float32", paddle.float32)
            return x if narrows else cast(x, dtype)

        return cast_or_stay

    limits = paddle.finfo
    try:
        # A mask's lowest number goes through float32, where that of float64 would be infinite.
        paddle.finfo = lambda dtype: limits(paddle.float32 if dtype == paddle.float64 else dtype)
        for name, cast in casts.items():
            setattr(tensor, name, stays(cast))
        F.softmax = lambda x, axis=-1, dtype=None, name=None: softmax(x, axis)
        yield
    finally:
        paddle.finfo = limits
        for name, cast in casts.items():
            setattr(tensor, name, cast)
        F.softmax = softmax


def assert_as_accurate(fused: dict, composed: list[dict], exact: dict, dtype: str) -> None:
    """The rule, for every result."""
    assert fused.keys() == composed[0].keys()
    beyond = []
    for name, error, allowed in errors(fused, composed, exact, dtype):
        if not error <= allowed:  # NaN, too
            beyond.append(f"{name}: {error:.3e}, allowed {allowed:.3e}")
    assert not beyond, "\n".join(beyond)


def errors(fused: dict, composed: list[dict], exact: dict, dtype: str):
    """For every result its name, error and allowed error, root mean squares: the largest of few numbers, and
    the loss, which is one, would be near the truth or not by luck."""
    for name, values in fused.items():
        error, *noise_floors = (
            _mean(array - exact[name]) for array in (values, *(run[name] for run in composed))
        )
        noise_floor = max(noise_floors)
        if name == "loss":  # logits that are off by e change it by 2 e at most
            noise_floor = 2 * max(np.abs(run["logits"] - exact["logits"]).max() for run in composed)
        yield name, error, 2 * noise_floor + ROUNDING[dtype] * _largest(exact, name)


def _largest(exact: dict, name: str) -> float:
    """The largest value of a result, or of a sum that is zero: the largest of its terms.

    The gradient of a bias that changes nothing, such as that of all keys, is such a sum, of the terms of its
    weight's gradient.
    """
    largest, weight = np.abs(exact[name]).max(), exact.get(f"{name.removesuffix('.bias')}.weight")
    if not name.endswith(".bias") or weight is None or largest > 1e-9 * np.abs(weight).max():
        return largest
    return np.abs(weight).max()


def _mean(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def assert_one_distribution(family, operator: str, **dropout) -> None:
    """Mean and variance of the training loss over seeds, within standard errors of their difference.

    ``operator``: what is fused. ``dropout``: fields of the configuration.
    """
    losses = {}
    for fused in (None, operator):
        model = built(family, fused, **dropout)
        model.train()
        drawn = []
        for seed in range(SEEDS):
            paddle.seed(seed + (1000 if fused else 0))
            with paddle.no_grad():
                drawn.append(float(loss_and_logits(family, model, random_batch(), fused)[0]))
        losses[fused] = np.array(drawn)
    plain, fused = losses[None], losses[operator]
    assert plain.std() > 1e-3  # dropout does something
    error = np.sqrt((plain.var(ddof=1) + fused.var(ddof=1)) / SEEDS)
    assert abs(plain.mean() - fused.mean()) < SIGMAS * error
    # The logarithm of a variance of n numbers has a standard error of about sqrt(2 / (n - 1)).
    ratio = np.log(plain.var(ddof=1) / fused.var(ddof=1))
    assert abs(ratio) < SIGMAS * np.sqrt(2 * 2 / (SEEDS - 1))
