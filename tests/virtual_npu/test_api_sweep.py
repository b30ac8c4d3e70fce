"""At least 300 public Paddle APIs on npu equal the CPU place; the cases are in api_sweep.

They are of Paddle 3.3; an older release is tried on those that it has.
"""

import re

import paddle
import pytest
from api_sweep.case import case
from api_sweep.comparison import disagreement
from api_sweep.differences import BY_CASE, NOT_ON_CPU
from api_sweep.document import document, duplicates
from api_sweep.families import CASES
from api_sweep.inputs import normal
from api_sweep.releases import is_there
from api_sweep.run import resolve, run

from paddle_fused.paddle_release import before

pytestmark = pytest.mark.sampled

HERE = [case for case in CASES if is_there(case)]


@pytest.mark.sampled(100)
@pytest.mark.parametrize("case", HERE, ids=lambda case: case.id)
def test_npu_equals_cpu(case):
    finding = disagreement(case)
    known = BY_CASE.get(case.id)
    if known is None:
        assert not finding, finding
    else:
        assert re.search(known.finding, finding), (
            f"listed as different ({known.reason}), but: {finding or 'equal'}"
        )


@pytest.mark.parametrize(
    "entry", [entry for entry in NOT_ON_CPU if is_there(entry.case)], ids=lambda entry: entry.case.id
)
def test_nothing_to_compare_to(entry):
    with pytest.raises(Exception, match=entry.error):
        run(entry.case, "cpu")


def test_enough_public_apis():
    apis = {case.api for case in HERE}
    assert len(apis - {case.api for case in HERE if case.id in BY_CASE}) >= 300
    assert duplicates() == []
    assert set(BY_CASE) <= {case.id for case in CASES}


@pytest.mark.skipif(before(3, 3), reason="the cases are of Paddle 3.3")
def test_the_apis_are_public():
    def is_public(api):
        parent, name = api.rsplit(".", 1)
        if parent == "paddle.Tensor":
            return hasattr(paddle.Tensor, name)
        return name in resolve(parent).__all__

    assert [api for api in sorted({case.api for case in CASES}) if not is_public(api)] == []


def _refuse(x, y):
    raise RuntimeError("no")


WRONG_ON_NPU = {
    r"^outputs\[0\]: 15 of 15 elements differ": lambda x, y: x + y + 2e-6,
    r"^gradients\[0\]: 15 of 15 elements differ": lambda x, y: x + y + (x - x.detach()),
    r"^gradients\[1\]: is None": lambda x, y: x + y.detach(),
    r"^outputs or gradients are on Place\(cpu\)": lambda x, y: (x + y).cpu(),
    r"^outputs\[0\]: float64\(3, 5\) instead of float32": lambda x, y: (x + y).astype("float64"),
    r"^outputs\[0\]: float32\(5, 3\) instead of float32": lambda x, y: (x + y).reshape([5, 3]),
    r"^2 outputs instead of 1": lambda x, y: [x + y, x + y],
    r"^raises RuntimeError: no": _refuse,
}


@pytest.mark.parametrize("finding", WRONG_ON_NPU)
def test_the_comparison_finds_what_is_wrong(finding):
    def add(right, x, y):
        return WRONG_ON_NPU[finding](x, y) if paddle.get_device().startswith("npu") else right(x, y)

    broken = case("add", normal(3, 5), normal(3, 5)).via(add)
    assert re.search(
        finding, disagreement(broken if finding.startswith("^gradients") else broken.forward_only())
    )


@pytest.mark.parametrize("placement", [None, "host: erf"])
def test_the_page_has_every_api(placement):
    apis = {case.api for case in CASES}
    written = document(placement and dict.fromkeys(apis, placement))
    assert set(re.findall(r"^\| `([^`]+)` \| (?:equal|differs)", written, re.MULTILINE)) == apis
    assert written.count("| host: erf |") == (len(apis) if placement else 0)
