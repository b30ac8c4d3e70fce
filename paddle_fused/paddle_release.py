"""The release of Paddle that is installed, and what differs between those that are supported, 3.0 to 3.3.

Nothing else asks for the release, except patches of its defects, which name the releases that have them
(``before``, ``at_least``). For C++ there is csrc/framework/paddle_release.h.

Nothing but the standard library is imported at first: the build and the virtual NPU read the release before
paddle may be imported.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from .libraries import SetupError, how_to_build

OLDEST, BEYOND = (3, 0, 0), (3, 4, 0)
ACCEPTED = "paddlepaddle 3.0.0 to 3.3"
INSTALL = "Install one: `pip install paddlepaddle==3.3.1` (on aarch64 3.2.2 is the newest)."


@dataclass(frozen=True)
class PaddleBuild:
    """One build of Paddle: its version, such as 3.3.1, and the commit it was built from."""

    version: str
    commit: str

    def __str__(self) -> str:
        return f"paddlepaddle {self.version} (commit {self.commit[:12]})"


def paddle_folder() -> Path | None:
    """The folder of the package that ``import paddle`` would import, or None if there is none."""
    spec = importlib.util.find_spec("paddle")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def installed_paddle() -> PaddleBuild:
    """The Paddle that ``import paddle`` would import, read from its files; SetupError if there is none."""
    folder = paddle_folder()
    if folder is None:
        raise SetupError("paddlepaddle is not installed for this Python.", how_to_build())
    return build_in(folder)


def build_in(folder: Path) -> PaddleBuild:
    """The build of the package ``paddle`` in ``folder``; SetupError if its files do not say it."""
    version_file = folder / "version" / "__init__.py"
    try:
        text = version_file.read_text(encoding="utf-8")
    except OSError as error:
        what = f"The version of Paddle cannot be read from {version_file}: {error.strerror}."
        raise SetupError(what, "Reinstall paddlepaddle.") from None
    fields = dict(re.findall(r"""^(full_version|commit)\s*=\s*['"]([^'"]*)['"]""", text, re.MULTILINE))
    if len(fields) < 2:
        what = f"{version_file} does not say the version and the commit of Paddle."
        raise SetupError(what, "Reinstall paddlepaddle.")
    return PaddleBuild(fields["full_version"], fields["commit"])


def number(version: str) -> tuple[int, int, int]:
    """3.2.2 and 3.2.2+cpu as (3, 2, 2); SetupError for what is not a supported release, such as 3.0.0rc1."""
    parts = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(?:\.post\d+)?(?:\+.*)?", version)
    found = tuple(map(int, parts.groups())) if parts else (0, 0, 0)
    if not OLDEST <= found < BEYOND:
        raise SetupError(
            f"Paddle is {version}; accepted: {ACCEPTED}, no earlier or development builds.", INSTALL
        )
    return found


@functools.cache
def installed_number() -> tuple[int, int, int]:
    """The release that ``import paddle`` imports, such as (3, 3, 1)."""
    return number(installed_paddle().version)


def at_least(*release: int) -> bool:
    """Whether the installed Paddle is this release or a later one: ``at_least(3, 1)``."""
    return installed_number() >= release


def before(*release: int) -> bool:
    """Whether the installed Paddle is older than this release: ``before(3, 3)``."""
    return not at_least(*release)


# ---- what differs, in the order of the releases that brought it ------------------------------------------


def max_memory_allocated(device: str) -> int:
    """The most bytes that tensors on ``device``, such as "npu:1", have taken so far.

    paddle.device.max_memory_allocated is of 3.2 and later, for custom devices.
    """
    import paddle

    if hasattr(paddle.device, "max_memory_allocated"):
        return paddle.device.max_memory_allocated(device)
    return paddle.base.core.device_memory_stat_peak_value("Allocated", _id_of(device))


def _id_of(device: str) -> int:
    return int(device.partition(":")[2] or 0)


def update_op_proto() -> None:
    """Has Paddle read the operators anew that were registered since. Before 3.2 it takes no argument."""
    from paddle.base.framework import OpProtoHolder

    update = OpProtoHolder.instance().update_op_proto
    update([]) if at_least(3, 2) else update()


def matmul_into(out, x, y, transpose_y: bool) -> None:
    """Computes x y, or x times y transposed, into ``out``: before 3.2, which takes one, by a copy."""
    import paddle

    if at_least(3, 2):
        paddle.matmul(x, y, transpose_y=transpose_y, out=out)
    else:
        paddle.assign(paddle.matmul(x, y, transpose_y=transpose_y), out)


def allow_float32_gradients(parameters) -> None:
    """Has low-precision parameters take gradients in float32, as they do by themselves since 3.3.

    Before, a gradient can be replaced only by one of its own dtype, so those that are there are cast.
    """
    if before(3, 3):
        from paddle.base import core

        core.eager.set_master_grads(parameters)


def drop_gradient(parameter) -> None:
    """Leaves ``parameter`` without a gradient. Before 3.3 ``grad`` cannot be set to None; what clears it
    keeps its dtype, which does no harm where that is the one of the gradient to come.
    """
    if at_least(3, 3):
        parameter.grad = None
    else:
        parameter.clear_gradient(set_to_zero=False)


def parameter_recorder():
    """The module that keeps what a capture has met, which lies elsewhere since 3.3."""
    where = "dy2static" if at_least(3, 3) else "pir_dy2static"
    return importlib.import_module(f"paddle.jit.{where}.parameter_recorder")


def swiglu(x, y=None):
    """silu(x) * y, or of the halves of x: Paddle's operator, public since 3.3, in paddle.incubate before."""
    import paddle

    home = paddle.nn.functional if at_least(3, 3) else paddle.incubate.nn.functional
    return home.swiglu(x, y)


# Tensors without elements, which kernels of 3.0 refuse or lose.


def concat(tensors):
    """paddle.concat along axis 0. 3.0 gives tensors without elements no gradient, and refuses only those."""
    import paddle

    if at_least(3, 1) or all(0 not in tensor.shape for tensor in tensors):
        return paddle.concat(tensors)
    full = [tensor for tensor in tensors if 0 not in tensor.shape]
    empty = [tensor for tensor in tensors if 0 in tensor.shape]
    joined = paddle.concat(full) if full else empty.pop()
    for tensor in empty:
        if not tensor.stop_gradient:
            joined = joined + tensor.sum()  # 0, and the tensor takes part in the graph
    return joined


def halves(tensor):
    """The two halves along the last dimension. 3.0 crashes in the gradient of a split without elements."""
    import paddle

    if before(3, 1) and 0 in tensor.shape:
        half = tensor.shape[-1] // 2
        return tensor[..., :half], tensor[..., half:]
    return paddle.split(tensor, 2, axis=-1)


def counts_of(indices, bins: int):
    """How often each of 0 to ``bins`` - 1 is in ``indices``, [bins] of int64. 3.0 has no result for none."""
    import paddle

    if before(3, 1) and 0 in indices.shape:
        return paddle.zeros([bins], "int64")
    return paddle.histogram(indices.flatten(), bins=bins, min=0, max=bins)


def min_tokens() -> int:
    """How many tokens fused_moe and linear_cross_entropy need: 3.0 crashes in the gradients of none."""
    return 0 if at_least(3, 1) else 1


def check_min_tokens(operator: str, tensor) -> None:
    """ValueError if ``tensor`` has no tokens where ``min_tokens`` are needed."""
    if min_tokens() > 0 and 0 in tensor.shape:
        raise ValueError(
            f"{operator}: there are no tokens; accepted from Paddle 3.1 on: 3.0 crashes in their gradients."
        )
