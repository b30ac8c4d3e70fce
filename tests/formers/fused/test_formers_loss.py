"""The head and the loss of PaddleFormers' models by linear_cross_entropy."""

import pytest
from fused_models.formers import BY_NAME, FAMILIES
from fused_models.losses import check

pytestmark = pytest.mark.sampled

QUICK = ("llama", "deepseek-v3", "ernie4.5-moe")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(family.name, marks=() if family.name in QUICK else pytest.mark.slow)
        for family in FAMILIES
    ],
)
def test_a_training_step(name, dtype):
    check(BY_NAME[name], "npu:0", dtype)


@pytest.mark.parametrize("name", QUICK)
def test_a_training_step_with_recompute(name):
    """PaddleFormers recomputes the loss from logits, which must not detach a loss without logits."""
    check(
        BY_NAME[name],
        "npu:0",
        "float32",
        recompute_granularity="full",
        recompute_method="uniform",
        recompute_num_layers=1,
    )
