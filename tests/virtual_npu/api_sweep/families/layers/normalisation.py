"""Normalisation."""

from api_sweep.case import case, layer, strided, to_static, vary
from api_sweep.inputs import constant, normal, positive

FUNCTIONS = [
    case("nn.functional.layer_norm", normal(3, 4, 6), [6], normal(6), normal(6)),
    case("nn.functional.layer_norm", normal(3, 4, 6), [4, 6]).named("two axes"),
    case("layer_norm", normal(3, 6), [6], normal(6), normal(6)),
    case(
        "nn.functional.batch_norm",
        normal(4, 3, 5),
        constant(normal(3)),
        constant(positive(3)),
        normal(3),
        normal(3),
    ),
    case(
        "nn.functional.batch_norm",
        normal(4, 3, 5),
        constant(normal(3)),
        constant(positive(3)),
        normal(3),
        normal(3),
        training=True,
    ).named("training"),
    case("nn.functional.instance_norm", normal(2, 3, 5, 4)),
    case("nn.functional.group_norm", normal(2, 6, 5), 3, 1e-5, normal(6), normal(6)),
    case("nn.functional.local_response_norm", normal(2, 6, 5), size=3),
    case("nn.functional.normalize", normal(3, 6), p=2, axis=1),
    # Without fused_layer_norm and fused_rms_norm of incubate.nn.functional: their CPU kernels in Paddle 3.3.1
    # execute AVX-512 instructions on every machine, which ends the process on a machine without them.
]
LAYERS = [
    layer("LayerNorm", (6,), normal(3, 6)),
    layer("BatchNorm", (3,), normal(4, 3, 5, 2)),
    layer("BatchNorm1D", (3,), normal(4, 3, 5)),
    layer("BatchNorm2D", (3,), normal(4, 3, 5, 2)),
    layer("BatchNorm3D", (3,), normal(2, 3, 2, 3, 2)),
    layer("InstanceNorm1D", (3,), normal(2, 3, 5)),
    layer("InstanceNorm2D", (3,), normal(2, 3, 5, 4)),
    layer("InstanceNorm3D", (3,), normal(2, 3, 2, 3, 2)),
    layer("GroupNorm", (3, 6), normal(2, 6, 5)),
    layer("LocalResponseNorm", (3,), normal(2, 6, 5)),
    layer("SpectralNorm", ((4, 6),), normal(4, 6)),
]

CASES = [*vary(FUNCTIONS, strided, to_static), *LAYERS]
