"""What is built, what it requires, and the sentence that ends a build that cannot work.

(That a build does work, every other test shows.)
"""

import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from places import ROOT

from paddle_fused import paddle_release

pytestmark = pytest.mark.slow

SOURCES = ("setup.py", "pyproject.toml", "README.md", "LICENSE")
SOURCES += tuple(
    f"paddle_fused/{name}.py" for name in ("__init__", "built_for", "libraries", "paddle_release", "registry")
)
SOURCES += ("building",)
SOURCES += ("paddle_fused/csrc", "paddle_fused/contracts", "paddle_fused/ops")
SOURCES += ("virtual_npu/__init__.py", "virtual_npu/csrc", "virtual_npu/data")


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


def run(source, *command, **environment):
    """A command of Python in the sources, with cmake and ninja where they are installed."""
    tools = Path(sys.executable).parent
    return subprocess.run(
        [sys.executable, *command],
        cwd=source,
        env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def build(source, compiler):
    return run(source, "setup.py", "build_native", CXX=str(compiler))


def answers(folder, text):
    """A compiler that prints this and succeeds."""
    compiler = folder / "compiler"
    compiler.write_text(f"#!/bin/sh\necho '{text}'\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    return compiler


def paddle_of(folder, version):
    """A folder for PYTHONPATH with the files of this release of Paddle that a build reads."""
    package = folder / "site" / "paddle"
    (package / "version").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "version" / "__init__.py").write_text(f"full_version = '{version}'\ncommit = '{'0' * 40}'\n")
    return str(package.parent)


# What pip asks a project first, before it builds or replaces anything.
ASK = "from building import backend; print(backend.get_requires_for_build_wheel())"


@pytest.mark.parametrize("version", ["3.9.18", "3.13.0", "4.0.0"])
def test_another_python_is_refused_before_anything_is_downloaded(source, version):
    numbers = tuple(map(int, version.split(".")))
    done = run(source, "-c", f"import sys; from building import backend; sys.version_info = {numbers}; {ASK}")
    assert done.returncode != 0
    major_minor = version.rpartition(".")[0]
    assert done.stderr.startswith(f"Python is {major_minor}; accepted: 3.10 to 3.12.")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("version", ["2.6.2", "3.0.0rc1", "3.0.0.dev20250101", "3.4.0", "0.0.0"])
def test_another_paddle_is_refused_before_anything_is_built(source, tmp_path, version):
    done = run(source, "-c", ASK, PYTHONPATH=paddle_of(tmp_path, version))
    assert done.returncode != 0
    assert f"Paddle is {version}; accepted: paddlepaddle 3.0.0 to 3.3" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("macros", "words"),
    [("#define __GNUC__ 8", "gcc 8;"), ("#define __GNUC__ 4\n#define __clang_major__ 13", "clang 13;")],
)
def test_an_old_compiler_is_refused_before_anything_is_built(source, tmp_path, macros, words):
    done = run(source, "-c", ASK, CXX=str(answers(tmp_path, macros)))
    assert done.returncode != 0
    assert words in done.stderr and all(key in done.stderr for key in ("gcc from 9 ", "clang from 14 "))
    assert "PADDLE_FUSED_BUILD=off" in done.stderr and "Traceback" not in done.stderr


def test_a_broken_compiler_is_refused_before_anything_is_built(source, tmp_path):
    done = run(source, "-c", ASK, CXX=str(failing_compiler(tmp_path, at="/dev/null")))
    assert done.returncode != 0
    assert "fatal error: this compiler is broken" in done.stderr
    assert "PADDLE_FUSED_BUILD=off" in done.stderr and "Traceback" not in done.stderr


def test_an_unknown_choice_is_refused(source):
    done = run(source, "-c", ASK, PADDLE_FUSED_BUILD="no")
    assert done.returncode != 0
    assert "PADDLE_FUSED_BUILD=no is unknown" in done.stderr and "Traceback" not in done.stderr


def test_the_paddle_that_is_there_is_kept(source):
    done = run(source, "setup.py", "-q", "egg_info")
    assert done.returncode == 0, done.stderr
    required = (source / "paddle_ascend_llm.egg-info" / "requires.txt").read_text().splitlines()
    version = paddle_release.installed_paddle().version
    assert [line for line in required if line.startswith("paddlepaddle")] == [f"paddlepaddle=={version}"]
    assert f"+paddle{version}" in (source / "paddle_ascend_llm.egg-info" / "PKG-INFO").read_text()


def test_the_paddle_that_is_there_is_seen_where_pip_isolates_the_build(source, tmp_path):
    """pip hides what is installed by a sitecustomize in PYTHONPATH."""
    hiding = "import sys\nsys.path[:] = [entry for entry in sys.path if 'site-packages' not in entry]\n"
    (tmp_path / "sitecustomize.py").write_text(hiding)
    look = (
        "import importlib.util; assert importlib.util.find_spec('paddle') is None; "
        "from building import installed_paddle; print(installed_paddle.find_paddle().build)"
    )
    done = run(source, "-c", look, PYTHONPATH=str(tmp_path))
    assert done.stdout.strip() == str(paddle_release.installed_paddle()), done.stderr


@pytest.mark.parametrize(
    ("version", "protobuf"),
    [("3.0.0", ["protobuf<6"]), ("3.2.2", ["protobuf<6"]), ("3.3.0", ["protobuf<7"]), ("3.3.1", [])],
)
def test_what_a_release_requires(source, tmp_path, version, protobuf):
    done = run(source, "setup.py", "-q", "egg_info", PYTHONPATH=paddle_of(tmp_path, version))
    assert done.returncode == 0, done.stderr
    required = (source / "paddle_ascend_llm.egg-info" / "requires.txt").read_text().splitlines()
    assert f"paddlepaddle=={version}" in required
    assert [requirement for requirement in required if requirement.startswith("protobuf")] == protobuf


@pytest.mark.parametrize("without", ["compiler", "wish"])
def test_python_only(source, tmp_path, without):
    """No compiler in PATH, or PADDLE_FUSED_BUILD=off: no library, and no need of one Paddle."""
    environment = {"PADDLE_FUSED_BUILD": "off"} if without == "wish" else {"PATH": str(tmp_path)}
    wheels = tmp_path / "wheels"
    hook = f"{ASK}; backend.build_wheel({str(wheels)!r})"
    wheels.mkdir()
    done = run(source, "-c", hook, **environment)
    assert done.returncode == 0, done.stderr
    (wheel,) = wheels.iterdir()
    assert wheel.name.endswith("+python-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so") or "building" in name]
        (metadata,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        assert "Requires-Dist: paddlepaddle<3.4,>=3.0.0" in archive.read(metadata).decode()


def test_missing_compiler_is_named(source):
    done = build(source, "no-such-compiler")
    assert done.returncode != 0
    assert "no `no-such-compiler` was found" in done.stderr and "apt-get install g++" in done.stderr
    assert "Traceback" not in done.stderr


def failing_compiler(folder, at="-c"):
    """A compiler that fails where this is among its arguments: /dev/null where its version is asked for."""
    compiler = folder / "broken-compiler"
    fails = "{ echo 'fatal error: this compiler is broken' >&2; exit 1; }"
    compiler.write_text(f'#!/bin/sh\ncase " $* " in *" {at} "*) {fails};; esac\nexec g++ "$@"\n')
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    return compiler


def test_failing_compiler_is_quoted_without_a_traceback(source, tmp_path):
    done = build(source, failing_compiler(tmp_path))
    assert done.returncode != 0
    assert "The native code did not compile" in done.stderr and "this compiler is broken" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (source / "paddle_fused" / "lib").exists()


def test_tools_of_an_earlier_build_may_be_gone(source, tmp_path):
    """pip gives every build a ninja of its own and deletes it, while the build's folder stays."""
    compiler = failing_compiler(tmp_path)
    build(source, compiler)
    (cache,) = source.glob("build/*/CMakeCache.txt")
    compiled = cache.parent / "CMakeFiles" / "kernels.dir" / "kernel.cc.o"
    compiled.parent.mkdir()
    compiled.touch()
    kept = re.sub("(?m)^CMAKE_MAKE_PROGRAM.*$", "CMAKE_MAKE_PROGRAM:FILEPATH=/gone/ninja", cache.read_text())
    cache.write_text(kept)
    done = build(source, compiler)
    assert "this compiler is broken" in done.stderr and "/gone/ninja" not in done.stderr
    assert compiled.exists()


def test_the_libraries_of_models_are_extras(source):
    """A plain installation has neither: their requirements exclude each other."""
    done = run(source, "setup.py", "-q", "egg_info")
    assert done.returncode == 0, done.stderr
    text = (source / "paddle_ascend_llm.egg-info" / "requires.txt").read_text()
    always, *extras = re.split(r"^\[", text, flags=re.MULTILINE)
    assert "paddlenlp" not in always and "paddleformers" not in always
    of = {name: lines.split() for name, _, lines in (extra.partition("]") for extra in extras)}
    assert "paddlenlp==3.0.0b4" in of["paddlenlp"] and "paddleformers==1.2.0" in of["paddleformers"]
