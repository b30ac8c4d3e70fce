from auto_parallel.row import Row


def _row(case, dim, x, angles=None):
    placements = {"output 0": x, "gradient of x": x}
    if angles is not None:
        placements |= {"gradient of cos": angles, "gradient of sin": angles}
    return Row(operator="rotary_mul", case=case, split={"x": dim}, placements=placements)


PLAIN = "half, x [2, 7, 3, 64], cos [1, 7, 1, 64], gradients of x"
INTERLEAVED = "interleave, x [2, 3, 7, 6], cos [1, 1, 7, 6], gradients of x cos sin"
ROWS = [
    _row(PLAIN, 0, "S0"),
    _row(PLAIN, 1, "S1"),  # cos and sin follow the sequence
    _row(PLAIN, 2, "S2"),
    _row(PLAIN, 3, "R"),  # pairs lie half a head apart: heads are put together first
    _row(INTERLEAVED, 0, "S0", "P"),  # a sum over the batch, over the processes
    _row(INTERLEAVED, 2, "S2", "S2"),
]
