"""Each patch: the defect exists without it, is gone with it, and unaffected machines are unchanged."""

import pytest

from virtual_npu.patches import CPU_DESCRIPTION, patch_variables

pytestmark = pytest.mark.sampled

# The exact sum is a*a - round(a*a), which a fused multiply-add keeps and separate instructions round to zero.
FUSED_MULTIPLY_ADD = """
    import numpy as np
    import paddle
    paddle.set_device("npu")
    a = np.float32(1 + 2.0**-12)
    x = np.tile(np.array([1, a], "float32"), (64, 1))
    y = np.tile(np.array([[-(a * a)], [a]], "float32"), (1, 64))
    print("fused" if np.any((paddle.to_tensor(x) @ paddle.to_tensor(y)).numpy()) else "separate")
"""


def matmul_uses_fused_multiply_add(run_program, mkl_path) -> bool:
    done = run_program(FUSED_MULTIPLY_ADD, MKL_DEBUG_CPU_TYPE=mkl_path)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1] == "fused"


def cpu(tmp_path, vendor, flags):
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: fpu sse2 {flags}\n")
    return file


def test_mkl_takes_its_avx2_path_on_other_makers_cpus(tmp_path):
    assert patch_variables({}, cpu(tmp_path, "AuthenticAMD", "fma avx avx2")) == {"MKL_DEBUG_CPU_TYPE": "5"}


def test_mkl_takes_its_avx512_path_where_all_of_it_is_there(tmp_path):
    flags = "fma avx avx2 avx512f avx512cd avx512bw avx512dq"
    assert patch_variables({}, cpu(tmp_path, "AuthenticAMD", flags)) == {"MKL_DEBUG_CPU_TYPE": "5"}
    assert patch_variables({}, cpu(tmp_path, "AuthenticAMD", f"{flags} avx512vl")) == {
        "MKL_DEBUG_CPU_TYPE": "7"
    }


@pytest.mark.parametrize(("vendor", "flags"), [("GenuineIntel", "fma avx2"), ("AuthenticAMD", "avx fma")])
def test_mkl_is_left_alone_elsewhere(tmp_path, vendor, flags):
    assert patch_variables({}, cpu(tmp_path, vendor, flags)) == {}
    assert patch_variables({}, tmp_path / "missing") == {}


def test_what_the_user_has_set_stays(tmp_path):
    chosen = {"MKL_DEBUG_CPU_TYPE": "4"}
    assert patch_variables(chosen, cpu(tmp_path, "AuthenticAMD", "fma avx2")) == chosen


@pytest.mark.slow
def test_matmul_uses_the_vector_instructions_of_this_machine(run_program):
    has_fma = " fma " in CPU_DESCRIPTION.read_text()
    assert matmul_uses_fused_multiply_add(run_program, None) == has_fma


@pytest.mark.slow
def test_without_the_cure_it_does_not_where_the_cure_applies(run_program):
    # "0" is what MKL takes by itself there; an Intel CPU can be told to take it, too, and has no defect.
    assert patch_variables({}) == {} or not matmul_uses_fused_multiply_add(run_program, "0")
