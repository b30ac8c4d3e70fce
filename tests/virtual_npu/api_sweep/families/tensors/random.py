"""Random numbers: equal for the same seed, the first time and the time after."""

from dataclasses import replace

import paddle

from api_sweep.case import case, layer, to_static, vary
from api_sweep.inputs import distribution, exactly, fraction, normal, positive

NO_GRADIENT = "random numbers have no gradient"


def _twice(draw, *args, **kwargs):
    """Two draws in a row: the generator's state must move as it does on the CPU place."""
    return [draw(*args, **kwargs), draw(*args, **kwargs)]


DRAWS = [
    case("rand", [3, 4]),
    case("randn", [3, 4]),
    case("randint", 0, 9, [3, 4]),
    case("randint_like", normal(3, 4), 0, 9),
    case("rand_like", normal(3, 4)),
    case("randn_like", normal(3, 4)),
    case("randperm", 9),
    case("uniform", [3, 4], min=-2.0, max=2.0),
    case("normal", 1.0, 2.0, [3, 4]),
    case("standard_normal", [3, 4]),
    case("log_normal", 0.0, 0.5, [3, 4]),
    case("bernoulli", fraction(3, 4)),
    case("binomial", exactly([9, 9, 9], "int64"), fraction(3)),
    case("poisson", positive(3, 4)),
    case("standard_gamma", positive(3, 4)),
    case("multinomial", distribution(6), 3),
    case("multinomial", distribution(2, 6), 5, replacement=True).named("replacement"),
    case("nn.functional.gumbel_softmax", normal(3, 4)),
    case("distribution.Normal", [0.5], [2.0]).via(lambda Normal, *args: Normal(*args).sample([3])),
    case("distribution.Uniform", 0.0, 2.0).via(lambda Uniform, *args: Uniform(*args).sample([3])),
    case("distribution.Categorical", normal(5)).via(
        lambda Categorical, logits: Categorical(logits).sample([3])
    ),
    case("distribution.Bernoulli", 0.3).via(lambda Bernoulli, p: Bernoulli(p).sample([4])),
    case("distribution.Exponential", 1.5).via(lambda Exponential, rate: Exponential(rate).sample([4])),
    case("distribution.Gumbel", 0.5, 1.5).via(lambda Gumbel, *args: Gumbel(*args).sample([4])),
    case("distribution.Laplace", 0.5, 1.5).via(lambda Laplace, *args: Laplace(*args).sample([4])),
    case("distribution.Beta", 0.5, 1.5).via(lambda Beta, *args: Beta(*args).sample([4])),
    case("distribution.Dirichlet", positive(4)).via(lambda Dirichlet, c: Dirichlet(c).sample([3])),
    case("distribution.Gamma", 2.0, 1.5).via(lambda Gamma, *args: Gamma(*args).sample([4])),
]
IN_PLACE = [
    case("Tensor.uniform_", normal(3, 4)),
    case("Tensor.normal_", normal(3, 4)),
    case("Tensor.exponential_", normal(3, 4)),
    case("Tensor.bernoulli_", normal(3, 4)),
    case("Tensor.log_normal_", normal(3, 4)),
    case("Tensor.cauchy_", normal(3, 4)),
    case("Tensor.geometric_", normal(3, 4), 0.4),
]
DROPOUTS = [
    case("nn.functional.dropout", normal(3, 4)),
    case("nn.functional.dropout", normal(3, 4), mode="downscale_in_infer").named("downscale"),
    case("nn.functional.dropout1d", normal(3, 4, 2)),
    case("nn.functional.dropout2d", normal(3, 4, 2, 2)),
    case("nn.functional.dropout3d", normal(3, 4, 2, 2, 2)),
    case("nn.functional.alpha_dropout", normal(3, 4)),
    case("nn.functional.feature_alpha_dropout", normal(3, 4, 2)),
    case("nn.functional.rrelu", normal(3, 4)).named("training"),
    layer("Dropout", (), normal(3, 4)),
    layer("Dropout2D", (), normal(3, 4, 2, 2)),
    layer("Dropout3D", (), normal(3, 4, 2, 2, 2)),
    layer("AlphaDropout", (), normal(3, 4)),
    layer("FeatureAlphaDropout", (), normal(3, 4, 2)),
]


def _replayed(set_rng_state):
    """Two draws from one state are equal, and equal on both places."""
    state = paddle.get_rng_state()
    first = paddle.rand([3])
    set_rng_state(state)
    return [first, paddle.rand([3])]


def _reseeded(seed, number):
    seed(number)
    return paddle.rand([3])


def _mixed(seed, number, weights):
    """Successive draws of several kinds from one state."""
    seed(number)
    draws = [paddle.rand([3]), paddle.multinomial(weights, 3), paddle.randperm(9), paddle.randn([3])]
    return [*draws, paddle.bernoulli(weights), paddle.multinomial(weights, 3), paddle.randint(0, 9, [3])]


GENERATOR = [
    case("set_rng_state").via(_replayed),
    case("seed", 7).via(_reseeded),
    case("seed", 7, distribution(6)).via(_mixed).named("mixture"),
]

CASES = [
    *(case.forward_only(NO_GRADIENT) for case in (*DRAWS, *IN_PLACE, *GENERATOR)),
    *(
        replace(draw, variant=f"{draw.variant}, again".strip(", "), call=_twice).forward_only(NO_GRADIENT)
        for draw in DRAWS
        if not draw.call
    ),
    *vary(DROPOUTS, to_static),
]
