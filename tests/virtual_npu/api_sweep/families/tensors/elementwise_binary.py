"""Elementwise, two or more inputs."""

from api_sweep.case import case, cases_of, empty, scalar, strided, to_static, vary
from api_sweep.inputs import constant, fraction, integers, normal, positive

SAME_SHAPE = [
    *cases_of("add atan2 copysign fmax fmin heaviside hypot logaddexp", normal(3, 5), normal(3, 5)),
    *cases_of("maximum minimum mul multiply sub subtract", normal(3, 5), normal(3, 5)),
    *cases_of("div divide floor_mod ldexp mod remainder true_divide", normal(3, 5), positive(3, 5)),
    case("pow", positive(3, 5), normal(3, 5)),
]
WITHOUT_GRADIENT = [
    case("floor_divide", normal(3, 5), positive(3, 5)).forward_only(),
    case("gammainc", constant(positive(3, 5)), positive(3, 5)).forward_only(),
    case("gammaincc", constant(positive(3, 5)), positive(3, 5)),
    case("nextafter", normal(3, 5), normal(3, 5)).forward_only(),
    case("gcd", integers(40, 3, 5), integers(40, 3, 5)),
    case("lcm", integers(40, 3, 5), integers(40, 3, 5)),
]
BROADCAST = [
    case("add", normal(3, 1, 4), normal(5, 1)).named("broadcast"),
    case("subtract", normal(4), normal(3, 5, 4)).named("broadcast"),
    case("multiply", normal(3, 1, 4), normal(5, 1)).named("broadcast"),
    case("divide", normal(3, 1, 4), positive(5, 1)).named("broadcast"),
    case("maximum", normal(3, 1, 4), normal(5, 1)).named("broadcast"),
    case("pow", positive(3, 1), normal(1, 5)).named("broadcast"),
]
SEVERAL = [
    case("lerp", normal(3, 5), normal(3, 5), constant(fraction(3, 5))),
    case("add_n", [normal(3, 5), normal(3, 5), normal(3, 5)]),
    case("multiplex", [normal(4, 5), normal(4, 5)], integers(2, 4, 1, dtype="int32")),
    case("where", constant(normal(3, 5)), normal(3, 5), normal(3, 5)).via(
        lambda where, condition, x, y: where(condition > 0, x, y)
    ),
    case("polar", positive(3, 5), normal(3, 5)),
    case("cross", normal(4, 3), normal(4, 3)),
    case("dist", normal(3, 5), normal(3, 5), p=2),
    case("cdist", normal(4, 3), normal(5, 3)),
    case("pdist", normal(5, 3)),
    case("trapezoid", normal(3, 5), normal(3, 5)),
    case("cumulative_trapezoid", normal(3, 5), normal(3, 5)),
    case("frexp", normal(3, 5)).forward_only(),
]
IN_PLACE = [
    case("Tensor.add_", normal(3, 5), normal(3, 5)),
    case("Tensor.subtract_", normal(3, 5), normal(5)),
    case("Tensor.multiply_", normal(3, 5), normal(3, 5)),
    case("Tensor.divide_", normal(3, 5), positive(3, 5)),
    case("Tensor.remainder_", normal(3, 5), positive(3, 5)),
    case("Tensor.floor_divide_", normal(3, 5), positive(3, 5)).forward_only(),
    case("Tensor.lerp_", normal(3, 5), normal(3, 5), constant(fraction(3, 5))),
    case("Tensor.hypot_", normal(3, 5), normal(3, 5)),
    case("Tensor.copysign_", normal(3, 5), normal(3, 5)),
    case("Tensor.ldexp_", normal(3, 5), positive(3, 5)),
    case("Tensor.gcd_", integers(40, 3, 5), integers(40, 3, 5)),
    case("Tensor.lcm_", integers(40, 3, 5), integers(40, 3, 5)),
]

CASES = [
    *vary(SAME_SHAPE, scalar, empty, strided, to_static),
    *vary(BROADCAST, strided),
    *WITHOUT_GRADIENT,
    *vary(SEVERAL, strided, to_static),
    *IN_PLACE,
]
