"""AdamW."""

from paddle_fused.registry import Cost, Operator


def cost(item_size: int, backward: bool, parameters: int) -> Cost:
    """Reads gradient, weight and both moments, writes weight and moments: 7 numbers per parameter.

    In 16 bits, the weights have a float32 master copy and float32 moments: 2 (gradient) + 2 (weight) + 24
    bytes. There is no backward.
    """
    return Cost(parameters * (28 if item_size == 4 else 30), in_place=True)


OPERATORS = (Operator("fused_adamw", __name__, cost, "FusedAdamW", "use_fused_adamw"),)
