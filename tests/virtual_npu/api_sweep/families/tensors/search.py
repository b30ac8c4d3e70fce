"""Sorting and search."""

from api_sweep.case import case, strided, to_static, vary
from api_sweep.inputs import integers, normal, ordered, ties

CASES = vary(
    [
        case("sort", normal(3, 5), axis=0, descending=True),
        case("msort", normal(3, 5)),
        case("argsort", normal(3, 5), axis=1).forward_only(),
        case("argsort", ties(3, 5), axis=1, stable=True).named("stable").forward_only(),
        case("argmax", normal(3, 5), axis=1).forward_only(),
        case("argmin", normal(3, 5), axis=0, keepdim=True).forward_only(),
        case("topk", normal(3, 5), k=2, axis=1),
        case("kthvalue", normal(3, 5), k=2, axis=1),
        case("mode", ties(3, 5), axis=1).forward_only("ties leave the gradient undefined"),
        case("unique", integers(6, 12), return_index=True, return_inverse=True, return_counts=True),
        case("unique", integers(3, 6, 2), axis=0).named("axis"),
        case("unique_consecutive", integers(3, 12), return_inverse=True, return_counts=True),
        case("searchsorted", ordered(3, 6), normal(3, 4)).forward_only(),
        case("bucketize", normal(3, 4), ordered(6)).forward_only(),
    ],
    strided,
    to_static,
)
