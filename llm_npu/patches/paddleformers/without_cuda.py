"""PaddleFormers without CUDA: without paddlefleet, paddlefleet_ops and the kernels of CUDA builds."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import sys
import types
from importlib.machinery import ModuleSpec

import paddle

from llm_npu.core.errors import UserError

from .. import incubate

PROVIDER = "paddleformers.transformers.gpt_provider"
# Families with a class for paddlefleet and another, "...Deprecated", in plain Paddle.
TWO_CLASSES = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
DEPRECATED = "Deprecated"


def apply() -> None:
    if importlib.util.find_spec("paddlefleet_ops") is None:
        supply_paddlefleet_ops()
    if importlib.util.find_spec("paddlefleet") is None:
        supply_gpt_provider()
        use_plain_classes()


@functools.cache
def supply_paddlefleet_ops() -> None:
    """PaddleFormers 1.1 and 1.2: Qwen3-MoE and DeepSeek-V3 fail on import ("No module named
    'paddlefleet_ops'").

    ``transformers/fused_a2a.py`` imports it to ask whether DeepEP is there. The stand-in says that it is not.
    """
    supply("paddlefleet_ops", is_deep_ep_available=lambda: False)


@functools.cache
def supply_gpt_provider() -> None:
    """PaddleFormers 1.1 and 1.2: Qwen2, Qwen3, Qwen2-MoE, Qwen3-MoE and others fail on import ("paddlefleet
    is required for gpt_provider").

    Their modules define a model provider for paddlefleet beside their classes in plain Paddle. The stand-in
    lets the providers be defined, and refuses to build a model.
    """
    supply(PROVIDER, GPTModelProvider=GPTModelProvider, GPTModel=GPTModel)


@dataclasses.dataclass
class GPTModelProvider:
    """In place of paddlefleet's builder of models."""

    @classmethod
    def from_config(cls, config):
        raise UserError(
            f"PaddleFormers builds {type(config).__name__.removesuffix('Config')} with paddlefleet, which is "
            "not installed and needs CUDA; accepted on npu: the families of llm_npu.models.paddleformers."
        )


class GPTModel:
    """In place of paddlefleet's model: no model is an instance of it."""


@functools.cache
def use_plain_classes() -> None:
    """PaddleFormers 1.1 and 1.2: ``AutoModelForCausalLM`` takes ``Qwen3ForCausalLM``, which paddlefleet
    builds, although ``Qwen3ForCausalLMDeprecated`` computes the same in plain Paddle.

    With the patch that class has the other's name, also in the config.json of its checkpoints, as in
    transformers.
    """
    for family in TWO_CLASSES:
        module = importlib.import_module(f"paddleformers.transformers.{family}.modeling")
        for name in [name for name in vars(module) if name.endswith(DEPRECATED)]:
            plain = getattr(module, name)
            plain.__name__ = plain.__qualname__ = name.removesuffix(DEPRECATED)
            setattr(module, plain.__name__, plain)


def supply(name: str, **attributes) -> None:
    """A module ``name`` with these attributes."""
    module = types.ModuleType(name)
    module.__spec__ = ModuleSpec(name, loader=None)
    vars(module).update(attributes)
    sys.modules[name] = module


@functools.cache
def allow_synchronize() -> None:
    """PaddleFormers 1.1 and 1.2: gradient accumulation on the CPU place fails ("device should be gpu, xpu").

    The trainer calls ``paddle.device.synchronize``, which refuses the CPU place. It has nothing to wait for.
    """
    upstream = paddle.device.synchronize

    @functools.wraps(upstream)
    def synchronize(device=None):
        if device is not None or paddle.device.get_device() != "cpu":
            upstream(device)

    paddle.device.synchronize = synchronize


@functools.cache
def supply_rms_norm() -> None:
    """PaddleFormers 1.1 and 1.2: every model fails with its default ``fuse_rms_norm`` ("The kernel
    `fused_rms_norm_ext` is not registered").

    ``nn/norm.py`` calls a kernel that only CUDA builds of Paddle have. With the patch ``fuse_rms_norm`` means
    ``paddle_fused.rms_norm``.
    """
    if paddle.is_compiled_with_cuda():
        return
    from paddleformers.nn import norm

    norm.fused_rms_norm_ext = incubate.fused_rms_norm_ext
