"""``flash_attention_npu`` in separate processes: threads, instruction sets, forms of the operator."""

import numpy as np
import paddle
import pytest
from attention_golden import EPSILON
from flash_attention_program import CASES, flash_attention, run_case
from flash_attention_program import __file__ as PROGRAM
from instruction_sets import available, narrowest_by_default


@pytest.fixture(scope="module")
def here():
    return {name: run_case(name) for name in CASES}


def in_another_process(run_python, tmp_path, **variables):
    path = tmp_path / "results.npz"
    done = run_python("-m", "virtual_npu", PROGRAM, path, VIRTUAL_NPU_QUIET="1", **variables)
    assert done.returncode == 0, done.stderr
    with np.load(path) as results:
        return {name: [results[f"{name}.{i}"] for i in range(6)] for name in CASES}


@pytest.mark.slow
def test_results_do_not_depend_on_the_number_of_threads(here, run_python, tmp_path):
    one_thread = in_another_process(run_python, tmp_path, OMP_NUM_THREADS="1")
    for name in CASES:
        for a, e in zip(one_thread[name], here[name], strict=True):
            np.testing.assert_array_equal(a, e, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("isa", narrowest_by_default(available()))
def test_forced_instruction_sets_agree(isa, here, run_python, tmp_path):
    forced = in_another_process(run_python, tmp_path, PADDLE_FUSED_ISA=isa)
    for name, (dtype, *_) in CASES.items():
        for a, e in zip(forced[name], here[name], strict=True):
            # fp32 arithmetic in another order, then one rounding: at most neighbouring numbers.
            assert np.abs(a - e).max() <= 2 * EPSILON[dtype] * np.abs(e).max(), name


FORM_PROGRAM = """
import numpy as np, paddle, paddle_custom_device
from paddle.base import core
paddle.set_device("npu:0")
x = paddle.to_tensor(np.random.default_rng(0).standard_normal((1, 12, 2, 16)), dtype="float16")
x.stop_gradient = False
def run(*arguments):
    return core.eager._run_custom_op("flash_attention_npu", *arguments)
dense = run(x, x, x, None, None, {no_lengths} 0.0, True, False, False, False{no_varlen})[0]
(grad,) = paddle.grad(dense, [x], x.detach())
assert grad.shape == x.shape and float(grad.abs().sum()) > 0
{varlen}
print("sum", float(dense.astype("float64").sum()))
"""
VARLEN = """
t = x.reshape([12, 2, 16]).detach()
t.stop_gradient = False
packed = run(t, t, t, None, None, {lengths}, 0.0, True, False, False, False, True)[0]
first = run(x[:, :5], x[:, :5], x[:, :5], None, None, {none} 0.0, True, False, False, False, False)[0]
assert (packed[:5] == first[0]).all()
assert paddle.grad(packed, [t], t.detach())[0].shape == [12, 2, 16]
"""
FORMS = {
    "tensor13": FORM_PROGRAM.format(
        no_lengths="None, None,",
        no_varlen=", False",
        varlen=VARLEN.format(
            lengths="paddle.to_tensor([5, 12], dtype='int32'), paddle.to_tensor([5, 12], dtype='int32')",
            none="None, None,",
        ),
    ),
    "v10": FORM_PROGRAM.format(no_lengths="", no_varlen="", varlen=""),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_every_public_form(form, run_python, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(FORMS[form])
    done = run_python("-m", "virtual_npu", program, VIRTUAL_NPU_FLASH_ATTENTION_ABI=form)
    assert done.returncode == 0, done.stderr
    x = paddle.to_tensor(np.random.default_rng(0).standard_normal((1, 12, 2, 16)), dtype="float16")
    expected = float(flash_attention(x, x, x, causal=True)[0].astype("float64").sum())
    assert float(done.stdout.split("sum")[1]) == expected


@pytest.mark.slow
def test_unknown_form_is_refused_when_called(run_python, tmp_path):
    program = tmp_path / "program.py"
    # The Python face would refuse the name at once; the plugin has to answer where nobody asked it.
    program.write_text(
        "import os\nimport virtual_npu\nvirtual_npu.activate()\n"
        "os.environ['VIRTUAL_NPU_FLASH_ATTENTION_ABI'] = 'v9'\n" + FORMS["tensor13"]
    )
    done = run_python(program)
    assert done.returncode == 1
    expected = (
        "ValueError: (InvalidArgument) flash_attention_npu: VIRTUAL_NPU_FLASH_ATTENTION_ABI is v9; accepted:"
    )
    assert expected in done.stderr
