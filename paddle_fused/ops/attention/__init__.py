"""Flash attention with the masks of ``paddle_fused.masks``."""

from paddle_fused.registry import Cost, Operator


def cost(
    item_size: int, backward: bool, tokens: int, heads: int, head_dim: int, computed: float = 1.0
) -> Cost:
    """The cost of attention. Forward has two matmuls (scores and output): 4 S S N D for a full mask.

    Backward has five: the scores again, and the gradients of probabilities, values, queries and keys.
    ``computed`` is the fraction of unmasked scores.
    """
    elements = tokens * heads * head_dim
    flops = 4 * tokens * elements * computed
    return Cost(elements * item_size * (12 if backward else 4), int(flops * (3.5 if backward else 1)))


OPERATORS = (
    Operator(
        "flash_attention",
        __name__,
        cost,
        switch="use_npu_fusion_attention",
        contract_modules=("contract", "mask_contract"),
    ),
)
