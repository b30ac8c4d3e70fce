from auto_parallel.row import Row

OUT, X, WEIGHT = "output 0", "gradient of x", "gradient of weight"
ODD, EVEN = "tokens [7, 65], indices [7, 2] of 4, None rows", "tokens [9, 16], indices [9] of 3, None rows"
GROUPS = "groups [3, 0, 5, 1], [32, 48], type 0"


def _permute(case, split, gathered=False):
    (dim,) = set(split.values())
    placements = {OUT: "R" if gathered else f"S{dim}", "gradient of tokens": f"S{dim}"}
    return Row("moe_token_permute", case, split, placements, gathered=gathered)


def _unpermute(case, gathered=False, **gradients):
    placements = {OUT: "R" if gathered else "S1", "gradient of permuted": "S1"} | gradients
    return Row("moe_token_unpermute", case, {"permuted": 1}, placements, gathered=gathered)


ROWS = [
    _permute(EVEN, {"tokens": 1}),
    _permute("tokens [40, 8], indices [40, 4] of 6000, 200 rows", {"tokens": 1}),
    _permute(ODD, {"tokens": 1}, gathered=True),  # not evenly by two
    _permute(ODD, {"tokens": 0, "indices": 0}, gathered=True),  # every process sorts all tokens
    _unpermute("5 tokens, H 1000, K 3, 0 dropped, float32 probs", **{"gradient of probs": "P"}),
    _unpermute("9 tokens, H 16, K None, 0 dropped"),
    _unpermute("6 tokens, H 33, K None, 2 dropped", gathered=True),
    Row(
        operator="grouped_matmul",
        case=GROUPS,
        split={"weight": 2},
        placements={OUT: "S1", X: "P", WEIGHT: "S2"},
    ),
    Row(
        operator="grouped_matmul",
        case=GROUPS,
        split={"x": 1, "weight": 1},
        placements={OUT: "P", X: "S1", WEIGHT: "S1"},
    ),
    Row(
        operator="grouped_matmul",  # the weight follows x
        case=GROUPS,
        split={"x": 1},
        placements={OUT: "P", X: "S1", WEIGHT: "R"},
        summed=(WEIGHT,),
    ),
]
