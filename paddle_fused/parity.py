"""The numerical error of every backend: ``python -m paddle_fused.parity [--json FILE]``.

Runs every case of every operator on every backend, device and dtype. The reference is the case's float64
golden for an output, and the composed operator in float64 for a gradient. The baseline is the composed
operator at the same precision. A backend passes if its largest error is at most twice the baseline's error
plus one rounding of the largest value, and at most ``CEILING``. In small tensors, either error depends on the
order of summation and may be small or large by chance. A backend that exceeds its bound is therefore compared
with the largest baseline error over several random draws: first its own error, then its mean error over these
draws.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import virtual_npu

from . import command_line, paddle_release, registry, strict_json

if TYPE_CHECKING:
    from .ops.case import OpCase

DRAWS = 5

# Half the distance from 1 to the next number: the maximum relative error of one rounding.
ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
# The largest error that passes regardless of the baseline, in ulps of the largest value.
CEILING = {"float64": 16, "float32": 16, "bfloat16": 4, "float16": 4}


@dataclass(frozen=True)
class Accuracy:
    """The error of one output or gradient.

    Attributes:
        max_error: largest absolute difference, or its mean over several draws.
        allowed: the bound of max_error.
        ratio: max_error divided by the baseline's error plus one rounding.
        cosine: cosine similarity of result and reference.
        ulp: max_error in ulps of the largest reference value.
    """

    max_error: float
    allowed: float
    ratio: float
    cosine: float
    ulp: float

    @property
    def passed(self) -> bool:
        return self.max_error <= self.allowed


@dataclass(frozen=True)
class Result:
    """One case on one backend, device and dtype: ``tensors`` by name, or the reason it was ``refused``."""

    operator: str
    case: str
    backend: str
    mode: str
    device: str
    dtype: str
    refused: str | None
    tensors: dict[str, Accuracy]

    @property
    def passed(self) -> bool:
        return all(accuracy.passed for accuracy in self.tensors.values())


def _unchanged(value):
    return value


class Case:
    """A case in one dtype: the rounded arrays, the reference, and the errors of the composed operator."""

    def __init__(self, case, dtype: str, seed: int = 0):
        import numpy as np

        self.case, self.dtype = case, dtype
        random = np.random.default_rng(seed)
        self.arrays = {
            name: self._rounded(name, array)
            for name, array in case.arrays(random).items()
            if array is not None
        }
        outputs = case.golden(self.arrays)
        self.output_gradients = [
            self._rounded("", random.standard_normal(np.shape(output))) for output in outputs
        ]
        self.truth = {f"output {i}": np.asarray(output) for i, output in enumerate(outputs)}
        computed = self.compute("composed", "cpu", "float64")
        self.truth |= {name: computed[name] for name in computed if name.startswith("gradient")}
        self._baselines: dict[str, dict[str, float]] = {}

    def measure(self, backend: str, device: str) -> dict[str, Accuracy]:
        """The accuracy of every tensor on ``backend``. Raises BackendError if the backend declines."""
        computed = self.compute(backend, device, self.dtype)
        rounding = ROUNDING[self.dtype]
        if (backend, device, self.dtype) == ("composed", "cpu", "float16"):
            rounding *= paddle_release.float16_rounding_on_cpu()
        for baseline in (self._baseline, self._baseline_of_draws):
            errors = baseline(device)
            accuracies = {
                name: self._accuracy(name, value, errors[name], rounding) for name, value in computed.items()
            }
            if all(accuracy.passed for accuracy in accuracies.values()):
                return accuracies
        drawn = self._draws(lambda case: case._errors(case.compute(backend, device, self.dtype)))
        for name, accuracy in accuracies.items():
            if not accuracy.passed and accuracy.max_error <= self._ceiling(name):
                accuracies[name] = replace(accuracy, max_error=fmean(drawn[name]))
        return accuracies

    def _baseline(self, device: str) -> dict[str, float]:
        # Paddle's CPU kernels do not support 16-bit types, so this baseline runs on the npu.
        where = device if self.dtype == "float32" else "npu"
        if where not in self._baselines:
            self._baselines[where] = self._errors(self.compute("composed", where, self.dtype))
        return self._baselines[where]

    def _baseline_of_draws(self, device: str) -> dict[str, float]:
        """The largest baseline error over DRAWS draws."""
        drawn = self._draws(lambda case: case._baseline(device))
        return {name: max(errors) for name, errors in drawn.items()}

    def _draws(self, errors_of: Callable[[Case], dict[str, float]]) -> dict[str, list[float]]:
        """Errors of DRAWS draws of this case, relative to each draw's reference and scaled to this case's."""
        errors: dict[str, list[float]] = {name: [] for name in self.truth}
        for seed in range(DRAWS):
            drawn = Case(self.case, self.dtype, seed)
            for name, error in errors_of(drawn).items():
                largest = _largest(drawn.truth[name])
                errors[name].append(error / largest * _largest(self.truth[name]) if largest else 0.0)
        return errors

    def _errors(self, computed: dict) -> dict[str, float]:
        return {name: _largest(value - self.truth[name]) for name, value in computed.items()}

    def bounds_of_draws(self, device: str) -> dict[str, float]:
        """The error bound of each tensor on ``device``, from the baseline errors of several draws."""
        rounding = ROUNDING[self.dtype]
        return {
            name: 2 * baseline + rounding * _largest(self.truth[name])
            for name, baseline in self._baseline_of_draws(device).items()
        }

    def _accuracy(self, name: str, value, baseline: float, rounding: float) -> Accuracy:
        import numpy as np

        truth = self.truth[name]
        assert value.shape == truth.shape, f"{self.case}: {name} has shape {value.shape}, not {truth.shape}"
        error, largest = _largest(value - truth), _largest(truth)
        rounding = rounding * largest
        norms = np.linalg.norm(value) * np.linalg.norm(truth)
        return Accuracy(
            max_error=error,
            allowed=min(2 * baseline + rounding, self._ceiling(name)),
            ratio=error / (baseline + rounding) if error else 0.0,
            cosine=float(np.vdot(value, truth) / norms) if norms else 1.0,
            ulp=error / (2 * rounding) if error else 0.0,
        )

    def _ceiling(self, name: str) -> float:
        scale = _largest(self.truth[name])
        # The accuracy of a gradient with cancellation depends on the terms of its sum, which are as large as
        # the output gradients.
        if "gradient" in name:
            scale = max(scale, *map(_largest, self.output_gradients))
        return CEILING[self.dtype] * 2 * ROUNDING[self.dtype] * scale

    def _rounded(self, name: str, array):
        import numpy as np
        import paddle

        if not np.issubdtype(array.dtype, np.floating):
            return array
        dtype = "float32" if name in self.case.keep_float32 else self.dtype
        tensor = paddle.to_tensor(array.astype(np.float32), place=paddle.CPUPlace()).astype(dtype)
        return tensor.astype("float32").numpy().astype(np.float64)

    def compute(self, backend: str, device: str, dtype: str, wrap=_unchanged, arrange=_unchanged) -> dict:
        """Outputs and gradients by name, as float64 arrays, from ``backend`` on ``device`` in ``dtype``.

        Args:
            wrap: applied to the called function, such as ``paddle.jit.to_static``.
            arrange: applied to every tensor, such as a non-contiguous view of the same values.
        """
        import numpy as np
        import paddle

        from .dispatch import use_backend

        place = paddle.CustomPlace("npu", 0) if device == "npu" else paddle.CPUPlace()
        before = paddle.device.get_device()
        paddle.device.set_device("npu:0" if device == "npu" else "cpu")
        try:
            tensors = {}
            for name, array in self.arrays.items():
                tensor = paddle.to_tensor(array, place=place)
                if np.issubdtype(array.dtype, np.floating):
                    narrow = dtype if dtype == "float64" or name not in self.case.keep_float32 else "float32"
                    tensor = paddle.to_tensor(array.astype(_carrier(narrow)), place=place).astype(narrow)
                tensors[name] = arrange(tensor).detach()
                tensors[name].stop_gradient = name not in self.case.gradients
            with use_backend(backend, strict=True):
                outputs = wrap(self.case.call)(tensors)
            gradients = [
                paddle.to_tensor(g.astype(_carrier(dtype)), place=place).astype(output.dtype)
                for g, output in zip(self.output_gradients, outputs, strict=True)
            ]
            computed = {f"output {i}": _values(output) for i, output in enumerate(outputs)}
            if self.case.gradients:
                # Not paddle.autograd.backward, which fails in 3.0 for two outputs of one operator.
                inputs = [tensors[name] for name in self.case.gradients]
                parameter_gradients = paddle.grad(list(outputs), inputs, gradients)
                for name, gradient in zip(self.case.gradients, parameter_gradients, strict=True):
                    computed[f"gradient of {name}"] = _values(gradient)
            return computed
        finally:
            paddle.device.set_device(before)


def _carrier(dtype: str) -> str:
    # numpy has no bfloat16; float32 represents all of its values.
    return "float64" if dtype == "float64" else "float32"


def _values(tensor):
    import numpy as np

    wide = tensor if tensor.dtype.name.endswith("64") else tensor.astype("float32")
    return wide.detach().cpu().numpy().astype(np.float64)


def _largest(array) -> float:
    import numpy as np

    return float(np.abs(array).max(initial=0.0))


def all_pairs(operators: Collection[str] = ()) -> Iterator[tuple[OpCase, str]]:
    """Every case in each of its dtypes, for ``operators`` or all operators."""
    for name in operators or registry.operators():
        for case in registry.find(name).cases():
            yield from ((case, dtype) for dtype in case.dtypes)


def measured(prepared: Case, backend: str, device: str) -> Result:
    """The Result of a case on ``backend`` and ``device``."""
    from .dispatch import BackendError, dispatch_log, reset_dispatch_log

    tensors, refused, mode = {}, None, ""
    reset_dispatch_log()
    try:
        tensors = prepared.measure(backend, device)
        mode = "; ".join(sorted({ran.mode for ran in dispatch_log() if ran.backend == backend and ran.mode}))
    except BackendError as error:
        refused = error.reasons[backend]
    case = prepared.case
    return Result(case.operator, case.name, backend, mode, device, prepared.dtype, refused, tensors)


def measure_all(operators: Collection[str] = ()) -> Iterator[Result]:
    """Yields a Result for every case, dtype, backend and device, for ``operators`` or all operators."""
    from .dispatch import BACKENDS

    for case, dtype in all_pairs(operators):
        prepared = Case(case, dtype)
        for backend, device in ((b, d) for b in BACKENDS for d in ("cpu", "npu")):
            yield measured(prepared, backend, device)


def main(argv: list[str]) -> int:
    parser = command_line.Parser(prog="python -m paddle_fused.parity", description=__doc__.split("\n")[0])
    parser.add_argument("operators", nargs="*", help="public names; all if none is given")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to FILE; - is stdout")
    options = parser.parse_args(argv)
    unknown = [name for name in options.operators if name not in registry.operators()]
    if unknown:
        known = ", ".join(sorted(registry.operators()))
        parser.error(f"{', '.join(unknown)}: unknown operator; accepted: {known}")
    use_an_npu()

    out = sys.stderr if options.json == Path("-") else sys.stdout
    results = []
    for result in measure_all(options.operators):
        results.append(result)
        print(line_of(result), file=out, flush=True)
    ran = [result for result in results if result.refused is None]
    failed = [result for result in ran if not result.passed]
    if options.json:
        text = strict_json.dumps(
            {"environment": environment(), "results": [asdict(r) for r in results]}, indent=1
        )
        if options.json == Path("-"):
            print(text)
        else:
            options.json.write_text(text + "\n")
    print(f"{len(ran)} passed or failed, {len(failed)} failed, {len(results) - len(ran)} refused", file=out)
    return 1 if failed or not ran else 0


def line_of(result: Result) -> str:
    """A Result as one line of text."""
    head = f"{result.operator:24} {result.backend:8} {result.device} {result.dtype:8} {result.case}"
    if result.refused is not None:
        return f"{head}: refused, {result.refused}"
    name, worst = max(result.tensors.items(), key=lambda item: item[1].ratio)
    verdict = "pass" if result.passed else "FAIL"
    return (
        f"{head}: {verdict}, {name} {worst.max_error:.2e} of {worst.allowed:.2e}, cosine {worst.cosine:.6f}"
    )


def environment() -> dict[str, str]:
    """The environment of the measurements."""
    import platform

    import paddle

    npu = (
        "virtual NPU on the host CPU, not a card"
        if virtual_npu.is_active()
        else "npu plugin " + os.environ.get("CUSTOM_DEVICE_ROOT", "")
    )
    return {"paddle": paddle.__version__, "npu": npu, "machine": platform.machine()}


def use_an_npu() -> None:
    """Activates the virtual NPU, unless another plugin is selected. Call it before importing paddle.

    Raises SetupError if the virtual NPU is not available.
    """
    os.environ.setdefault("GLOG_minloglevel", "2")  # show only errors in Paddle's log of loading plugins
    if not os.environ.get("CUSTOM_DEVICE_ROOT"):
        virtual_npu.activate()


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
