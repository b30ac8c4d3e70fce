"""Pooling."""

import paddle

from api_sweep.case import case, layer, strided, to_static, vary
from api_sweep.inputs import normal, positive

SIGNALS = {1: normal(2, 3, 9), 2: normal(2, 3, 7, 6), 3: normal(2, 3, 5, 4, 6)}
FUNCTIONS = [
    *(case(f"nn.functional.avg_pool{dims}d", x, 2, stride=2) for dims, x in SIGNALS.items()),
    *(case(f"nn.functional.max_pool{dims}d", x, 2, stride=2) for dims, x in SIGNALS.items()),
    *(case(f"nn.functional.adaptive_avg_pool{dims}d", x, 3) for dims, x in SIGNALS.items()),
    *(case(f"nn.functional.adaptive_max_pool{dims}d", x, 3) for dims, x in SIGNALS.items()),
    case("nn.functional.max_pool2d", normal(2, 3, 7, 6), 2, return_mask=True).named("mask"),
    case("nn.functional.avg_pool2d", normal(2, 3, 7, 6), 3, padding=1, exclusive=False).named("padded"),
    case("nn.functional.lp_pool1d", positive(2, 3, 9), 2.0, 2),
    case("nn.functional.lp_pool2d", positive(2, 3, 7, 6), 2.0, 2),
    case("nn.functional.fractional_max_pool2d", normal(2, 3, 7, 6), 3, random_u=0.4),
    case("nn.functional.fractional_max_pool3d", normal(2, 3, 5, 4, 6), 3, random_u=0.4),
]


def _unpool(dims):
    """The inverse is given the indices that max_poolNd returned."""

    def call(unpool, x):
        pool = getattr(paddle.nn.functional, f"max_pool{dims}d")
        return unpool(*pool(x, 2, stride=2, return_mask=True), 2, stride=2)

    return call


UNPOOLING = [
    case(f"nn.functional.max_unpool{dims}d", normal(*(2, 3, 4, 6, 4)[: dims + 2])).via(_unpool(dims))
    for dims in (1, 2, 3)
]
LAYERS = [
    *(layer(f"AvgPool{dims}D", (2,), x) for dims, x in SIGNALS.items()),
    *(layer(f"MaxPool{dims}D", (2,), x) for dims, x in SIGNALS.items()),
    *(layer(f"AdaptiveAvgPool{dims}D", (3,), x) for dims, x in SIGNALS.items()),
    *(layer(f"AdaptiveMaxPool{dims}D", (3,), x) for dims, x in SIGNALS.items()),
    layer("LPPool1D", (2.0, 2), positive(2, 3, 9)),
    layer("LPPool2D", (2.0, 2), positive(2, 3, 7, 6)),
    layer("FractionalMaxPool2D", (3,), normal(2, 3, 7, 6), random_u=0.4),
    layer("FractionalMaxPool3D", (3,), normal(2, 3, 5, 4, 6), random_u=0.4),
]

CASES = [*vary(FUNCTIONS, strided, to_static), *UNPOOLING, *LAYERS]
