"""``virtual_npu``: activation, what it refuses, the supplied package, record, environment."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys

import numpy as np
import paddle
import pytest

import virtual_npu
from paddle_fused.paddle_release import installed_paddle
from virtual_npu.activation import LIBRARY, PLUGIN_FOLDER, SITE_FOLDER, STAMP
from virtual_npu.settings import SETTINGS, check_settings

pytestmark = pytest.mark.sampled

# ---- the process that pytest runs in: active --


def test_paddle_has_the_virtual_devices():
    assert virtual_npu.is_active()
    assert paddle.device.get_all_custom_device_type() == ["npu"]
    assert paddle.device.get_available_custom_device() == [f"npu:{i}" for i in range(8)]


def test_activation_is_idempotent_and_cannot_be_undone_with_paddle_imported():
    before = dict(os.environ), list(sys.path)
    virtual_npu.activate()
    assert (dict(os.environ), list(sys.path)) == before
    with pytest.raises(RuntimeError, match="only a new process"):
        virtual_npu.deactivate()
    assert virtual_npu.is_active()


@pytest.mark.paddlenlp
def test_paddlenlp_takes_its_npu_path_and_finds_the_operators():
    from paddlenlp.transformers.llama import fusion_ops
    from paddlenlp.utils.tools import get_env_device

    assert get_env_device() == "npu"
    # PaddleNLP registers the operators of the libraries in CUSTOM_DEVICE_ROOT inside try/except: these two
    # are what is missing when that failed.
    assert fusion_ops.flash_attention is not None
    assert hasattr(fusion_ops, "core")
    x = paddle.ones([2, 8])
    assert fusion_ops.core.eager._run_custom_op("rms_norm_npu", x, paddle.ones([8]), 1e-6)[0].shape == [2, 8]


# ---- the supplied package --


def test_version_has_the_keys_of_the_real_one_and_says_it_is_virtual(capsys):
    import paddle_custom_device

    version = paddle_custom_device.npu.version()
    assert list(version) == ["version", "commit", "custom_op commit", "cann"]
    assert (
        version["version"]
        == paddle_custom_device.npu.full_version
        == paddle.version.full_version + "+virtual"
    )
    assert version["commit"] == paddle_custom_device.npu.git_commit_id
    assert "virtual" in version["commit"] and "virtual" in version["custom_op commit"]
    assert version["cann"] == paddle_custom_device.npu.cann_version == "8.0.0"
    assert capsys.readouterr().out == "".join(f"{name}: {value}\n" for name, value in version.items())


@pytest.mark.slow
def test_emulated_cann_level_is_a_setting(run_python):
    code = "import paddle_custom_device.npu as npu; print(npu.cann_version)"
    result = run_python("-m", "virtual_npu", "-c", code, VIRTUAL_NPU_CANN="8.1")
    assert (result.returncode, result.stdout) == (0, "8.1.RC1\n"), result.stderr


@pytest.mark.parametrize("name", ["flash_attention_npu", "rms_norm_npu", "fused_rope"])
def test_operators_are_functions_of_the_supplied_package(name):
    import paddle_custom_device
    from paddle_custom_device.npu import ops

    assert callable(getattr(paddle_custom_device.npu, name))
    assert name in ops.__all__


def test_supplied_package_and_its_plugin_agree_on_the_name_of_the_library():
    from paddle_custom_device.npu import ops

    assert ops.LIBRARY == LIBRARY  # the package stands alone and cannot import it


def test_operator_functions_agree_in_dygraph_and_static():
    from paddle_custom_device.npu import rms_norm_npu

    paddle.seed(0)
    x, weight = paddle.randn([3, 16]), paddle.rand([16])

    def normalise(x):
        return rms_norm_npu(x, weight, 1e-6)[0]

    dygraph = normalise(x)
    static = paddle.jit.to_static(normalise, full_graph=True)(x)
    golden = x.numpy().astype("float64")
    golden = golden / np.sqrt((golden**2).mean(-1, keepdims=True) + 1e-6) * weight.numpy()
    # One division, one root and a mean over 16 values: a handful of roundings of float32.
    np.testing.assert_allclose(dygraph.numpy(), golden, rtol=16 * np.finfo("float32").eps)
    np.testing.assert_array_equal(static.numpy(), dygraph.numpy())


def test_operator_functions_leave_out_optional_inputs_and_have_gradients_in_static():
    from paddle_custom_device.npu import flash_attention_npu

    def attend(query, key, value):
        return flash_attention_npu(
            query, key, value, None, None, None, None, 0.0, True, True, False, False, False
        )[0]

    paddle.seed(0)
    # Shape [B, T, N, D]: batch, tokens, heads, head size.
    query, key, value = (paddle.randn([1, 16, 2, 64]).astype("float16") for _ in range(3))
    results = []
    for function in (attend, paddle.jit.to_static(attend, full_graph=True)):
        inputs = [tensor.detach() for tensor in (query, key, value)]
        for tensor in inputs:
            tensor.stop_gradient = False
        out = function(*inputs)
        out.sum().backward()
        results.append([out.numpy(), *(tensor.grad.numpy() for tensor in inputs)])
    for dygraph, static in zip(*results, strict=True):
        assert np.isfinite(dygraph).all()
        np.testing.assert_array_equal(static, dygraph)


@pytest.mark.slow
def test_operators_are_found_when_somebody_registered_them_before(run_python):
    code = (
        "import paddle\n"
        "from paddle.utils.cpp_extension import extension_utils\n"
        f"assert 'rms_norm_npu' in extension_utils.load_op_meta_info_and_register_op({LIBRARY!r})\n"
        f"assert extension_utils.load_op_meta_info_and_register_op({LIBRARY!r}) == []\n"
        "from paddle_custom_device.npu import rms_norm_npu\n"
    )
    result = run_python("-m", "virtual_npu", "-c", code, LD_LIBRARY_PATH=None)
    assert result.returncode == 0, result.stderr


def test_what_only_a_real_package_has_is_refused_with_a_sentence():
    import paddle_custom_device

    assert not hasattr(paddle_custom_device.npu, "passes")
    with pytest.raises(AttributeError, match=r"no 'lm_head' on the virtual NPU.*rms_norm_npu.*a card"):
        _ = paddle_custom_device.npu.lm_head
    with pytest.raises(AttributeError, match="`npu`"):
        _ = paddle_custom_device.mlu


@pytest.mark.slow
def test_supplied_package_without_the_virtual_npu_says_what_to_do(run_python):
    result = run_python("-c", "import paddle_custom_device", PYTHONPATH=str(SITE_FOLDER))
    assert result.returncode == 1
    assert "ImportError: paddle_custom_device " in result.stderr
    assert "activate()" in result.stderr


# ---- the record of kernels --


def test_record_counts_kernels_and_says_where_a_card_would_run_them():
    x = paddle.ones([4, 4])
    virtual_npu.reset_kernel_record()
    assert virtual_npu.kernel_record() == []
    for _ in range(3):
        paddle.add(x, x)
    record = {(row.name, row.dtype): row for row in virtual_npu.kernel_record()}
    assert record["add", "float32"] == virtual_npu.KernelRecord("add", "float32", "npu", 3, "aclnn")
    paddle.add(x.astype("float64"), x.astype("float64"))
    record = {(row.name, row.dtype): row for row in virtual_npu.kernel_record()}
    assert record["add", "float64"].placement == "aicpu"
    virtual_npu.reset_kernel_record()
    assert virtual_npu.kernel_record() == []


def test_record_without_the_plugin_is_refused(run_python):
    code = "import virtual_npu; virtual_npu.kernel_record()"
    result = run_python("-c", code)
    assert "RuntimeError: The virtual NPU is not loaded." in result.stderr


# ---- bad input --


@pytest.mark.slow
def test_paddle_imported_before_is_refused(run_python):
    code = "import paddle; import virtual_npu; virtual_npu.activate()"
    result = run_python("-c", code)
    assert result.returncode == 1
    assert "RuntimeError: paddle" in result.stderr
    assert "before the first import of paddle" in result.stderr


@pytest.fixture
def other_plugin(tmp_path):
    """A copy of the built plugin's files, to be corrupted."""
    (tmp_path / "plugin").mkdir()
    shutil.copy2(PLUGIN_FOLDER / LIBRARY, tmp_path / "plugin")
    shutil.copy2(PLUGIN_FOLDER.parent / STAMP, tmp_path)
    return tmp_path / "plugin"


@pytest.mark.parametrize("field", ["paddle_version", "paddle_commit"])
def test_plugin_built_for_another_paddle_is_refused(other_plugin, field):
    stamp_file = other_plugin.parent / STAMP
    stamp = json.loads(stamp_file.read_text())
    stamp_file.write_text(json.dumps({**stamp, field: "3.2.9"}))
    with pytest.raises(
        RuntimeError, match=r"built for paddlepaddle .*3\.2\.9.* is installed.*`pip install .*`"
    ):
        virtual_npu.environment(plugin=other_plugin)


@pytest.mark.slow
def test_plugin_refuses_another_paddle_by_itself(run_python, tmp_path):
    # Whoever sets CUSTOM_DEVICE_ROOT by hand goes past the checks in Python, so the library has its own.
    plugin = tmp_path / "virtual_npu" / "plugin"
    plugin.mkdir(parents=True)
    # Where it looks for the host kernels.
    (tmp_path / "paddle_fused").symlink_to(PLUGIN_FOLDER.parents[1] / "paddle_fused")
    version = paddle.version.full_version.encode()
    library = (PLUGIN_FOLDER / LIBRARY).read_bytes()
    assert library.count(b"paddle version=" + version) == 1
    other = library.replace(b"paddle version=" + version, b"paddle version=" + b"9" * len(version))
    (plugin / LIBRARY).write_bytes(other)
    code = "import paddle; print(paddle.device.get_all_custom_device_type())"
    result = run_python("-c", code, CUSTOM_DEVICE_ROOT=str(plugin))
    assert (result.returncode, result.stdout) == (0, "[]\n"), result.stderr
    assert "not loaded: the virtual NPU was built for paddlepaddle 99999" in result.stderr


# Instructions of virtual_npu_thunk_common (bridge/thunks.S), and ones that store another register or address.
WRONG_THUNKS = {
    "integers": (b"\x4c\x89\x44\x24\x20", b"\x4c\x89\x4c\x24\x20", "a Place"),  # r8 at 32(%rsp): r9
    "floats": (
        b"\xf2\x0f\x11\x5c\x24\x48",
        b"\xf2\x0f\x11\x54\x24\x48",
        "double 3",
    ),  # xmm3 at 72(%rsp): xmm2
    "stack": (b"\x48\x8d\x55\x10", b"\x48\x8d\x55\x18", "a DataType"),  # 16(%rbp): 24(%rbp)
}


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="changes instructions of x86-64")
@pytest.mark.parametrize("fault", WRONG_THUNKS)
def test_plugin_whose_bridge_passes_arguments_wrongly_refuses_itself(run_python, tmp_path, fault):
    plugin = tmp_path / "virtual_npu" / "plugin"
    plugin.mkdir(parents=True)
    (tmp_path / "paddle_fused").symlink_to(PLUGIN_FOLDER.parents[1] / "paddle_fused")
    right, wrong, argument = WRONG_THUNKS[fault]
    library = (PLUGIN_FOLDER / LIBRARY).read_bytes()
    # movq %rdi, 0(%rsp) and movq %rsi, 8(%rsp): only there.
    start = library.index(b"\x48\x89\x3c\x24\x48\x89\x74\x24\x08")
    at = library.index(right, start)
    assert at - start < 128
    (plugin / LIBRARY).write_bytes(library[:at] + wrong + library[at + len(right) :])
    code = "import paddle; print(paddle.device.get_all_custom_device_type())"
    result = run_python("-c", code, CUSTOM_DEVICE_ROOT=str(plugin))
    assert (result.returncode, result.stdout) == (0, "[]\n"), result.stderr
    refusal = next(line for line in result.stderr.splitlines() if "virtual npu: not loaded:" in line)
    assert "wrong arguments" in refusal and argument in refusal


@pytest.mark.parametrize("missing", [LIBRARY, STAMP])
def test_plugin_that_is_not_built_is_refused_with_the_command(other_plugin, missing):
    (other_plugin / missing if missing == LIBRARY else other_plugin.parent / missing).unlink()
    with pytest.raises(RuntimeError, match=r"not built: .* is missing\. Run `pip install "):
        virtual_npu.environment(plugin=other_plugin)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"paddle_version": "3.3.1"}'])
def test_unreadable_stamp_is_refused(other_plugin, text):
    (other_plugin.parent / STAMP).write_text(text)
    with pytest.raises(RuntimeError, match=re.escape(STAMP)):
        virtual_npu.environment(plugin=other_plugin)


def test_installed_paddle_is_read_without_importing_it():
    assert installed_paddle().version == paddle.version.full_version
    assert installed_paddle().commit == paddle.version.commit


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VIRTUAL_NPU_DEVICES", "0"),
        ("VIRTUAL_NPU_DEVICES", "17"),
        ("VIRTUAL_NPU_DEVICES", "two"),
        ("VIRTUAL_NPU_DEVICES", "-1"),
        ("VIRTUAL_NPU_MEMORY_GB", "0"),
        ("VIRTUAL_NPU_MEMORY_GB", "-2"),
        ("VIRTUAL_NPU_MEMORY_GB", "nan"),
        ("VIRTUAL_NPU_MEMORY_GB", "inf"),
        ("VIRTUAL_NPU_MEMORY_GB", "8GB"),
        ("VIRTUAL_NPU_LINK_GBPS", "0"),
        ("VIRTUAL_NPU_LINK_US", "-1"),
        ("VIRTUAL_NPU_COLLECTIVE_TIMEOUT", "soon"),
        ("VIRTUAL_NPU_COLLECTIVE_LIMIT", "0"),
        ("VIRTUAL_NPU_STRICT", "yes"),
        ("VIRTUAL_NPU_CANN", "newest"),
        ("VIRTUAL_NPU_CANN", "7.0.0"),
        ("VIRTUAL_NPU_CANN", "8.1.RC2"),
        ("VIRTUAL_NPU_CANN", "9"),
        ("VIRTUAL_NPU_FLASH_ATTENTION_ABI", "v9"),
        ("VIRTUAL_NPU_LIBOPAPI", "0"),
        ("PADDLE_FUSED_ISA", "sse9"),
        ("PADDLE_FUSED_ISA", "AVX2"),
    ],
)
def test_bad_settings_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} is '{value}'.*accepts {SETTINGS[name].accepts}"):
        check_settings({name: value})


def test_unknown_settings_get_the_nearest_name():
    with pytest.raises(ValueError, match=r"VIRTUAL_NPU_DEVICE .* is VIRTUAL_NPU_DEVICES \("):
        check_settings({"VIRTUAL_NPU_DEVICE": "2"})


def test_good_settings_and_empty_ones_are_accepted():
    check_settings({"VIRTUAL_NPU_LINK_US": "0", "VIRTUAL_NPU_LINK_GBPS": "0.5"})
    check_settings({"VIRTUAL_NPU_DEVICES": "16", "VIRTUAL_NPU_MEMORY_GB": "0.5", "VIRTUAL_NPU_STRICT": "1"})
    check_settings(dict.fromkeys(SETTINGS, ""))
    assert virtual_npu.device_count({"VIRTUAL_NPU_DEVICES": ""}) == 8


# ---- the environment of child processes --


def test_environment_keeps_the_python_path_and_does_not_grow():
    first = virtual_npu.environment({"PYTHONPATH": "/a b:/c"})
    assert first["PYTHONPATH"] == f"{SITE_FOLDER}:/a b:/c"
    assert virtual_npu.environment(first) == first
    assert virtual_npu.environment({"PYTHONPATH": ""})["PYTHONPATH"] == str(SITE_FOLDER)


@pytest.mark.slow
def test_banner_is_printed_once_and_can_be_silenced(run_python):
    code = (
        "import subprocess, sys\n"
        "import virtual_npu\n"
        "virtual_npu.activate(); virtual_npu.activate()\n"
        "child = 'from virtual_npu import activate; activate(); import paddle_custom_device'\n"
        "sys.exit(subprocess.run([sys.executable, '-c', child]).returncode)\n"
    )
    loud = run_python("-c", code, VIRTUAL_NPU_DEVICES="2")
    assert loud.returncode == 0, loud.stderr
    assert loud.stderr.count("VIRTUAL NPU: npu:0 to npu:1 emulated on the host CPU, not a card") == 1
    assert "VIRTUAL NPU" not in run_python("-c", code, VIRTUAL_NPU_QUIET="1").stderr


@pytest.mark.slow
def test_exported_environment_survives_a_shell(run_python, tmp_path):
    awkward = tmp_path / "it's a $folder"
    awkward.mkdir()
    (awkward / "found.py").write_text("")
    lines = run_python("-m", "virtual_npu", "--env", PYTHONPATH=str(awkward))
    assert lines.returncode == 0, lines.stderr
    assert "not a card" in lines.stderr  # the banner stays out of what the shell evaluates
    code = "import found, paddle; print(paddle.device.get_all_custom_device_type())"
    script = f'{lines.stdout}\nexec "{sys.executable}" -c "{code}"'
    result = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=120)
    assert result.stdout == "['npu']\n", result.stderr
