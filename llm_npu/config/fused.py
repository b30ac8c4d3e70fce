"""The switches of the fused operators, under the names that openMind's users know."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field


@dataclass
class FusedArguments:
    """Which fused operators ``llm_npu.surgery`` puts into the model.

    PaddleNLP has switches of the same names for its own fused paths; those stay off, whatever is given here.
    """

    disable_fused_options: bool = field(
        default=False, metadata={"help": "The model as PaddleNLP has it; the switches below do nothing."}
    )
    use_npu_fusion_attention: bool = field(
        default=True,
        metadata={
            "help": "Attention by paddle_fused.flash_attention. --use_flash_attention, PaddleNLP's name, "
            "means the same; its own path stays off."
        },
    )
    use_fused_rms_norm: bool = field(
        default=True,
        metadata={
            "help": "RMSNorm by paddle_fused.rms_norm. Not PaddleNLP's switch of this name: its own path "
            "stays off."
        },
    )
    use_fused_rope: bool = field(
        default=True,
        metadata={
            "help": "Rotary embedding by paddle_fused.apply_rotary, which takes positions and a key/value "
            "cache. Not PaddleNLP's switch of this name: its own path stays off."
        },
    )
    use_fused_swiglu: bool = field(
        default=True, metadata={"help": "SwiGLU of the feed-forward layers by paddle_fused.swiglu."}
    )
    use_fused_moe: bool = field(
        default=True,
        metadata={"help": "Experts of Mixtral and Qwen2-MoE by the operators of paddle_fused for them."},
    )

    def switches(self) -> dict[str, bool]:
        """The switches of ``surgery.apply_fused_kernels``; all off with ``disable_fused_options``."""
        given = dataclasses.asdict(self)
        disabled = given.pop("disable_fused_options")
        return {name: on and not disabled for name, on in given.items()}
