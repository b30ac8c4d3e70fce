"""Accuracy of the device against float64, for every case of every operator and for Paddle's AdamW.

The operator's own backend must stay within the bounds of ``paddle_fused.parity``. Their baseline is plain
Paddle in the same precision on the same device. To detect a device on which plain Paddle itself is wrong,
plain Paddle is compared with bounds measured on the virtual NPU.

AdamW runs 20 steps of

    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
    w = (1 - lr wd) w - lr m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + epsilon)

According to paddle-custom-npu's test, a card's kernel adds epsilon to sqrt(v) instead. The last case uses a
large epsilon to distinguish the two formulas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from llm_npu import device
from paddle_fused import parity

from . import journal as journals
from . import reference
from .journal import Journal, number

if TYPE_CHECKING:
    from .checks import Job

BACKEND, PLAIN = "ascend", "composed"
# AdamW
SHAPE, STEPS, RATE, DECAY, BETAS = (37, 21), 20, 1e-2, 0.1, (0.9, 0.999)
EPSILON, LARGE_EPSILON = 1e-8, 1e-1
DTYPES = ("float32", "bfloat16", "float16")


def check(job: Job, journal: Journal) -> None:
    """Continue after the cases in the journal; skip operators with a lost case."""
    device.select(job.device_name)
    known, started = reference.read()["operators"], journals.started_cases(job.folder)
    lost = {name.split()[0] for name in journals.lost_cases(job.folder)}
    for case, dtype in parity.all_pairs():
        name = name_of(case, dtype)
        if name in started:
            continue
        if case.operator in lost:
            journal.note(name, "skipped: the process was lost in an earlier case of this operator")
            continue
        with journal.case(name):
            prepared = parity.Case(case, dtype)
            result, plain = (parity.measured(prepared, backend, "npu") for backend in (BACKEND, PLAIN))
            judge(journal, name, result, plain, known.get(name))


def name_of(case, dtype: str) -> str:
    return f"{case.operator} {dtype}: {case.name}"


def record() -> dict[str, dict]:
    """The mode of each case and plain Paddle's bounds, for ``reference``. The virtual NPU must be active."""
    recorded = {}
    for case, dtype in parity.all_pairs():
        prepared = parity.Case(case, dtype)
        result = parity.measured(prepared, BACKEND, "npu")
        assert result.passed, parity.line_of(result)
        bounds = {name: float(f"{bound:.3g}") for name, bound in prepared.bounds_of_draws("npu").items()}
        recorded[name_of(case, dtype)] = {
            "mode": None if result.refused else result.mode,
            "bounds": bounds,
        }
    return recorded


def judge(
    journal: Journal, name: str, result: parity.Result, plain: parity.Result, known: dict | None
) -> None:
    """Compare a case with its record ``known``; ``plain`` is plain Paddle's result."""
    if known is None:
        journal.note(name, "not in the virtual NPU's record, so compared only with float64")
        known = {"mode": result.mode, "bounds": {}}
    expected, mode = known["mode"], result.mode or BACKEND
    if result.refused is not None:
        if expected is None:
            journal.same(name, f"refused: {result.refused}")
        else:
            journal.differs(name, f"not supported here: {result.refused}", expected, "refused")
    else:
        tensor, worst = max(result.tensors.items(), key=lambda item: item[1].ratio)
        error, limit = number(worst.max_error), number(worst.allowed)
        figures = f"{tensor}: largest error {error}, allowed {limit}"
        if not result.passed:
            journal.differs(name, f"{mode}: wrong, {figures}", f"an error of at most {limit}", error)
        elif expected == result.mode:
            journal.same(name, f"{mode}: {figures}")
        else:
            instead = "but the virtual NPU refuses it" if expected is None else f"not by {expected}"
            journal.differs(
                name, f"right, but computed by {mode}, {instead}; {figures}", expected or "refused", mode
            )
    for tensor, bound in known["bounds"].items():
        error = plain.tensors[tensor].max_error
        if not error <= bound:
            message = f"plain Paddle is wrong on this device: {tensor}, largest error {number(error)}"
            journal.differs(f"{name}, plain", message, f"at most {number(bound)}", number(error))


def adamw(job: Job, journal: Journal) -> None:
    device.select(job.device_name)
    import paddle

    paddle.set_device("npu:0")
    for dtype in DTYPES:
        name = f"AdamW {dtype}"
        with journal.case(name):
            weights, truth = _trained(dtype, EPSILON), formula(np.float64, EPSILON)
            # Tolerance: twice the error of the same formula in float32, plus a few rounding units.
            noise_floor = np.abs(formula(np.float32, EPSILON) - truth).max()
            allowed = 2 * noise_floor + 4 * parity.ROUNDING["float32"] * np.abs(truth).max()
            error = np.abs(weights - truth).max()
            what = f"largest error of the float32 weights after {STEPS} steps {number(error)}"
            limit = f"at most {number(allowed)}"
            journal.judge(name, bool(error <= allowed), f"{what}, {limit}", limit, number(error))
    with journal.case("position of epsilon"):
        weights = _trained("float32", LARGE_EPSILON)
        errors = {
            place: np.abs(formula(np.float64, LARGE_EPSILON, corrected) - weights).max()
            for place, corrected in (("the corrected root, as in Paddle", True), ("sqrt(v)", False))
        }
        journal.note("position of epsilon", f"added to {min(errors, key=errors.get)}")


def formula(dtype: type, epsilon: float, is_corrected: bool = True) -> np.ndarray:
    """The weights after all steps, computed in ``dtype``."""
    unit, (b1, b2) = dtype(1), map(dtype, BETAS)
    rate, decay, epsilon = dtype(RATE), dtype(DECAY), dtype(epsilon)
    weight = _values(0).astype(dtype)
    m, v = np.zeros(SHAPE, dtype), np.zeros(SHAPE, dtype)
    for step in range(1, STEPS + 1):
        gradient = (_values(step) / 4).astype(dtype)
        m, v = b1 * m + (unit - b1) * gradient, b2 * v + (unit - b2) * gradient * gradient
        correction = np.sqrt(unit - b2**step)
        root = np.sqrt(v) / correction + epsilon if is_corrected else (np.sqrt(v) + epsilon) / correction
        weight = (unit - rate * decay) * weight - rate * m / (unit - b1**step) / root
    return weight.astype(np.float64)


def _values(seed: int) -> np.ndarray:
    """Numbers that every dtype represents exactly."""
    return np.round(np.random.default_rng(seed).standard_normal(SHAPE) * 16).clip(-64, 64) / 16


def _trained(dtype: str, epsilon: float) -> np.ndarray:
    """The weights after the steps of Paddle's optimizer; for 16-bit types the float32 master weights."""
    import paddle

    zeros = paddle.nn.initializer.Constant()  # Paddle has no default initializer for bfloat16
    weight = paddle.create_parameter(SHAPE, dtype, default_initializer=zeros)
    weight.set_value(_tensor(_values(0), dtype))
    optimizer = paddle.optimizer.AdamW(
        RATE, *BETAS, epsilon, [weight], weight_decay=DECAY, multi_precision=dtype != "float32"
    )
    for step in range(1, STEPS + 1):
        weight.grad = _tensor(_values(step) / 4, dtype)
        optimizer.step()
    if dtype != "float32":
        weight = optimizer._master_weights[weight.name]
    return weight.numpy().astype(np.float64)


def _tensor(values: np.ndarray, dtype: str):
    import paddle

    return paddle.to_tensor(values.astype(np.float32)).astype(dtype)
