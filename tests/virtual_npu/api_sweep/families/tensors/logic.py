"""Comparison, logic and tests of values."""

from api_sweep.case import case, cases_of, empty, scalar, strided, to_static, vary
from api_sweep.inputs import booleans, integers, normal, ties, unbounded

COMPARISONS = "equal not_equal less_than less_equal greater_than greater_equal less greater eq ne lt le gt ge"
ELEMENTWISE = [
    *cases_of(COMPARISONS, ties(3, 5), ties(3, 5)),
    *cases_of("logical_and logical_or logical_xor", booleans(3, 5), booleans(3, 5)),
    *cases_of("bitwise_and bitwise_or bitwise_xor", integers(99, 3, 5), integers(99, 3, 5)),
    *cases_of("bitwise_left_shift bitwise_right_shift", integers(99, 3, 5), integers(5, 3, 5)),
    *cases_of("isnan isinf isfinite isneginf isposinf signbit isreal", unbounded(3, 5)),
    case("logical_not", booleans(3, 5)),
    case("bitwise_not", integers(99, 3, 5)),
    case("bitwise_invert", integers(99, 3, 5)),
    case("isclose", ties(3, 5), ties(3, 5)),
]
WHOLE = [
    case("all", booleans(3, 5)),
    case("all", booleans(3, 5), axis=1).named("axis"),
    case("any", booleans(3, 5)),
    case("any", booleans(3, 5), axis=0, keepdim=True).named("axis"),
    case("allclose", ties(3, 5), ties(3, 5)),
    case("equal_all", ties(3, 5), ties(3, 5)),
    case("isin", integers(9, 3, 5), integers(9, 4)),
    case("shape", ties(3, 5)).on_host("a shape is answered on the host on every place"),
    *cases_of("is_complex is_empty is_floating_point is_integer is_tensor numel rank", ties(3, 5)),
]
IN_PLACE = [
    *cases_of("logical_and_ logical_or_", booleans(3, 5), booleans(3, 5), within="Tensor"),
    case("Tensor.logical_not_", booleans(3, 5)),
    *cases_of("bitwise_and_ bitwise_or_", integers(99, 3, 5), integers(99, 3, 5), within="Tensor"),
    case("Tensor.bitwise_not_", integers(99, 3, 5)),
    *cases_of("equal_ less_than_ greater_equal_", ties(3, 5), ties(3, 5), within="Tensor"),
    case("Tensor.where_", normal(3, 5), normal(3, 5)).via(lambda where_, x, y: where_(x > 0, x * 1.0, y)),
]

CASES = [*vary(ELEMENTWISE, scalar, empty, strided, to_static), *vary(WHOLE, strided), *IN_PLACE]
