from auto_parallel.row import Row

QKV = ("query", "key", "value")


def _row(case, dim):
    placements = {"output 0": f"S{dim}"} | {f"gradient of {name}": f"S{dim}" for name in QKV}
    return Row("flashmask_attention", case, dict.fromkeys(QKV, dim), placements)


ROWS = [
    _row("documents, indices [2, 1, 33, 1], S (33, 33), N (4, 2)", 0),
    _row("rows of each key head, indices [2, 2, 33, 1], S (33, 33), N (4, 2)", 2),
    _row("two ranges, indices [2, 1, 33, 4], S (33, 33), N (4, 2)", 0),
]
