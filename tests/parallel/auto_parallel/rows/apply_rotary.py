from auto_parallel.row import Row

IN_ORDER = "q [2, 7, 4, 64], 4 key heads, table [1, 7, 1, 64], in order"
FROM_A_TABLE = "q [2, 7, 4, 64], 2 key heads, table [16, 64], in order"
BY_POSITION = "q [2, 5, 6, 32], 2 key heads, table [16, 32], positions [2, 5]"


def _row(case, dim, **others):
    results = ("output 0", "output 1", "gradient of q", "gradient of k")
    return Row("apply_rotary", case, {"q": dim, "k": dim, **others}, dict.fromkeys(results, f"S{dim}"))


ROWS = [
    _row(IN_ORDER, 0),  # batch
    _row(IN_ORDER, 2),  # heads
    _row(FROM_A_TABLE, 2),
    _row(BY_POSITION, 0, positions=0),
    _row(BY_POSITION, 2),
]
