"""Matmuls of groups of rows, each group with a separate matrix."""

from paddle_fused.registry import Cost, Operator


def cost(item_size: int, backward: bool, rows: int, depth: int, columns: int, groups: int) -> Cost:
    """Each row is multiplied by the matrix of its group. Backward has two matmuls of the same size."""
    sizes = rows * depth + groups * depth * columns + rows * columns
    times = 3 if backward else 1
    return Cost(sizes * item_size * times, 2 * rows * depth * columns * times)


OPERATORS = (Operator("grouped_matmul", __name__, cost, switch="use_fused_moe"),)
