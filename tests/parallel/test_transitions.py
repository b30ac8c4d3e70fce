"""Every transition of a DistTensor between placements, on two processes: values, and what is sent."""

from pathlib import Path

import pytest
import ranks

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "annotations" / "transitions.py"
DTYPES = ("float32", "float64", "bfloat16", "float16", "int32", "int64")
PLACEMENTS = ("R", "S0", "S1", "P")
PAIRS = [(start, end) for start in PLACEMENTS for end in PLACEMENTS]


def sent(start: str, end: str) -> list[str]:
    """What a transition has to send."""
    if start == end or start == "R":
        return []
    if start == "P":
        return ["all_reduce" if end == "R" else "reduce_scatter"]
    return ["all_to_all" if end[0] == "S" else "all_gather"]


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    return ranks.run(PROGRAM, 2, tmp_path_factory.mktemp("transitions"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("start", "end"), PAIRS)
def test_dygraph(reports, start, end, dtype):
    for rank in reports:
        check(rank[f"dygraph {start} {end} even {dtype}"], sent(start, end))


@pytest.mark.parametrize(("start", "end"), PAIRS)
def test_parts_of_unequal_sizes(reports, start, end):
    for rank in reports:
        check(rank[f"dygraph {start} {end} uneven float32"], sent(start, end))


def test_static(reports):
    """One program, through all of them; a card has no kernel that scatters a sum."""
    for rank in reports:
        steps = list(zip(rank["walk"], rank["walk"][1:], strict=False))
        assert set(steps) == {pair for pair in PAIRS if pair[0] != pair[1]}
        wanted = [kind for step in steps for kind in sent(*step)]
        check(rank["static"], ["all_to_all" if kind == "reduce_scatter" else kind for kind in wanted])


def check(result: dict, wanted: list[str]) -> None:
    assert "failure" not in result, result["failure"]
    assert result["right"], result
    assert result.get("numpy", True), "numpy() of the DistTensor gives other values"
    assert result["sent"] == wanted
    assert "npu" in result.get("place", "npu")


def test_scalars_can_be_read(reports):
    for rank in reports:
        assert rank["scalar"].get("right"), rank["scalar"]
