"""Creation."""

import numpy
import paddle

from api_sweep.case import case, strided, vary
from api_sweep.inputs import exactly, integers, normal

FROM_NOTHING = [
    case("zeros", [3, 4]),
    case("ones", [3, 4], "int32"),
    case("full", [3, 4], 2.5),
    case("full", [], 2.5).named("0-d"),
    case("full", [0, 4], 2.5).named("empty"),
    case("eye", 4, 5),
    case("arange", 1, 10, 3),
    case("range", 1, 10, 3),
    case("linspace", 0.0, 1.0, 7),
    case("logspace", 0.0, 2.0, 5),
    case("tril_indices", 4, 5, -1),
    case("triu_indices", 4, 5, 1),
    case("to_tensor", [[1.5, 2.5]]),
    case("as_tensor", [[1.5, 2.5]]),
    case("asarray", [[1, 2]]),
    case("from_numpy", numpy.arange(4.0)),
    case("empty", [3, 4]).via(lambda empty, shape: empty(shape).fill_(1.5)),
]
FROM_TENSORS = [
    case("zeros_like", normal(3, 4)),
    case("ones_like", normal(3, 4)),
    case("full_like", normal(3, 4), 2.5),
    case("empty_like", normal(3, 4)).via(lambda empty_like, x: empty_like(x).fill_(1.5)),
    case("arange", exactly(1, "int64"), exactly(9, "int64"), exactly(2, "int64")).named("tensors"),
    case("linspace", exactly(0.0, "float32"), exactly(1.0, "float32"), exactly(5, "int32")).named("tensors"),
    case("full", exactly([2, 3], "int32"), 1.5).named("shape tensor"),
    case("Tensor.new_zeros", normal(3, 4), [2, 2]),
    case("Tensor.new_ones", normal(3, 4), [2, 2]),
    case("Tensor.new_full", normal(3, 4), [2, 2], 2.5),
    case("Tensor.item", exactly(2.5, "float32")),
    case("Tensor.numpy", normal(3, 4)),
    case("tolist", normal(3, 4)),
]
COPIES = [
    case("Tensor.cpu", normal(3, 4)).on_host("that is what it is for"),
    case("Tensor.detach", normal(3, 4)),
    case("Tensor.contiguous", normal(3, 4)),
    case("Tensor.to", normal(3, 4), "float64"),
    case("Tensor.type_as", normal(3, 4), integers(9, 2)),
]


def _initialised(initializer, *arguments):
    """A parameter filled by the initializer; random ones draw from the seeded generator."""
    return paddle.create_parameter([4, 6], "float32", default_initializer=initializer(*arguments))


INITIALIZERS = [
    case("nn.initializer.Constant", 1.5),
    case("nn.initializer.Assign", numpy.arange(24.0, dtype="float32").reshape(4, 6)),
    case("nn.initializer.Normal"),
    case("nn.initializer.TruncatedNormal"),
    case("nn.initializer.Uniform"),
    case("nn.initializer.XavierNormal"),
    case("nn.initializer.XavierUniform"),
    case("nn.initializer.KaimingNormal"),
    case("nn.initializer.KaimingUniform"),
    case("nn.initializer.Orthogonal"),
]

CASES = [
    case.forward_only()
    for case in (
        *FROM_NOTHING,
        *vary(FROM_TENSORS, strided),
        *COPIES,
        *(initializer.via(_initialised) for initializer in INITIALIZERS),
    )
]
CASES.append(case("create_parameter", [3, 4], "float32").forward_only())
