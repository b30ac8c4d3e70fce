from auto_parallel.row import Row

QKV = ("query", "key", "value")


def _row(case, dim, placement, names=QKV):
    return Row(
        operator="flash_attention",
        case=case,
        split=dict.fromkeys(names, dim),
        placements={"output 0": placement, **{f"gradient of {name}": placement for name in names}},
    )


_CAUSAL = "BSND, causal(), B 2, S (33, 33), N (4, 2), D (40, 40)"
_THREE_HEADS = "BNSD, band(6, 3), B 2, S (40, 33), N (3, 3), D (40, 40), bias [2, 3, 1, 33]"
ROWS = [
    _row(_CAUSAL, 0, "S0"),
    _row(_CAUSAL, 2, "S2"),  # two query heads and one key head
    _row(
        "BSH, causal(), B 2, S (20, 33), N (4, 2), D (40, 40), bias [2, 4, 20, 33]", 0, "S0", (*QKV, "bias")
    ),
    _row("SBH, prefix([4, 30]), B 2, S (33, 33), N (4, 2), D (1, 1)", 1, "S1"),
    _row("own mask in a band", 0, "S0"),
    _row(_THREE_HEADS, 1, "R", (*QKV, "bias")),  # not evenly by two
]
