"""FlashMask attention: flash_attention with row-index masks, under Paddle's name and arguments."""

from paddle_fused.registry import Operator

from ..attention import cost

OPERATORS = (Operator("flashmask_attention", __name__, cost, contract_modules=()),)
