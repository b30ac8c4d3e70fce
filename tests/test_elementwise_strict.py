"""swiglu, rotary and AdamW where only what a card with the public plugin has may run on npu."""

import pytest

PROGRAM = """
import sys
from paddle_fused import BackendError
from paddle_fused.cases import all_cases
from paddle_fused.parity import Case

ran = 0
for case in all_cases():
    if case.operator != OPERATOR:
        continue
    for dtype in case.dtypes:
        prepared = Case(case, dtype)
        for backend in ("ascend", "composed"):
            try:
                tensors = prepared.measure(backend, "npu")
            except BackendError as error:
                assert backend == "ascend" and "64 bytes" in str(error), error
                continue
            ran += backend == "ascend"
            for name, accuracy in tensors.items():
                assert accuracy.passed, (str(case), dtype, backend, name, accuracy)
        try:
            prepared.measure("native", "npu")
        except BackendError as error:
            assert "keeps host kernels away" in str(error), error
        else:
            sys.exit("a host kernel ran")
print(ran)
"""


@pytest.mark.parametrize("operator", ["swiglu", "rotary_mul", "apply_rotary", "fused_adamw"])
def test_every_case_on_what_a_card_has(operator, run_program):
    done = run_program(
        PROGRAM.replace("OPERATOR", repr(operator)), VIRTUAL_NPU_STRICT="1", GLOG_minloglevel="2"
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert int(done.stdout.split()[-1]) > 0
