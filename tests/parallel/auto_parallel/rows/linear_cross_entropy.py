from auto_parallel.row import Row

HIDDEN, WEIGHT, LOSS = "gradient of hidden", "gradient of weight", "output 0"


def _tokens(case, dim, loss, gathered=False):
    """Every process has some of the tokens and the whole vocabulary."""
    return Row(
        operator="linear_cross_entropy",
        case=case,
        split={"hidden": dim, "labels": dim},
        placements={LOSS: loss, HIDDEN: f"S{dim}", WEIGHT: "R" if gathered else "P"},
        summed=(LOSS,) if loss == "R" else (),
        gathered=gathered,
    )


def _vocabulary(case, dim):
    """Every process has all of the tokens and a part of the vocabulary."""
    return Row(
        operator="linear_cross_entropy",
        case=case,
        split={"weight": dim},
        placements={LOSS: "R", HIDDEN: "P", WEIGHT: f"S{dim}"},
        summed=(LOSS, WEIGHT),  # weight's gradient depends on the sum over the vocabulary
    )


ROWS = [
    _tokens("tokens [64], H 48, V 1000, weight [V, H], none", 0, "S0"),
    _tokens("tokens [6], H 8, V 11, weight [H, V], mean, all ignored", 0, "R"),
    _tokens("tokens [3, 17], H 33, V 101, weight [H, V], none", 1, "R", gathered=True),  # not evenly by two
    _tokens("tokens [3, 17], H 33, V 101, weight [V, H], sum", 0, "R", gathered=True),
    _tokens("tokens [64], H 48, V 1000, weight [H, V], mean", 0, "R"),
    _vocabulary("tokens [64], H 48, V 1000, weight [H, V], mean", 1),
    _vocabulary("tokens [64], H 48, V 1000, weight [V, H], none", 0),
]
