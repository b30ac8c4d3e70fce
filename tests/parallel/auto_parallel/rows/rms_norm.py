from auto_parallel.row import Row


def _row(operator, case, dim, gathered=False):
    """x, and the residual if there is one, split along ``dim``; the gradients lie as they do."""
    tensors = ("x", "residual") if operator == "add_rms_norm" else ("x",)
    outputs = {f"output {i}": "R" if gathered else f"S{dim}" for i in range(len(tensors))}
    gradients = {f"gradient of {name}": f"S{dim}" for name in tensors}
    return Row(
        operator=operator,
        case=case,
        split=dict.fromkeys(tensors, dim),
        placements={**outputs, **gradients, "gradient of weight": "R" if gathered else "P"},
        gathered=gathered,
    )


ROWS = [
    row
    for operator in ("rms_norm", "add_rms_norm")
    for row in (
        _row(operator, "x [4, 256]", 0),
        _row(operator, "x [2, 3, 5, 7], weight [5, 7]", 0),
        _row(operator, "x [3, 5, 65]", 0, gathered=True),  # not evenly by two
        _row(operator, "x [4, 256]", 1, gathered=True),  # the normalised dimension
    )
]
