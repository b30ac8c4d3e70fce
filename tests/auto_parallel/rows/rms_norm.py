from auto_parallel.row import Row


def _row(operator, case, dim, x):
    """x, and the residual if there is one, split along ``dim``; they come out as ``x`` says."""
    tensors = ("x", "residual") if operator == "add_rms_norm" else ("x",)
    outputs = {f"output {i}": x for i in range(len(tensors))}
    gradients = {f"gradient of {name}": x for name in tensors}
    return Row(
        operator=operator,
        case=case,
        split=dict.fromkeys(tensors, dim),
        placements={**outputs, **gradients, "gradient of weight": "P" if x != "R" else "R"},
    )


ROWS = [
    row
    for operator in ("rms_norm", "add_rms_norm")
    for row in (
        _row(operator, "x [4, 256]", 0, "S0"),
        _row(operator, "x [3, 5, 65]", 0, "S0"),  # two rows and one row
        _row(operator, "x [3, 5, 65]", 1, "S1"),
        _row(operator, "x [2, 3, 5, 7], weight [5, 7]", 1, "S1"),
        _row(operator, "x [4, 256]", 1, "R"),  # the normalised dimension is put together first
    )
]
