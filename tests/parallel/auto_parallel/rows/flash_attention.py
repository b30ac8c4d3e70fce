from auto_parallel.row import Row

QKV = ("query", "key", "value")


def _row(case, dim, gathered=False, **others):
    """Query, key and value split along ``dim``; ``others``: name to dimension."""
    split = {**dict.fromkeys(QKV, dim), **others}
    placements = {"output 0": "R" if gathered else f"S{dim}"}
    placements |= {f"gradient of {name}": f"S{of}" for name, of in split.items()}
    return Row("flash_attention", case, split, placements, gathered=gathered)


_CAUSAL = "BSND, causal(), B 2, S (33, 33), N (4, 2), D (40, 40)"
_BIAS = "BSND, causal(align='top_left'), B 2, S (20, 33), N (4, 2), D (40, 40), bias [1, 4, 20, 33]"
_THREE_HEADS = "BNSD, band(6, 3), B 2, S (40, 33), N (3, 3), D (40, 40), bias [2, 3, 1, 33]"
_OF_ONE_BATCH = _row(_BIAS, 0)
ROWS = [
    _row(_CAUSAL, 0),
    _row(_CAUSAL, 2),  # two query heads and one key head
    _row(_BIAS, 2, bias=1),
    Row(
        "flash_attention",
        _BIAS,
        _OF_ONE_BATCH.split,
        {**_OF_ONE_BATCH.placements, "gradient of bias": "P"},  # a sum over the batch, over the processes
    ),
    _row("BSH, causal(), B 2, S (20, 33), N (4, 2), D (40, 40), bias [2, 4, 20, 33]", 0, bias=0),
    _row("SBH, prefix([4, 30]), B 2, S (33, 33), N (4, 2), D (1, 1)", 1),
    _row("BSND, documents([[5, 0, 1, 27], [33]]), B 2, S (33, 33), N (4, 2), D (40, 40)", 0),
    _row("BSND, documents([[5, 0, 1, 27], [33]]), B 2, S (33, 33), N (4, 2), D (40, 40)", 2),
    _row("TND, causal(), lengths [7, 0, 1, 20] and [7, 3, 1, 20], N (4, 2), D 16", 1),
    _row("TND, band(4, 0), lengths [7, 1, 20] and [9, 1, 24], N (4, 2), D 16", 1),
    _row("own mask in a band", 0),
    _row(_THREE_HEADS, 1, gathered=True, bias=1),  # not evenly by two
    _row(_CAUSAL, 1, gathered=True),  # every query needs all keys
]
