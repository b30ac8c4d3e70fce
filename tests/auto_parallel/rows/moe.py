from auto_parallel.row import Row

OUT, X, WEIGHT = "output 0", "gradient of x", "gradient of weight"
PERMUTE, UNPERMUTE = "tokens [7, 65], indices [7, 2] of 4, None rows", "7 tokens, H 65, K 2, 0 dropped"
GROUPS = "groups [3, 0, 5, 1], [33, 47], type 1"


def _permute(case, split, out):
    # The gradient of tokens lies as that of the result.
    placements = {OUT: out, "gradient of tokens": out}
    return Row(operator="moe_token_permute", case=case, split=split, placements=placements)


def _unpermute(case, **gradients):
    placements = {OUT: "S1", "gradient of permuted": "S1"} | gradients
    return Row(operator="moe_token_unpermute", case=case, split={"permuted": 1}, placements=placements)


ROWS = [
    _permute(PERMUTE, {"tokens": 1}, "S1"),
    _permute("tokens [6, 33], indices [6, 2] of 4, 7 rows", {"tokens": 1}, "S1"),
    _permute(PERMUTE, {"tokens": 0, "indices": 0}, "R"),  # every process sorts all tokens
    _unpermute(UNPERMUTE, **{"gradient of probs": "P"}),
    _unpermute("6 tokens, H 33, K None, 2 dropped"),
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
        placements={OUT: "P", X: "S1", WEIGHT: "S1"},
    ),
]
