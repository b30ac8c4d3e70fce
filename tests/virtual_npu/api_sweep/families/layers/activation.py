"""Activation functions, as functions and as layers."""

from api_sweep.case import case, cases_of, empty, layer, own_kernel, strided, to_static, vary
from api_sweep.inputs import constant, normal, wide

FUNCTIONS = [
    *cases_of(
        "celu elu gelu glu hardshrink hardsigmoid hardswish hardtanh leaky_relu log_sigmoid log_softmax mish "
        "relu relu6 selu silu softmax softplus softshrink softsign swish tanh tanhshrink "
        "thresholded_relu",
        wide(3, 6),
        within="nn.functional",
    ),
    case("nn.functional.gelu", wide(3, 6), approximate=True).named("tanh"),
    case("nn.functional.softmax", wide(3, 6), axis=0).named("axis"),
    case("nn.functional.log_softmax", wide(3, 6), axis=0).named("axis"),
    own_kernel(case("nn.functional.swiglu", wide(3, 6))),
    own_kernel(case("nn.functional.swiglu", wide(3, 6), wide(3, 6)).named("two inputs")),
    case("softmax", wide(3, 6)),
]
PARAMETRISED = [
    case("nn.functional.maxout", wide(2, 6, 3, 2), groups=3),
    case("nn.functional.prelu", wide(2, 3, 4), normal(3)),
    case("nn.functional.rrelu", wide(3, 6), training=False),
    case("incubate.softmax_mask_fuse", wide(2, 2, 4, 4), constant(normal(2, 1, 4, 4))),
]
IN_PLACE = cases_of(
    "elu_ hardtanh_ leaky_relu_ relu_ softmax_ tanh_ thresholded_relu_", wide(3, 6), within="nn.functional"
)
LAYERS = (
    "CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh Identity LeakyReLU LogSigmoid LogSoftmax "
    "Mish ReLU ReLU6 SELU Sigmoid Silu Softmax Softplus Softshrink Softsign Swish Tanh Tanhshrink "
    "ThresholdedReLU"
)

CASES = [
    *vary(FUNCTIONS, empty, strided, to_static),
    *vary(PARAMETRISED, strided),
    *IN_PLACE,
    *[layer(name, (), wide(3, 6)) for name in LAYERS.split()],
    layer("Maxout", (3,), wide(2, 6, 3, 2)),
    layer("PReLU", (3,), wide(2, 3, 4)),
    layer("Softmax2D", (), wide(2, 3, 4, 2)),
    layer("RReLU", (), wide(3, 6)),
]
