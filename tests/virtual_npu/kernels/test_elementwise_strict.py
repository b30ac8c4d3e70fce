"""swiglu, rotary and AdamW where only what a card with the public plugin has may run on npu."""

PROGRAM = """
import sys
from paddle_fused import BackendError
from paddle_fused.registry import all_cases
from paddle_fused.parity import Case

ran = dict.fromkeys(sys.argv[1:], 0)
for case in all_cases():
    if case.operator not in ran:
        continue
    for dtype in case.dtypes:
        prepared = Case(case, dtype)
        for backend in ("ascend", "composed"):
            try:
                tensors = prepared.measure(backend, "npu")
            except BackendError as error:
                assert backend == "ascend" and "64 bytes" in str(error), error
                continue
            ran[case.operator] += backend == "ascend"
            for name, accuracy in tensors.items():
                assert accuracy.passed, (str(case), dtype, backend, name, accuracy)
        try:
            prepared.measure("native", "npu")
        except BackendError as error:
            assert "keeps host kernels away" in str(error), error
        else:
            sys.exit("a host kernel ran")
print(*ran.values())
"""


def test_every_case_on_what_a_card_has(run_python, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    operators = ("swiglu", "rotary_mul", "apply_rotary", "fused_adamw")
    variables = {"VIRTUAL_NPU_STRICT": "1", "GLOG_minloglevel": "2"}
    done = run_python("-m", "paddle_fused.virtual_npu", program, *operators, **variables)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    ran = [int(count) for count in done.stdout.splitlines()[-1].split()]
    assert len(ran) == len(operators) and min(ran) > 0
