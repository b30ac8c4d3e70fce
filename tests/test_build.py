"""A build that cannot work ends with a sentence. (That a build does work, every other test shows.)"""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("setup.py", "pyproject.toml", "README.md", "LICENSE")
SOURCES += ("paddle_fused/__init__.py", "paddle_fused/libraries.py")
SOURCES += tuple(f"paddle_fused/{folder}" for folder in ("csrc", "data", "contracts"))


@pytest.fixture
def source(tmp_path):
    """A copy of what a build needs, so that the libraries under test stay as they are."""
    copy = tmp_path / "source"
    for name in SOURCES:
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        copier = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copier(ROOT / name, target)
    return copy


def build(source, compiler):
    tools = Path(sys.executable).parent  # where cmake and ninja are installed
    return subprocess.run(
        [sys.executable, "setup.py", "build_native"],
        cwd=source,
        env={**os.environ, "CXX": str(compiler), "PATH": f"{tools}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_missing_compiler_is_named(source):
    done = build(source, "no-such-compiler")
    assert done.returncode != 0
    assert "no `no-such-compiler` was found" in done.stderr and "apt-get install g++" in done.stderr
    assert "Traceback" not in done.stderr


def test_failing_compiler_is_quoted_without_a_traceback(source, tmp_path):
    compiler = tmp_path / "broken-compiler"
    compiler.write_text("#!/bin/sh\necho 'fatal error: this compiler is broken' >&2\nexit 1\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    done = build(source, compiler)
    assert done.returncode != 0
    assert "The native code did not compile" in done.stderr and "this compiler is broken" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (source / "paddle_fused" / "lib").exists()
