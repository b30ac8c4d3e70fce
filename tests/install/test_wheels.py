"""What scripts/build_wheels.py refuses before it builds, and what it looks for in a wheel.

(That a wheel can be built and works, tests/install/test_aarch64.py shows.)
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy
import pytest
from places import ROOT

from building import wheels
from paddle_fused import libraries
from paddle_fused.libraries import SetupError

pytestmark = pytest.mark.sampled

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
                archive.write(file, name)
    return folder / "some.whl"


def test_the_libraries_link_to_nothing_of_python(tmp_path):
    assert re.fullmatch(r"2\.\d+", wheels.check_contents(wheel_of(tmp_path)))


def test_a_library_that_links_to_python_is_refused(tmp_path):
    extension = next(Path(numpy.__file__).parent.rglob("*.so"))
    with pytest.raises(SetupError, match=r"links to _?Py\w+ "):
        wheels.check_contents(wheel_of(tmp_path, **{libraries.OPERATORS: extension}))


def test_a_wheel_without_a_library_is_refused(tmp_path):
    with pytest.raises(SetupError, match=rf"{libraries.PLUGIN} is missing in .*some\.whl"):
        wheels.check_contents(wheel_of(tmp_path, **{libraries.PLUGIN: None}))


@pytest.mark.slow
@pytest.mark.paddlenlp
def test_an_installed_wheel_trains_outside_any_clone(tmp_path):
    """The wheel's Python files with the libraries under test, in an environment that has no other llm_npu."""
    source, installed = tmp_path / "source", tmp_path / "environment"
    for name in ("building", *libraries.PACKAGES, "llm_npu"):
        ignored = shutil.ignore_patterns("*.so", "__pycache__", "csrc", Path(libraries.STAMP).name)
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    without = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CUSTOM_"))
    }

    def run(*command, **variables):
        done = subprocess.run(
            list(map(str, command)), cwd=tmp_path, env=without | variables, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    options = ("--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path)
    run(sys.executable, "-m", "pip", "wheel", *options, source, PADDLE_FUSED_BUILD="off")
    run(sys.executable, "-m", "venv", installed)
    [site] = installed.glob("lib/python*/site-packages")
    (site / "paddle.pth").write_text(
        f"{Path(numpy.__file__).parents[1]}\n"
    )  # not this project's: no .pth there
    run(installed / "bin/python", "-m", "pip", "install", "--no-deps", *tmp_path.glob("*.whl"))
    for name in libraries.BUILT_FILES:
        (site / name).parent.mkdir(exist_ok=True)
        shutil.copy(libraries.folder() / name, site / name)
    shutil.rmtree(source)
    small = ("--num_hidden_layers", 1, "--max_seq_length", 32, "--max_steps", 2, "--save_steps", 2)
    run(installed / "bin/llm-npu", "train", *small)
    assert (tmp_path / "output/checkpoint-2/complete.json").is_file()
    two = (*small, "--nproc", 2, "--tensor_parallel_degree", 2, "--output_dir", "two")
    run(installed / "bin/llm-npu", "train", *two)
    assert (tmp_path / "two/checkpoint-2/complete.json").is_file()
    prompt = ("--prompt", "def __init__", "--max_new_tokens", 4)
    text = run(installed / "bin/llm-npu", "generate", "output/checkpoint-2", *prompt)
    assert "def __init__" in text
