"""Random valid and invalid calls of an operator: ``python -m paddle_fused.fuzz OPERATOR [--calls N]``.

A valid call must agree with the float64 reference; a call with a corrupted tensor must raise ValueError or
agree with the composed operator. Anything else is printed with its number, which reproduces it together with
the seed. If the process crashes, ``--trace`` shows the number of the call in progress.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from . import command_line, registry
from .parity import use_an_npu

# Far above the effect of rounding on values of about one, far below that of a wrong element.
TOLERANCE = {"float32": 1e-3, "bfloat16": 1e-1, "float16": 2e-2}

# Beyond it only signs are compared: Paddle's cross entropy limits a token's loss to 1e20, ours does not, and
# a mean over hundreds of tokens may contain a single such token.
ABSURD = 1e17


@dataclass(frozen=True)
class Spoiled:
    """The corruption of one tensor of a call."""

    tensor: str
    how: str


def _resized(array, random):
    axis = int(random.integers(array.ndim))
    shape = list(array.shape)
    shape[axis] = max(0, shape[axis] + int(random.choice([-1, 1])))
    import numpy as np

    return np.resize(array, shape) if array.size else np.zeros(shape, array.dtype)


def _deeper(array, random):
    return array[None]


def _flatter(array, random):
    return array.reshape(-1)


def _emptied(array, random):
    return array[:0]


def _integer(array, random):
    return array.astype("int32")


def _huge(array, random):
    return array * 0 + (1 << 40) if array.dtype.kind == "i" else array * 1e30


HUGE = "huge values"
SPOILERS: dict[str, Callable] = {
    "a dimension one longer or shorter": _resized,
    "one dimension more": _deeper,
    "one dimension": _flatter,
    "no element": _emptied,
    "integers": _integer,
    HUGE: _huge,
}


def run(operator: str, calls: int, seed: int, trace: bool = False) -> tuple[Counter, list[str]]:
    """Counts of the outcomes, and one line for each wrong call."""
    import numpy as np

    outcomes, wrong = Counter(), []
    for number in range(calls):
        random = np.random.default_rng([seed, number])
        case = registry.find(operator).random_case(random)
        if trace:
            print(f"call {number}: {case}", file=sys.stderr, flush=True)
        outcome, complaint = _one_call(case, random)
        outcomes[outcome] += 1
        if complaint:
            wrong.append(f"call {number} ({case}): {complaint}")
    return outcomes, wrong


def _one_call(case, random) -> tuple[str, str | None]:
    import numpy as np

    from .dispatch import use_backend

    arrays = {name: array for name, array in case.arrays(random).items() if array is not None}
    dtype = str(random.choice(case.dtypes))
    device = str(random.choice(["cpu", "npu"]))
    spoiled = _spoil(case, arrays, random) if random.random() < 0.4 else None
    try:
        computed = _computed(case, arrays, dtype, device, random)
    except ValueError as error:
        if spoiled is None:
            return "failed", f"a legal call in {dtype} on {device} was refused: {error}"
        return "refused", None if str(error).strip() else "refused without a word"
    # An accepted call must agree with the definition in the same precision.
    rounded = {name: _rounded(array, dtype, name in case.keep_float32) for name, array in arrays.items()}
    try:
        with use_backend("composed", strict=True):
            expected = _computed(case, arrays, dtype, "npu", random)
    except ValueError as error:
        return "failed", f"accepted with {spoiled}, which composed refuses ({dtype} on {device}): {error}"
    if spoiled is None:
        outputs = case.golden(rounded)
        expected |= {f"output {i}": np.asarray(output) for i, output in enumerate(outputs)}
    for name, value in computed.items():
        complaint = _difference(value, expected[name], TOLERANCE[dtype])
        if complaint and spoiled and name in (exact := _exact(case, rounded, random)):
            # A softmax of huge values depends on their last bits: we may be right where 16 bits are not.
            # Where the definition is NaN (Paddle's gradient of silu below -709), any result is accepted.
            value = (
                np.where(np.isnan(exact[name]), np.nan, value) if value.shape == exact[name].shape else value
            )
            complaint = _difference(value, exact[name], TOLERANCE[dtype])
        if complaint:
            return "failed", f"{name} in {dtype} on {device}, {spoiled or 'legal'}: {complaint}"
    return "right", None


def _exact(case, rounded, random) -> dict:
    """The definition in float64; empty if it refuses float64 together with a float32 tensor."""
    from .dispatch import use_backend

    try:
        with use_backend("composed", strict=True):
            return _computed(case, rounded, "float64", "cpu", random)
    except ValueError:
        return {}


def _computed(case, arrays, dtype: str, device: str, random) -> dict:
    """The outputs, and the gradients of their sum."""
    tensors = _tensors(case, arrays, dtype, device, random)
    outputs = case.call(tensors)
    found = {f"output {i}": _array(output) for i, output in enumerate(outputs)}
    if case.gradients:
        sum(output.astype("float32").sum() for output in outputs).backward()
        for name in case.gradients:
            if name in tensors and tensors[name].grad is not None:
                found[f"gradient of {name}"] = _array(tensors[name].grad)
    return found


def _spoil(case, arrays: dict, random) -> Spoiled:
    name = str(random.choice(sorted(arrays)))
    how = str(random.choice(sorted(how for how in SPOILERS if how != HUGE or case.is_stable)))
    if arrays[name].ndim:
        arrays[name] = SPOILERS[how](arrays[name], random)
    return Spoiled(name, how)


def _tensors(case, arrays, dtype: str, device: str, random) -> dict:
    import numpy as np
    import paddle

    place = paddle.CustomPlace("npu", 0) if device == "npu" else paddle.CPUPlace()
    paddle.device.set_device("npu:0" if device == "npu" else "cpu")
    tensors = {}
    for name, array in arrays.items():
        floating = np.issubdtype(array.dtype, np.floating)
        given = array.astype(np.float32) if floating else array
        # Every other tensor is a transposed view: the same values, non-contiguous.
        transposed = array.ndim > 1 and random.random() < 0.5
        tensor = paddle.to_tensor(given.T.copy() if transposed else given, place=place)
        if floating:
            tensor = tensor.astype("float32" if name in case.keep_float32 else dtype)
        tensor = tensor.transpose(list(range(array.ndim))[::-1]) if transposed else tensor
        tensors[name] = tensor.detach()
        tensors[name].stop_gradient = not floating or name not in case.gradients
    return tensors


def _array(tensor):
    import numpy as np

    return tensor.detach().astype("float32").cpu().numpy().astype(np.float64)


def _rounded(array, dtype: str, keep_float32: bool):
    import numpy as np
    import paddle

    if not np.issubdtype(array.dtype, np.floating):
        return array
    narrow = "float32" if keep_float32 else dtype
    return _array(paddle.to_tensor(array.astype(np.float32), place=paddle.CPUPlace()).astype(narrow))


def _difference(output, truth, tolerance: float) -> str | None:
    import numpy as np

    if output.shape != np.shape(truth):
        return f"shape {output.shape} instead of {np.shape(truth)}"
    if output.size == 0:
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        scale = np.abs(truth[np.isfinite(truth)]).max(initial=1.0)
        same = (np.abs(output - truth) <= tolerance * scale) | (output == truth)
        # Where the definition is NaN, 0 is accepted, too: an ignored token with an infinite weight.
        same |= ~np.isfinite(output) & ~np.isfinite(truth) | np.isnan(truth) & (output == 0)
        same |= (np.minimum(np.abs(output), np.abs(truth)) > ABSURD) & (output * truth > 0)
    return None if same.all() else f"{(~same).sum()} of {output.size} elements are wrong"


def main(argv: list[str]) -> int:
    parser = command_line.Parser(prog="python -m paddle_fused.fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("operator", help="public name")
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trace", action="store_true", help="name every call on stderr before it is made")
    options = parser.parse_args(argv)
    use_an_npu()
    outcomes, wrong = run(options.operator, options.calls, options.seed, options.trace)
    for line in wrong[:20]:
        print(line)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    print(f"{options.operator}: {options.calls} calls, {counts}; {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
