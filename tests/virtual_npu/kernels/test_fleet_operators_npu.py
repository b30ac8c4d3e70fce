"""The operators of fleet's layers (c_identity, c_concat, ...) between two ranks, in every type."""

from pathlib import Path

import pytest
import ranks

from paddle_fused.parity import ROUNDING

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "fleet_operators.py"
EXACT = (
    *("c_identity", "c_split", "c_concat", "c_allreduce_sum", "mp_allreduce_sum", "c_embedding"),
    *("c_embedding_grad", "global_scatter", "global_gather"),
)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    return ranks.run(PROGRAM, 2, tmp_path_factory.mktemp("fleet"))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("operator", EXACT)
def test_what_moves_numbers_gives_these_numbers(operator, dtype, reports):
    assert [rank[dtype][operator] for rank in reports] == [0, 0]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["loss", "softmax", "gradient"])
def test_cross_entropy_rounds_once(name, dtype, reports):
    for rank in reports:
        assert rank[dtype][name] <= ROUNDING[dtype] + 4 * ROUNDING["float32"], rank[dtype]


@pytest.mark.parametrize("name", ["loss", "softmax", "gradient"])
def test_cross_entropy_of_classes_that_are_masked_on_a_whole_rank(name, reports):
    for rank in reports:
        assert rank["masked classes"][name] <= 1e-6, rank["masked classes"]


def test_other_types_and_bad_labels(reports):
    for rank in reports:
        assert rank["int64"]["c_concat"] == 0
        assert "a label is 10; accepted: 0 to 9" in rank["bad label"]
