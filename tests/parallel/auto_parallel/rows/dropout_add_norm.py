from auto_parallel.row import Row

ALL = ("residual", "bias", "rowscale", "layerscale")
BY_ROW = ("x0", "residual", "rowscale")


def _row(operator, shape, dim, has=ALL, gathered=False):
    """The tensors that have rows split along ``dim``; weight, bias and layerscale whole."""
    names = ("x0", "weight", *has)
    whole = "R" if gathered else "P"
    gradients = {f"gradient of {name}": f"S{dim}" if name in BY_ROW else whole for name in names}
    out = "R" if gathered else f"S{dim}"
    return Row(
        operator=operator,
        case=", ".join([f"x0 {shape}", *has]),
        split={name: dim for name in names if name in BY_ROW},
        placements={"output 0": out, "output 1": out, **gradients},
        gathered=gathered,
    )


ROWS = [
    row
    for operator in ("dropout_add_layer_norm", "dropout_add_rms_norm")
    for row in (
        _row(operator, [70, 513], 0),
        _row(operator, [2, 7, 40], 0, has=()),
        _row(operator, [2, 7, 40], 0, has=("residual",)),
        _row(operator, [2, 7, 40], 0, has=("rowscale",)),
        _row(operator, [3, 5, 64], 0, gathered=True),  # not evenly by two
    )
]
