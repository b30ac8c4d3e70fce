"""The forwarding libopapi.so, against libraries without code: every function is found by dlsym."""

import json
import os
import subprocess
import sys

import fake_cann
import pytest
from fake_cann import FakeCann

from llm_npu.cann import bridge
from llm_npu.cann.needs import of_plugin, symbols
from llm_npu.commands import cann_bridge
from llm_npu.core.errors import UserError
from paddle_fused.cann_installation import read_cann

FIND = """
import ctypes, json, sys
library = ctypes.CDLL("libopapi.so")
print(json.dumps([name for name in json.loads(sys.argv[1]) if not hasattr(library, name)]))
"""


@pytest.fixture
def cann(tmp_path):
    return FakeCann(tmp_path / "cann", "9.1.0", "A2", without={"libopapi.so"}).write()


def missing_at_run_time(cann: FakeCann, folder) -> list[str]:
    environ = {**os.environ, "LD_LIBRARY_PATH": f"{folder}:{cann.lib64}"}
    command = [
        sys.executable,
        "-c",
        FIND,
        json.dumps([*symbols(of_plugin().libraries), *of_plugin().looked_up]),
    ]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_the_loader_finds_every_function_through_it(cann, tmp_path):
    library, missing = bridge.write(read_cann(cann.folder), tmp_path / "bridge", {})
    assert missing == [] and missing_at_run_time(cann, library.parent) == []
    assert len(of_plugin().libraries) == 154
    assert bridge.in_use({"LD_LIBRARY_PATH": f"{library.parent}:{cann.lib64}"}) == library
    assert bridge.in_use({"LD_LIBRARY_PATH": str(cann.lib64)}) is None
    assert "libopapi_nn.so" in bridge.forwards_to(library)


@pytest.mark.slow
def test_a_library_that_is_not_installed_costs_only_its_own_functions(cann, tmp_path):
    (cann.lib64 / "libopapi_cv.so").unlink()
    library, missing = bridge.write(read_cann(cann.folder), tmp_path / "bridge", {})
    of_cv = {name for name, part in of_plugin().libraries.items() if part == "cv"}
    assert missing == sorted(symbols(of_cv))
    assert sorted(missing_at_run_time(cann, library.parent)) == missing


@pytest.mark.slow
def test_it_is_removed_again(cann, tmp_path):
    library, _ = bridge.write(read_cann(cann.folder), tmp_path / "bridge", {})
    bridge.write(read_cann(cann.folder), tmp_path / "bridge", {"LD_LIBRARY_PATH": str(library.parent)})
    assert bridge.remove(library.parent) == library and not library.parent.exists()
    with pytest.raises(UserError, match="bridge"):
        bridge.remove(library.parent)


def test_what_is_refused(cann, tmp_path, monkeypatch):
    installed = read_cann(cann.folder)
    with pytest.raises(UserError, match=r"none of .*--cann"):
        bridge.write(read_cann(tmp_path), tmp_path / "bridge", {})
    (tmp_path / "other").mkdir()
    (tmp_path / "other/libopapi.so").write_bytes(b"")
    with pytest.raises(UserError, match="--folder"):
        bridge.write(installed, tmp_path / "other", {})
    with monkeypatch.context() as patch, pytest.raises(UserError, match="compiler"):
        patch.setenv("PATH", str(tmp_path))
        bridge.write(installed, tmp_path / "bridge", {})
    (cann.lib64 / "libopapi_cv.so").write_bytes(b"not a library")  # the linker fails
    with pytest.raises(UserError, match="cannot build"):
        bridge.write(installed, tmp_path / "bridge", {})
    assert not (tmp_path / "bridge").exists()
    fake_cann.library(cann.lib64 / "libopapi.so")
    with pytest.raises(UserError, match="no forwarding library"):
        bridge.write(installed, tmp_path / "bridge", {})


@pytest.mark.slow
def test_the_command(cann, tmp_path, capsys, monkeypatch):
    folder = ["--folder", str(tmp_path / "bridge")]
    assert cann_bridge.main(["write", "--cann", str(cann.folder), *folder]) == 0
    assert f"export LD_LIBRARY_PATH={tmp_path / 'bridge'}:$LD_LIBRARY_PATH" in capsys.readouterr().out
    assert cann_bridge.main(["status", *folder]) == 1
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "bridge"))
    assert cann_bridge.main(["status", *folder]) == 0
    assert cann_bridge.main(["remove", *folder]) == 0
    with pytest.raises(UserError, match="--cann"):
        cann_bridge.main(["write", "--cann", str(tmp_path / "nowhere"), *folder])
