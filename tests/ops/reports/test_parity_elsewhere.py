"""Every case of every operator in separate processes: narrower instruction sets, a card's kernels."""

import json

import pytest
from instruction_sets import available

from paddle_fused import registry

OPERATORS = sorted(registry.operators())


@pytest.fixture(scope="module")
def parity(run_python, tmp_path_factory):
    """A function that runs ``python -m paddle_fused.parity`` and returns its results, all accurate."""

    def run(**variables):
        file = tmp_path_factory.mktemp("parity") / "parity.json"
        done = run_python("-m", "paddle_fused.parity", "--json", file, timeout=900, **variables)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
        return json.loads(file.read_text())["results"]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("isa", available()[:-1])  # the widest is what every other test runs on
def test_narrower_instruction_sets(isa, parity):
    ran = {result["operator"] for result in parity(PADDLE_FUSED_ISA=isa) if _ran(result, "native", "cpu")}
    assert sorted(ran) == OPERATORS


@pytest.mark.slow
def test_the_kernels_of_a_card_are_enough(parity):
    """Only kernels that a card with the public plugin has run on npu tensors."""
    results = parity(VIRTUAL_NPU_STRICT="1")
    for dtype in ("bfloat16", "float16"):  # float32 is not for attention
        ran = {row["operator"] for row in results if row["dtype"] == dtype and _ran(row, "ascend", "npu")}
        assert sorted(ran) == OPERATORS, dtype
    native = [result for result in results if (result["backend"], result["device"]) == ("native", "npu")]
    assert all("VIRTUAL_NPU_STRICT=1" in str(result["refused"]) for result in native)


def _ran(result, backend, device):
    return (result["backend"], result["device"], result["refused"]) == (backend, device, None)
