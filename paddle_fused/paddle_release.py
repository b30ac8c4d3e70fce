"""The installed Paddle release, and the differences between the supported releases, 3.0 to 3.3.

No other module depends on the release, except patches. Patches state the affected releases (``before``,
``at_least``). The C++ counterpart is csrc/framework/paddle_release.h.

Imports only the standard library at module level, because the build and the virtual NPU read the release
before paddle is imported.
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
    """A Paddle build: its version, such as 3.3.1, and its commit."""

    version: str
    commit: str

    def __str__(self) -> str:
        return f"paddlepaddle {self.version} (commit {self.commit[:12]})"


def paddle_folder() -> Path | None:
    """The folder of the package that ``import paddle`` would import, or None."""
    spec = importlib.util.find_spec("paddle")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def installed_paddle() -> PaddleBuild:
    """The build that ``import paddle`` would import, read from its files. Raises SetupError without one."""
    folder = paddle_folder()
    if folder is None:
        raise SetupError("paddlepaddle is not installed for this Python.", how_to_build())
    return build_in(folder)


def build_in(folder: Path) -> PaddleBuild:
    """The build of the package ``paddle`` in ``folder``. Raises SetupError if its files do not state it."""
    version_file = folder / "version" / "__init__.py"
    try:
        text = version_file.read_text(encoding="utf-8")
    except OSError as error:
        what = f"The version of Paddle cannot be read from {version_file}: {error.strerror}."
        raise SetupError(what, "Reinstall paddlepaddle.") from None
    fields = dict(re.findall(r"""^(full_version|commit)\s*=\s*['"]([^'"]*)['"]""", text, re.MULTILINE))
    if len(fields) < 2:
        what = f"{version_file} does not contain the version and the commit of Paddle."
        raise SetupError(what, "Reinstall paddlepaddle.")
    return PaddleBuild(fields["full_version"], fields["commit"])


def number(version: str) -> tuple[int, int, int]:
    """(3, 2, 2) for 3.2.2 and 3.2.2+cpu. Raises SetupError for an unsupported version, such as 3.0.0rc1."""
    parts = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(?:\.post\d+)?(?:\+.*)?", version)
    release = tuple(map(int, parts.groups())) if parts else (0, 0, 0)
    if not OLDEST <= release < BEYOND:
        raise SetupError(
            f"Paddle is {version}; accepted: {ACCEPTED}, no earlier or development builds.", INSTALL
        )
    return release


@functools.cache
def installed_number() -> tuple[int, int, int]:
    """The release of the installed Paddle, such as (3, 3, 1)."""
    return number(installed_paddle().version)


def at_least(*release: int) -> bool:
    """Whether the installed Paddle is this release or later: ``at_least(3, 1)``."""
    return installed_number() >= release


def before(*release: int) -> bool:
    """Whether the installed Paddle is older than this release: ``before(3, 3)``."""
    return not at_least(*release)


# ---- differences, by the release that introduced them --------------------------------------------------


def max_memory_allocated(device: str) -> int:
    """Peak number of bytes allocated by tensors on ``device``, such as "npu:1".

    paddle.device.max_memory_allocated supports custom devices only since 3.2.
    """
    import paddle

    if hasattr(paddle.device, "max_memory_allocated"):
        return paddle.device.max_memory_allocated(device)
    return paddle.base.core.device_memory_stat_peak_value("Allocated", _id_of(device))


def _id_of(device: str) -> int:
    return int(device.partition(":")[2] or 0)


def update_op_proto() -> None:
    """Makes Paddle load newly registered operators. Before 3.2, Paddle's function has no argument."""
    from paddle.base.framework import OpProtoHolder

    update = OpProtoHolder.instance().update_op_proto
    update([]) if at_least(3, 2) else update()


def matmul_into(out, x, y, transpose_y: bool) -> None:
    """Computes x y, or x y^T, into ``out``. Before 3.2, matmul does not support ``out``; this copies."""
    import paddle

    if at_least(3, 2):
        paddle.matmul(x, y, transpose_y=transpose_y, out=out)
    else:
        paddle.assign(paddle.matmul(x, y, transpose_y=transpose_y), out)


def allow_float32_gradients(parameters) -> None:
    """Allows float32 gradients of low-precision parameters, the default since Paddle 3.3.

    Before 3.3, a gradient can only be replaced by one of the same dtype, so existing gradients are cast.
    """
    if before(3, 3):
        from paddle.base import core

        core.eager.set_master_grads(parameters)


def with_gradient_of_own_dtype(tensor):
    """Returns ``tensor`` such that its ``grad`` in dygraph has its dtype, the default since Paddle 3.3.

    Before 3.3, the gradient from a custom operator keeps the operator's dtype: a bfloat16 weight of
    rms_norm_npu has a float32 gradient. A cast avoids this, because its gradient has its input's dtype.
    """
    import paddle

    if at_least(3, 3) or tensor.dtype == paddle.float32 or not paddle.in_dynamic_mode():
        return tensor
    return paddle._C_ops.cast(tensor, tensor.dtype)


def drop_gradient(parameter) -> None:
    """Removes the gradient of ``parameter``.

    Before 3.3, ``grad`` cannot be set to None. ``clear_gradient`` keeps its dtype. This is harmless if the
    next gradient has the same dtype.
    """
    if at_least(3, 3):
        parameter.grad = None
    else:
        parameter.clear_gradient(set_to_zero=False)


def parameter_recorder():
    """The module that records the parameters of captured programs. It moved in 3.3."""
    where = "dy2static" if at_least(3, 3) else "pir_dy2static"
    return importlib.import_module(f"paddle.jit.{where}.parameter_recorder")


@functools.cache
def float16_rounding_on_cpu() -> int:
    """The largest error of a float32 to float16 cast on the CPU place, in half ulps.

    1 if the cast rounds to nearest. Before 3.2 it rounds toward zero, and the error is 2.
    """
    import paddle

    number = paddle.full([1], 1 + 2.0**-10 - 2.0**-13, "float32").cpu()  # just below a float16 number
    return 1 if float(number.astype("float16").astype("float32")) > 1 else 2


def swiglu(x, y=None):
    """Paddle's swiglu operator, in paddle.nn.functional since 3.3 and in paddle.incubate before."""
    import paddle

    home = paddle.nn.functional if at_least(3, 3) else paddle.incubate.nn.functional
    return home.swiglu(x, y)


# Empty tensors, which kernels of 3.0 reject or mishandle.


def concat(tensors):
    """paddle.concat along axis 0. 3.0 drops the gradient of empty tensors and rejects lists of only these."""
    import paddle

    if at_least(3, 1) or all(0 not in tensor.shape for tensor in tensors):
        return paddle.concat(tensors)
    full = [tensor for tensor in tensors if 0 not in tensor.shape]
    empty = [tensor for tensor in tensors if 0 in tensor.shape]
    joined = paddle.concat(full) if full else empty.pop()
    for tensor in empty:
        if not tensor.stop_gradient:
            joined = joined + tensor.sum()  # adds 0 and keeps the tensor in the graph
    return joined


def halves(tensor):
    """The two halves along the last dimension. 3.0 crashes in the gradient of a split of an empty tensor."""
    import paddle

    if before(3, 1) and 0 in tensor.shape:
        half = tensor.shape[-1] // 2
        return tensor[..., :half], tensor[..., half:]
    return paddle.split(tensor, 2, axis=-1)


def counts_of(indices, bins: int):
    """The number of occurrences of 0 to ``bins`` - 1 in ``indices``, int64 [bins]. 3.0 fails if empty.

    A histogram counts its upper limit in its last bin, so there is one more bin, which is dropped.
    """
    import paddle

    if before(3, 1) and 0 in indices.shape:
        return paddle.zeros([bins], "int64")
    return paddle.histogram(indices.flatten(), bins=bins + 1, min=0, max=bins + 1)[:bins]


def min_tokens() -> int:
    """The minimum number of tokens of linear_cross_entropy: 3.0 crashes in the gradient of an empty loss."""
    return 0 if at_least(3, 1) else 1


def check_min_tokens(operator: str, tensor) -> None:
    """Raises ValueError if ``tensor`` has fewer tokens than ``min_tokens``."""
    if min_tokens() > 0 and 0 in tensor.shape:
        raise ValueError(
            f"{operator}: received 0 tokens; accepted: at least 1 before Paddle 3.1, which fixes a crash."
        )
