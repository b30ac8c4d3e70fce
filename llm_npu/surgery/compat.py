"""The surgery under the API names of LLaMA-Factory and openMind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import paddle

from llm_npu.models import library

from .apply import NoMatchingLayer, applied_kernels, apply_fused_kernels
from .fusable_layers import MODELS
from .registry import Kernel, find, scan

# The switches of the last ``apply_fused_kernel``.
in_force: dict[str, bool] = {}


def scan_all_kernels() -> dict[str, Kernel]:
    """The registered kernels by their LLaMA-Factory names: npu_fused_rmsnorm, npu_fused_swiglu, ..."""
    return {kernel.known_as: kernel for kernel in scan().values()}


def apply_kernel(name: str, model: paddle.nn.Layer) -> paddle.nn.Layer:
    """Apply one more kernel, for example ``"npu_fused_rmsnorm"``, to ``model``; returns the model.

    Raises UserError for an unknown name, and for a model without a matching layer.
    """
    apply_fused_kernels(model, [*applied_kernels(model), find(name).name])
    return model


def apply_default_kernels(
    model: paddle.nn.Layer, include_kernels: str | bool | Iterable[str] | None = "auto"
) -> paddle.nn.Layer:
    """Apply kernels to ``model``, and return it.

    Args:
        include_kernels: ``"auto"`` or True for all; a list of names, or names separated by commas; None or
            False for no kernels.
    """
    if include_kernels is None or include_kernels is False:
        return model
    if include_kernels is True or include_kernels == "auto":
        names = "auto"
    elif isinstance(include_kernels, str):
        names = [name.strip() for name in include_kernels.split(",")]
    else:
        names = list(include_kernels)
    apply_fused_kernels(model, names)
    return model


def apply_fused_kernel(
    use_npu_fusion_attention: bool = True,
    use_fused_rms_norm: bool = True,
    use_fused_rope: bool = True,
    use_fused_swiglu: bool = True,
    use_fused_moe: bool = True,
    use_fused_dropout_add_layer_norm: bool = True,
    use_fused_geglu: bool = True,
    *,
    use_fused_add_rms_norm: bool | None = None,
    use_fused_linear_cross_entropy: bool | None = None,
) -> None:
    """Fuse every supported model that is built from now on; disable this by setting all switches to False.

    For front ends that build the model themselves, for example ``paddleformers-cli``. The switches are those
    of ``apply_fused_kernels``; the loss without logits is off by default.
    """
    switches = dict(locals())
    in_force.update(switches)

    def fuse(model):
        if any(base.__name__ in MODELS for base in type(model).__mro__):
            with contextlib.suppress(NoMatchingLayer):  # for example a Llama with only use_fused_moe
                apply_fused_kernels(model, **switches)

    library.after_each_build(fuse if any(switches.values()) else None)
