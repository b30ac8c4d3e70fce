"""Patches for the checkpoints of PaddleFormers."""

from __future__ import annotations

import functools
import types

import paddle.distributed


@functools.cache
def fix_resume_on_one_rank() -> None:
    """PaddleFormers 1.1 and 1.2: a job of one rank cannot resume from a checkpoint in flex_checkpoint, the
    default format ("'Fleet' object has no attribute '_hcg'").

    ``_load_flex_checkpoint`` asks Fleet for its groups and, in bfloat16, the optimizer for ``_inner_opt``.
    Neither exists on one rank, and the values are used only with several ranks. The patch supplies None for
    both.
    """
    from paddleformers.trainer import Trainer

    upstream = Trainer._load_flex_checkpoint
    scope = {**upstream.__globals__, "dist": _WithoutGroups()}
    alone = types.FunctionType(upstream.__code__, scope, upstream.__name__, upstream.__defaults__)

    @functools.wraps(upstream)
    def _load_flex_checkpoint(self, resume_from_checkpoint):
        if self.args.world_size > 1:
            return upstream(self, resume_from_checkpoint)
        lacks_inner = not hasattr(self.optimizer, "_inner_opt")
        if lacks_inner:
            self.optimizer._inner_opt = None
        try:
            return alone(self, resume_from_checkpoint)
        finally:
            if lacks_inner:
                del self.optimizer._inner_opt

    Trainer._load_flex_checkpoint = _load_flex_checkpoint


class _WithoutGroups:
    """``paddle.distributed`` in a process without groups."""

    fleet = types.SimpleNamespace(get_hybrid_communicate_group=lambda: None)

    def __getattr__(self, name: str):
        return getattr(paddle.distributed, name)


@functools.cache
def fix_qwen2_5_vl_biases() -> None:
    """PaddleFormers 1.1 and 1.2: Qwen2.5-VL cannot load a checkpoint that it has saved
    ("qkv_proj.bias should be assigned before!").

    Its mapping to the stored names splits ``qkv_proj.bias``, but does not rename the three parts. They are
    stored as ``model.language_model.layers...``, and read as ``model.layers...``. The patch renames them.
    """
    from paddleformers.transformers.qwen2_5_vl.modeling import Qwen2_5_VLPretrainedModel

    upstream = Qwen2_5_VLPretrainedModel._gen_inv_aoa_config.__func__

    @functools.wraps(upstream)
    def _gen_inv_aoa_config(cls, config):
        mapping = upstream(cls, config)
        targets = cls._checkpoint_conversion_mapping.values()
        prefix = next((name for name in targets if "language_model" in name), "language_model")
        mapping["aoa_statements"] += [
            f"{prefix}.{bias} -> model.{bias}"
            for layer in range(config.text_config.num_hidden_layers)
            for bias in (f"layers.{layer}.self_attn.{name}_proj.bias" for name in "qkv")
        ]
        return mapping

    Qwen2_5_VLPretrainedModel._gen_inv_aoa_config = classmethod(_gen_inv_aoa_config)
