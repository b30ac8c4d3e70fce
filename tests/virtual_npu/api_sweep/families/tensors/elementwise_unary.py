"""Elementwise, one input."""

from api_sweep.case import case, cases_of, empty, scalar, strided, to_static, vary
from api_sweep.inputs import above_one, fraction, normal, positive, ragged, unit

PLAIN = [
    *cases_of(
        "abs asinh atan ceil cos cosh deg2rad erf exp expm1 floor frac i0 i0e i1 i1e neg negative",
        normal(3, 5),
    ),
    *cases_of("positive rad2deg round sgn sign sin sinc sinh square stanh tan tanh trunc", normal(3, 5)),
    *cases_of("digamma gammaln lgamma log log10 log1p log2 reciprocal rsqrt sqrt", positive(3, 5)),
    *cases_of("acos asin atanh erfinv", unit(3, 5)),
    case("acosh", above_one(3, 5)),
    case("logit", fraction(3, 5)),
    case("nan_to_num", ragged(3, 5)),
    case("nn.functional.sigmoid", normal(3, 5)),
]
PARAMETRISED = [
    case("clip", normal(3, 5), min=-0.5, max=0.7),
    case("scale", normal(3, 5), scale=2.5, bias=-1.0),
    case("pow", positive(3, 5), 2.5).named("number"),
    case("multigammaln", above_one(3, 5), 2),
    case("polygamma", positive(3, 5), 2),
    case("increment", normal(1)).via(lambda increment, x: increment(x * 1.0, 2.0)),
    case("cast", normal(3, 5), "float64"),
    case("clone", normal(3, 5)),
    case("assign", normal(3, 5)),
    case("renorm", normal(3, 5, 2), p=2.0, axis=1, max_norm=1.5),
    case("Tensor.astype", normal(3, 5), "int32").forward_only(),
    case("Tensor.fill_", normal(3, 5), 2.5),
    case("Tensor.zero_", normal(3, 5)),
]
IN_PLACE = [
    *cases_of(
        "abs_ asinh_ atan_ ceil_ cos_ cosh_ exp_ floor_ frac_ i0_ neg_ round_", normal(3, 5), within="Tensor"
    ),
    *cases_of("sigmoid_ sin_ sinc_ sinh_ square_ tan_ tanh_ trunc_", normal(3, 5), within="Tensor"),
    *cases_of("digamma_ gammaln_ lgamma_ log_ log10_ log1p_ log2_", positive(3, 5), within="Tensor"),
    *cases_of("reciprocal_ rsqrt_ sqrt_", positive(3, 5), within="Tensor"),
    *cases_of("acos_ asin_ atanh_ erfinv_", unit(3, 5), within="Tensor"),
    *cases_of("erf_ expm1_", normal(3, 5)),
    case("Tensor.acosh_", above_one(3, 5)),
    case("Tensor.cast_", normal(3, 5), "float64").forward_only(),
    case("Tensor.clip_", normal(3, 5), -0.5, 0.7),
    case("Tensor.logit_", fraction(3, 5)),
    case("Tensor.nan_to_num_", ragged(3, 5)),
    case("Tensor.pow_", positive(3, 5), 1.5),
    case("Tensor.scale_", normal(3, 5), 2.5, 1.0),
]

CASES = [*vary(PLAIN, scalar, empty, strided, to_static), *vary(PARAMETRISED, strided), *IN_PLACE]
