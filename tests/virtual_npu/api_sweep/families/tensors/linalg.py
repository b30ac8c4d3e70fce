"""Linear algebra."""

import paddle

from api_sweep.case import case, strided, to_static, vary
from api_sweep.inputs import constant, definite, invertible, normal, triangular

PRODUCTS = [
    case("matmul", normal(3, 5), normal(5, 4)),
    case("matmul", normal(2, 3, 5), normal(2, 4, 5), transpose_y=True).named("batched, transposed"),
    case("matmul", normal(1, 3, 5), normal(4, 5, 2)).named("broadcast"),
    case("matmul", normal(0, 5), normal(5, 4)).named("empty"),
    case("mm", normal(3, 5), normal(5, 4)),
    case("bmm", normal(2, 3, 5), normal(2, 5, 4)),
    case("mv", normal(3, 5), normal(5)),
    case("dot", normal(5), normal(5)),
    case("vecdot", normal(3, 5), normal(3, 5)),
    case("inner", normal(3, 5), normal(4, 5)),
    case("outer", normal(3), normal(5)),
    case("ger", normal(3), normal(5)),
    case("kron", normal(2, 3), normal(3, 2)),
    case("addmm", normal(3, 4), normal(3, 5), normal(5, 4), beta=0.5, alpha=2.0),
    case("baddbmm", normal(2, 3, 4), normal(2, 3, 5), normal(2, 5, 4), beta=0.5),
    case("tensordot", normal(3, 4, 5), normal(4, 5, 2), axes=2),
    case("einsum", "bij,bjk->bik", normal(2, 3, 5), normal(2, 5, 4)),
    case("linalg.multi_dot", [normal(3, 5), normal(5, 2), normal(2, 4)]),
    case("linalg.matrix_power", invertible(4, 4), 3),
    case("linalg.matrix_exp", normal(3, 3)),
    case("nn.functional.linear", normal(3, 5), normal(5, 4), normal(4)),
    case("nn.functional.bilinear", normal(3, 5), normal(3, 4), normal(2, 5, 4), normal(1, 2)),
    case("Tensor.addmm_", normal(3, 4), normal(3, 5), normal(5, 4)),
]
SOLVING = [
    case("linalg.inv", invertible(2, 4, 4)),
    case("linalg.solve", invertible(4, 4), normal(4, 3)),
    case("linalg.triangular_solve", triangular(4, 4), normal(4, 3), upper=False),
    case("linalg.cholesky", definite(4, 4)),
    case("linalg.cholesky_solve", normal(4, 3), triangular(4, 4)),
    case("linalg.cholesky_inverse", triangular(4, 4)),
    case("linalg.lu", invertible(4, 4)),
    case("linalg.lu_unpack", invertible(4, 4)).via(lambda unpack, x: unpack(*paddle.linalg.lu(x))),
    case("linalg.lu_solve", normal(4, 2), invertible(4, 4)).via(
        lambda solve, b, x: solve(b, *paddle.linalg.lu(x))
    ),
    case("linalg.lstsq", normal(6, 3), normal(6, 2)).forward_only(),
    case("linalg.pinv", normal(5, 3)),
    case("linalg.qr", normal(5, 3)),
    case("linalg.householder_product", normal(5, 3), normal(3)).forward_only(
        "its backward raises on the CPU place too"
    ),
    case("linalg.ormqr", normal(4, 4), normal(4), normal(4, 2)).forward_only(),
]
SPECTRA = [
    case("linalg.eigh", definite(4, 4)),
    case("linalg.eigvalsh", definite(4, 4)),
    case("linalg.eig", constant(invertible(4, 4))).forward_only("eigenvectors are defined up to a phase"),
    case("linalg.eigvals", constant(invertible(4, 4))).forward_only(),
    case("linalg.svd", normal(5, 3)),
    case("linalg.svdvals", normal(5, 3)),
    case("linalg.pca_lowrank", normal(6, 4), q=2).forward_only(),
    case("linalg.svd_lowrank", normal(6, 4), q=2).forward_only(),
    case("linalg.matrix_rank", normal(5, 3)).forward_only(),
    case("linalg.cond", invertible(4, 4)),
    case("linalg.det", invertible(2, 4, 4)),
    case("linalg.slogdet", invertible(2, 4, 4)),
    case("linalg.norm", normal(3, 5), p=3),
    case("linalg.vector_norm", normal(3, 5), p=1.5, axis=1),
    case("linalg.matrix_norm", normal(2, 3, 5)),
    case("linalg.matrix_norm", normal(3, 5), p="nuc").named("nuclear"),
    case("linalg.cov", normal(3, 6)),
    case("linalg.corrcoef", normal(3, 6)),
    case("linalg.vecdot", normal(3, 5), normal(3, 5)),
    case("linalg.cross", normal(4, 3), normal(4, 3)),
    case("linalg.matrix_transpose", normal(3, 4)),
]


CPU_REFUSES = ["paddle.linalg.matrix_exp[to_static]"]

CASES = [
    *vary(PRODUCTS, strided, to_static, skip=CPU_REFUSES),
    *vary(SOLVING, strided),
    *vary(SPECTRA, strided),
]
