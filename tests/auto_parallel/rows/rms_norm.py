from auto_parallel.row import Row


def _row(case, dim, x):
    return Row(
        operator="rms_norm",
        case=case,
        split={"x": dim},
        placements={"output 0": x, "gradient of x": x, "gradient of weight": "P" if x != "R" else "R"},
    )


ROWS = [
    _row("x [4, 256]", 0, "S0"),
    _row("x [3, 5, 65]", 0, "S0"),  # two rows and one row
    _row("x [3, 5, 65]", 1, "S1"),
    _row("x [4, 256]", 1, "R"),  # the normalised dimension is put together first
]
