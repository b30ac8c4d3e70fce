from auto_parallel.row import Row

ALL = ("residual", "bias", "rowscale", "layerscale")
BY_ROW = ("x0", "residual", "rowscale")


def _row(operator, shape, dim, has=ALL):
    """The tensors that have rows split along ``dim``; weight, bias and layerscale whole."""
    names = ("x0", "weight", *has)
    gradients = {f"gradient of {name}": f"S{dim}" if name in BY_ROW else "P" for name in names}
    return Row(
        operator=operator,
        case=", ".join([f"x0 {shape}", *has]),
        split={name: dim for name in names if name in BY_ROW},
        placements={"output 0": f"S{dim}", "output 1": f"S{dim}", **gradients},
    )


ROWS = [
    row
    for operator in ("dropout_add_layer_norm", "dropout_add_rms_norm")
    for row in (
        _row(operator, [3, 5, 64], 0),  # two rows and one row
        _row(operator, [3, 5, 64], 1),
        _row(operator, [2, 7, 40], 0, has=()),
        _row(operator, [2, 7, 40], 1, has=("residual",)),
        _row(operator, [2, 7, 40], 1, has=("rowscale",)),
    )
]
