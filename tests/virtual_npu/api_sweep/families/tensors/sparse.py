"""Sparse tensors: indices and values are compared."""

import paddle

from api_sweep.case import case, cases_of
from api_sweep.inputs import exactly, fraction, normal, positive

INDICES = exactly([[0, 1, 2], [1, 2, 0]], "int64")
ROWS = exactly([0, 1, 2, 3], "int64")
COLUMNS = exactly([1, 2, 0], "int64")
CSR_BACKWARD = "the backward of values() raises on the CPU place too"


def _coo(indices, values):
    return paddle.sparse.sparse_coo_tensor(indices, values, [3, 3], stop_gradient=False)


def _on_coo(function, indices, values, *args):
    """Applied to the sparse tensor with these values."""
    return function(_coo(indices, values), *args)


def _on_two(function, indices, left, right):
    return function(_coo(indices, left), _coo(indices, right))


CONVERSION = [
    case("sparse.sparse_coo_tensor", INDICES, normal(3), [3, 3], stop_gradient=False),
    case("Tensor.to_sparse_coo", normal(3, 4), 2),
    case("Tensor.to_sparse_csr", normal(3, 4)).forward_only(CSR_BACKWARD),
]
ON_ONE = [
    *cases_of("abs asin asinh atan atanh deg2rad expm1 log1p", INDICES, fraction(3), within="sparse"),
    *cases_of("neg rad2deg sin sinh sqrt square tan tanh", INDICES, fraction(3), within="sparse"),
    case("sparse.cast", INDICES, normal(3), "int64", "float64"),
    case("sparse.coalesce", INDICES, normal(3)).forward_only(),
    case("sparse.isnan", INDICES, normal(3)).forward_only(),
    case("sparse.pow", INDICES, positive(3), 2.0),
    case("sparse.reshape", INDICES, normal(3), [9, 1]),
    case("sparse.sum", INDICES, normal(3)),
    case("sparse.transpose", INDICES, normal(3), [1, 0]),
    case("Tensor.to_dense", INDICES, normal(3)),
]
ON_TWO = [
    *cases_of("add subtract multiply", INDICES, normal(3), normal(3), within="sparse"),
    case("sparse.divide", INDICES, normal(3), positive(3)),
]

FALLING_BACK = [*CONVERSION, *(case.via(_on_coo) for case in ON_ONE), *(case.via(_on_two) for case in ON_TWO)]

CREATION = case("sparse.sparse_csr_tensor", ROWS, COLUMNS, normal(3), [3, 3]).forward_only(CSR_BACKWARD)

CASES = [CREATION, *FALLING_BACK]
