from auto_parallel.row import Row


def _two(dim):
    placement = f"S{dim}"
    return Row(
        operator="swiglu",
        case="x and y [4, 256]",
        split={"x": dim, "y": dim},
        placements={"output 0": placement, "gradient of x": placement, "gradient of y": placement},
    )


def _halves(dim, gathered):
    return Row(
        operator="swiglu",
        case="x [4, 512]",
        split={"x": dim},
        placements={"output 0": "R" if gathered else f"S{dim}", "gradient of x": f"S{dim}"},
        gathered=gathered,
    )


ROWS = [
    _two(0),
    _two(1),
    _halves(0, gathered=False),
    _halves(1, gathered=True),  # gate and up lie half a row apart
]
