"""What scripts/build_wheels.py refuses before it builds, and what it looks for in a wheel.

(That a wheel can be built and works, tests/install/test_aarch64.py shows.)
"""

import platform
import re
import zipfile
from pathlib import Path

import numpy
import pytest
from places import ROOT

from building import wheels
from paddle_fused import libraries
from paddle_fused.libraries import SetupError

SCRIPT = ROOT / "scripts" / "build_wheels.py"


AARCH64 = ("--processor", "aarch64")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((*AARCH64, "--release", "3.2.2", "3.3.1"), r"no wheel of paddlepaddle 3\.3\.1 on aarch64"),
        (("--release", "2.6.2"), r"no wheel of paddlepaddle 2\.6\.2 on .*; accepted on .*: 3\.0\.0, .*"),
        (("--processor", "riscv64"), r"Processor riscv64; accepted: aarch64"),
    ],
)
def test_what_cannot_be_built_is_refused_before_anything_is(run_python, tmp_path, arguments, sentence):
    cache = tmp_path / "cache"
    done = run_python(SCRIPT, "--out", tmp_path / "dist", *arguments, PADDLE_FUSED_CACHE=str(cache))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert re.search(sentence, line), line
    assert not cache.exists() and not (tmp_path / "dist").exists()


def test_the_cache_is_outside_the_sources(monkeypatch, tmp_path):
    monkeypatch.delenv(wheels.CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert wheels.cache() == tmp_path / "paddle_fused"
    monkeypatch.setenv(wheels.CACHE_VARIABLE, str(tmp_path / "other"))
    target = wheels.Target("3.2.2", platform.machine())
    assert target.folder.parent == tmp_path / "other" and not target.emulated


def wheel_of(folder: Path, **replaced: Path | None) -> Path:
    """A wheel with the libraries under test, some of them replaced or, by None, left out."""
    files = {name: libraries.folder() / name for name in libraries.BUILT_FILES} | replaced
    with zipfile.ZipFile(folder / "some.whl", "w") as archive:
        for name, file in files.items():
            if file:
                archive.write(file, f"paddle_fused/{name}")
    return folder / "some.whl"


def test_the_libraries_link_to_nothing_of_python(tmp_path):
    assert re.fullmatch(r"2\.\d+", wheels.check_contents(wheel_of(tmp_path)))


def test_a_library_that_links_to_python_is_refused(tmp_path):
    extension = next(Path(numpy.__file__).parent.rglob("*.so"))
    with pytest.raises(SetupError, match=r"links to _?Py\w+ of Python, but the wheel is for every Python"):
        wheels.check_contents(wheel_of(tmp_path, **{libraries.OPERATORS: extension}))


def test_a_wheel_without_a_library_is_refused(tmp_path):
    with pytest.raises(SetupError, match=rf"{libraries.PLUGIN} is missing in .*some\.whl"):
        wheels.check_contents(wheel_of(tmp_path, **{libraries.PLUGIN: None}))
