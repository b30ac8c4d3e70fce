"""Rotary position embedding."""

from paddle_fused.registry import Cost, Operator


def _rotated(tensors: int):
    def cost(item_size: int, backward: bool, tokens: int, heads: int, head_dim: int) -> Cost:
        """Each tensor and its gradient are read and written. Cosines and sines are N times smaller."""
        return Cost(tokens * heads * head_dim * item_size * tensors * (4 if backward else 2))

    return cost


OPERATORS = (
    Operator("rotary_mul", __name__, _rotated(1)),
    Operator("apply_rotary", __name__, _rotated(2), switch="use_fused_rope"),
)
