"""The measured operators: each file defines an operator's cost, golden values, and how frameworks run it."""

from .adamw import AdamW
from .attention import Attention
from .base import ITEM_SIZE, Cost, Unavailable, Work, filled
from .cross_entropy import CrossEntropy, Linear, LinearCrossEntropy
from .decoder import Decoder
from .dropout_add_norm import DropoutAddLayerNorm, DropoutAddRmsNorm
from .moe import Moe
from .rms_norm import AddRmsNorm, RmsNorm
from .rotary import Rotary
from .swiglu import SwiGLU

OPERATORS: dict[str, type[Work]] = {
    work.operator: work
    for work in (
        RmsNorm, AddRmsNorm, SwiGLU, Rotary, DropoutAddLayerNorm, DropoutAddRmsNorm, AdamW,
        CrossEntropy, Linear, LinearCrossEntropy, Attention, Moe, Decoder,
    )
}  # fmt: skip

__all__ = ["ITEM_SIZE", "OPERATORS", "Attention", "Cost", "Decoder", "Unavailable", "Work", "filled"]
