from auto_parallel.row import Row


def _row(case, dim, angles=None, gathered=False):
    placements = {"output 0": "R" if gathered else f"S{dim}", "gradient of x": f"S{dim}"}
    if angles is not None:
        placements |= {"gradient of cos": angles, "gradient of sin": angles}
    return Row("rotary_mul", case, {"x": dim}, placements, gathered=gathered)


PLAIN = "half, x [2, 7, 3, 64], cos [1, 7, 1, 64], gradients of x"
INTERLEAVED = "interleave, x [2, 3, 7, 6], cos [1, 1, 7, 6], gradients of x cos sin"
ROWS = [
    _row(PLAIN, 0),
    _row("half, x [2, 7, 3, 64], cos [2, 7, 1, 64], gradients of x", 0),  # cos and sin follow the batch
    _row("half, x [1, 129, 2, 128], cos [1, 129, 1, 128], gradients of x", 2),
    _row(PLAIN, 1, gathered=True),  # not evenly by two
    _row(PLAIN, 3, gathered=True),  # pairs lie half a head apart
    _row(INTERLEAVED, 0, "P"),  # a sum over the batch, over the processes
    _row("half, x [7, 2, 3, 66], cos [7, 1, 1, 66], gradients of x cos sin", 1, "P"),
]
