"""A clone uses the libraries of an installation that it shadows, if built from the same sources."""

import json
import re

import clones
import pytest

from paddle_fused import libraries

pytestmark = pytest.mark.sampled

CHECKS = "import os; from llm_npu.doctor import Setup; from llm_npu.doctor.checks import packages, device"
CHOSEN = "from paddle_fused import libraries; print(libraries.ROOT, libraries.folder())"
LOAD = "import paddle_fused; paddle_fused.load_operators()"
ENV = ("-m", "virtual_npu", "--env")
NOTHING = ("-S", "-E")  # no site-packages and no PYTHONPATH
SOURCE = "paddle_fused/csrc/kernels/elementwise/cast.cc"


@pytest.fixture
def clone(tmp_path):
    return clones.make_clone(tmp_path / "clone")


@pytest.fixture
def site(clone, tmp_path):
    return clones.install(clone, tmp_path / "site")


@pytest.fixture
def in_clone(run_python, clone, tmp_path):
    """A function that runs Python in the clone; the folder ``site`` contains the installation."""

    def run(*arguments):
        return run_python(*arguments, cwd=clone, PYTHONPATH=str(tmp_path / "site"))

    return run


def change(clone) -> None:
    with (clone / SOURCE).open("a") as file:
        file.write("// changed\n")


def one_line(text: str) -> str:
    (line,) = text.splitlines()
    return line


@pytest.mark.slow
def test_a_clone_uses_the_installation_that_was_built_from_it(in_clone, clone, site):
    roots = [str(folder) for folder in (clone, site)]
    assert in_clone("-c", CHOSEN).stdout.split() == roots
    done = in_clone(*ENV)
    assert done.returncode == 0, done.stderr
    assert f"CUSTOM_DEVICE_ROOT={roots[1]}/virtual_npu/plugin" in done.stdout
    assert in_clone("-m", "paddle_fused.instruction_set").returncode == 0
    done = in_clone("-c", LOAD)
    assert done.returncode == 0, done.stderr


def test_the_doctor_compares_the_code_of_a_clone_with_what_is_installed(in_clone, clone, site):
    code = f"{CHECKS}; print(*packages.code(Setup(os.environ)))"
    assert "level='ok'" in one_line(in_clone("-c", code).stdout)
    (clone / "llm_npu/new.py").touch()
    output = one_line(in_clone("-c", code).stdout)
    assert "level='warning'" in output and "differs: llm_npu/new.py'" in output
    assert f"Run `pip install .` in {clone}" in output


def test_an_installation_uses_its_own(run_python, clone, site):
    done = run_python("-c", CHOSEN, cwd=clone.parent, PYTHONPATH=str(site))
    assert done.stdout.split() == [str(site)] * 2


def test_an_installation_without_libraries_says_how_to_have_them(run_python, clone, site):
    for file in libraries.BUILT_FILES:
        (site / file).unlink()
    done = run_python(*ENV, cwd=clone.parent, PYTHONPATH=str(site))
    assert done.returncode == 2
    fix = r" is missing\. Run `pip install \.` .* g\+\+ .* PADDLE_FUSED_BUILD=off\.$"
    assert re.search(fix, one_line(done.stderr)), done.stderr


@pytest.mark.slow
def test_a_clone_refuses_an_installation_of_other_sources(in_clone, clone, site):
    change(clone)
    sentence = re.compile(
        rf"The native libraries are not built: {clone}/\S+ is missing\. "
        rf"{clone} shadows the installation in {site}, and .* differ\. "
        rf"Run `pip install \.` in {clone}.* another folder.*"
    )
    programs = [("-m", f"paddle_fused.{name}") for name in ("info", "parity", "instruction_set")]
    for program in (*programs, ENV):
        done = in_clone(*program)
        assert done.returncode == 2, done.stderr
        assert sentence.search(one_line(done.stderr)), done.stderr
    done = in_clone("-c", LOAD)
    assert done.returncode == 1 and sentence.search(done.stderr.splitlines()[-1]), done.stderr


@pytest.mark.slow
def test_the_doctor_says_once_that_a_clone_hides_the_installation(in_clone, clone, site):
    change(clone)
    done = in_clone("-m", "llm_npu", "doctor", "--json", "--disk_gb", "0.001", "--timeout", "500")
    assert done.returncode == 1, done.stdout + done.stderr
    findings = json.loads(done.stdout)["findings"]
    (error,) = [finding for finding in findings if finding["level"] == "error"]
    assert "operators" not in {finding["check"] for finding in findings}
    assert error["check"] == "plugin" and f"{clone} shadows the installation in {site}" in error["message"]
    assert f"Run `pip install .` in {clone}" in error["fix"]


def test_libraries_in_the_clone_come_first_unless_only_the_installed_ones_fit(in_clone, clone, site):
    clones.build_in(clone)
    assert in_clone("-c", CHOSEN).stdout.split()[1] == str(clone)
    change(clone)
    plugin = f"{CHECKS}; print(*device.files(Setup(os.environ)))"
    done = in_clone("-c", plugin)
    assert "level='warning'" in one_line(done.stdout), done.stdout + done.stderr
    assert "different C++ sources" in done.stdout and f"`pip install -e .` in {clone}" in done.stdout
    stamp = site / libraries.STAMP
    sources = libraries.sources_digest(clone)
    stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "sources": sources}))
    assert in_clone("-c", CHOSEN).stdout.split()[1] == str(site)


@pytest.mark.parametrize("in_place", [False, True], ids=["installed", "in place"])
def test_libraries_for_another_paddle(in_clone, clone, site, in_place):
    if in_place:
        clones.build_in(clone)
    built = clone if in_place else site
    stamp = built / libraries.STAMP
    stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "paddle_version": "3.2.9"}))
    done = in_clone(*ENV)
    assert done.returncode == 2 and f"{built}/virtual_npu/plugin was built for" in done.stderr
    assert "Install paddlepaddle 3.2.9" in done.stderr
    assert f"Run `pip install {'-e .' if in_place else '.'}` in {clone}" in one_line(done.stderr)


@pytest.mark.parametrize("public", ["rms_norm", "compat"])
def test_nothing_public_is_imported_with_libraries_for_another_paddle(run_python, clone, site, public):
    stamp = site / libraries.STAMP
    stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "paddle_commit": "0" * 40}))
    done = run_python("-c", f"from paddle_fused import {public}", cwd=clone.parent, PYTHONPATH=str(site))
    assert done.returncode == 1
    sentence = (
        rf"paddle_fused in {re.escape(str(site))} was built for .* \(commit 0+\), but .* is installed\. "
    )
    assert re.search(sentence + ".* Run `pip install", done.stderr.splitlines()[-1]), done.stderr
    done = run_python("-c", "import paddle_fused.libraries", cwd=clone.parent, PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr  # as the build does, which makes them fit


def test_nothing_is_installed(in_clone, clone):
    done = in_clone(*NOTHING, *ENV)
    assert done.returncode == 2
    assert one_line(done.stderr).endswith(f" is missing. Run `pip install .` in {clone}.")


def test_metadata_that_a_build_left_in_a_clone_is_no_installation(in_clone, clone):
    metadata = clone / "paddle_ascend_llm.egg-info" / "PKG-INFO"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: paddle-ascend-llm\nVersion: 0.1.0\n")
    pins = f"{CHECKS}; print(*packages.pins(Setup(os.environ)))"
    done = in_clone(*NOTHING, "-c", pins)
    assert "this project, paddle-ascend-llm, is not installed" in one_line(done.stdout), done.stderr


def test_the_digest_is_of_what_is_compiled(clone):
    before = libraries.sources_digest(clone)
    assert before == libraries.sources_digest(libraries.ROOT)
    kernel = clone / "paddle_fused/csrc/kernels/elementwise/cast.cc"
    for other in ("paddle_fused/csrc/checks/main.cc", "virtual_npu/csrc/notes.md", "paddle_fused/native.py"):
        (clone / other).write_text("something else")
    assert libraries.sources_digest(clone) == before
    seen = {before}
    for file in (
        "paddle_fused/csrc/kernels/elementwise/cast.cc",
        "paddle_fused/csrc/CMakeLists.txt",
        "paddle_fused/contracts/rule.py",
        "paddle_fused/ops/swiglu/contract.py",
        "virtual_npu/csrc/runtime/plugin.cc",
        "virtual_npu/data/npu_kernels.json",
    ):
        (clone / file).write_text("something else")
        seen.add(libraries.sources_digest(clone))
    kernel.rename(kernel.with_name("other.cc"))
    assert len({*seen, libraries.sources_digest(clone)}) == 8
