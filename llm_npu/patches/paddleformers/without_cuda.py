"""Runs PaddleFormers without paddlefleet, paddlefleet_ops, triton and the kernels of CUDA builds."""

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
VISION_PROVIDER = "paddleformers.transformers.qwen3_vl.modeling_fleet"
# Families with a class for paddlefleet, and a plain Paddle class with the suffix "Deprecated".
TWO_CLASSES = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_moe")
DEPRECATED = "Deprecated"


def apply() -> None:
    if importlib.util.find_spec("paddlefleet_ops") is None:
        supply_paddlefleet_ops()
    if importlib.util.find_spec("paddlefleet") is None:
        supply_gpt_provider()
        supply_vision_provider()
        use_plain_classes()
    if importlib.util.find_spec("triton") is None:
        supply_triton_kernels()


@functools.cache
def supply_paddlefleet_ops() -> None:
    """PaddleFormers 1.1 and 1.2: Qwen3-MoE and DeepSeek-V3 fail on import ("No module named
    'paddlefleet_ops'").

    ``transformers/fused_a2a.py`` imports it to check for DeepEP. The stub reports that DeepEP is missing.
    """
    supply("paddlefleet_ops", is_deep_ep_available=lambda: False)


@functools.cache
def supply_gpt_provider() -> None:
    """PaddleFormers 1.1 and 1.2: Qwen2, Qwen3, Qwen2-MoE, Qwen3-MoE and others fail on import ("paddlefleet
    is required for gpt_provider").

    Their modules define a paddlefleet model provider next to the plain Paddle classes. With the stub, the
    providers can be defined but refuse to build a model.
    """
    supply(PROVIDER, GPTModelProvider=GPTModelProvider, GPTModel=GPTModel)


@dataclasses.dataclass
class GPTModelProvider:
    """Stub for paddlefleet's model builder."""

    @classmethod
    def from_config(cls, config):
        raise UserError(
            f"PaddleFormers builds {type(config).__name__.removesuffix('Config')} with paddlefleet, which is "
            "not installed and needs CUDA; accepted on npu: the families of llm_npu.models.paddleformers"
        )


@functools.cache
def supply_vision_provider() -> None:
    """PaddleFormers 1.1 and 1.2: Qwen3-VL-MoE fails on import ("No module named 'paddlefleet'").

    Its module imports Qwen3-VL's paddlefleet model next to its plain Paddle classes.
    """
    supply(VISION_PROVIDER, Qwen3VLProvider=GPTModelProvider, Qwen3VLModelDist=GPTModel)


class GPTModel:
    """Stub for paddlefleet's model class; no model is an instance of it."""


@functools.cache
def supply_gpt_model_of_trainer() -> None:
    """PaddleFormers 1.2: the evaluation of a LoRA model fails ("name 'GPTModel' is not defined").

    ``Trainer.evaluation_loop`` compares the base of a LoRA model with paddlefleet's class, which its module
    imports only with paddlefleet. The patch supplies the stub.
    """
    from paddleformers.trainer import trainer

    if importlib.util.find_spec("paddlefleet") is None:
        trainer.GPTModel = GPTModel


@functools.cache
def use_plain_classes() -> None:
    """PaddleFormers 1.1 and 1.2: ``AutoModelForCausalLM`` selects ``Qwen3ForCausalLM``, which needs
    paddlefleet, although ``Qwen3ForCausalLMDeprecated`` computes the same in plain Paddle. The same holds for
    ``AutoModelForConditionalGeneration`` and Qwen3-VL ("No module named 'paddlefleet'").

    The patch gives the plain class the other name, also in the config.json of checkpoints, as in
    transformers.
    """
    for family in TWO_CLASSES:
        module = importlib.import_module(f"paddleformers.transformers.{family}.modeling")
        for name in [name for name in vars(module) if name.endswith(DEPRECATED)]:
            plain = getattr(module, name)
            plain.__name__ = plain.__qualname__ = name.removesuffix(DEPRECATED)
            setattr(module, plain.__name__, plain)


@functools.cache
def supply_triton_kernels() -> None:
    """PaddleFormers 1.2: PaddleOCR-VL fails on import ("name 'triton' is not defined").

    Its modeling module imports ``paddleformers.triton_kernels``, which uses triton even if its import fails.
    The stub reports that the kernels are unavailable, so the model uses its own definition.
    """

    def kernel(*_):
        raise UserError("kernels of triton need CUDA; accepted on npu: operators of Paddle")

    kernel.is_available = lambda *arguments: False
    supply("paddleformers.triton_kernels", apply_rotary_emb=kernel, apply_rotary_pos_emb_vision=kernel)


def supply(name: str, **attributes) -> None:
    """Register a module ``name`` with these attributes."""
    module = types.ModuleType(name)
    module.__spec__ = ModuleSpec(name, loader=None)
    vars(module).update(attributes)
    sys.modules[name] = module


@functools.cache
def allow_synchronize() -> None:
    """PaddleFormers 1.1 and 1.2: gradient accumulation on the CPU place fails ("device should be gpu, xpu").

    The trainer calls ``paddle.device.synchronize``, which rejects the CPU place. The patch makes it a no-op.
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

    ``nn/norm.py`` calls a kernel that only exists in CUDA builds of Paddle. With the patch, ``fuse_rms_norm``
    selects ``paddle_fused.rms_norm``.
    """
    if paddle.is_compiled_with_cuda():
        return
    from paddleformers.nn import norm

    norm.fused_rms_norm_ext = incubate.fused_rms_norm_ext
