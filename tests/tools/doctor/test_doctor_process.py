"""llm-npu doctor as a user runs it, with installations that were broken on purpose."""

import json
import re
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
from doctor_host import BROKEN, card_host, write
from places import ROOT

import virtual_npu
from llm_npu.models import library

pytestmark = pytest.mark.sampled

PADDLE = metadata.version("paddlepaddle")
LIBRARY = library.installed_or_none()
VERSION = metadata.version(LIBRARY)


@pytest.fixture
def host(tmp_path):
    return card_host(tmp_path)


@pytest.fixture
def doctor(run_python, tmp_path):
    """A function that runs the doctor in a process of its own: (exit code, {check: problems})."""

    def run(*arguments, options=(), **variables):
        command = [
            *options,
            "-m",
            "llm_npu",
            "doctor",
            "--json",
            "--disk_gb",
            "0.001",
            "--timeout",
            "500",
            *arguments,
        ]
        done = run_python(*command, cwd=tmp_path, **variables)
        assert done.stderr == "" and done.returncode in (0, 1), done.stderr
        messages: dict[str, list[str]] = {}
        for finding in json.loads(done.stdout)["findings"]:
            if finding["level"] == "error":
                messages.setdefault(finding["check"], []).append(finding["message"])
        return done.returncode, messages

    return run


def package(folder: Path, code: str, version: str | None = None) -> str:
    """A PYTHONPATH with a package ``paddle`` that does what ``code`` says."""
    write(folder / "paddle/__init__.py", code)
    if version is not None:
        write(folder / "paddle/version/__init__.py", f"full_version = '{version}'\ncommit = 'abcdef'\n")
    return str(folder)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "raise ImportError('libphi.so: undefined symbol: _ZN3phi')",
            "ImportError: libphi.so: undefined symbol",
        ),
        ("import os; os.abort()", "was killed by SIGABRT"),
        ("import ctypes; ctypes.string_at(0)", "was killed by SIGSEGV"),
        ("import os; os._exit(7)", "ended the process with exit code 7"),
        ("import threading; threading.Event().wait()", "did not end within 1 s"),
    ],
    ids=["import error", "abort", "segmentation fault", "exit", "hang"],
)
def test_a_paddle_that_cannot_be_imported(doctor, tmp_path, code, words):
    timeout = ("--timeout", "1") if "wait()" in code else ()
    code, messages = doctor(*timeout, PYTHONPATH=package(tmp_path / "site", code))
    assert code == 1
    (what,) = messages["process"]
    assert what.startswith("import paddle") and words in what
    assert "signatures" not in messages  # what cannot be asked then is no finding of its own


def test_a_plugin_that_was_built_for_another_paddle(doctor, tmp_path):
    code, messages = doctor(PYTHONPATH=package(tmp_path / "site", "raise ImportError('no')", "3.2.0"))
    assert code == 1 and "but paddlepaddle 3.2.0" in messages["plugin"][0]


def test_nothing_is_installed(doctor):
    code, messages = doctor(options=["-S"])
    assert code == 1
    assert (
        "is not installed" in messages["packages"][0]
        and "paddlepaddle is not installed" in messages["plugin"][0]
    )
    assert "No module named 'paddle'" in messages["process"][0]
    assert "yaml is not installed" in messages["variables"][0]


def test_packages_of_other_versions(doctor, tmp_path):
    site = package(tmp_path / "site", "raise ImportError('no')")
    for name, version in ((LIBRARY, "0.2.0"), ("numpy", "2.3.1")):
        content = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        write(tmp_path / "site" / f"{name}-{version}.dist-info/METADATA", content)
    code, messages = doctor(PYTHONPATH=site)
    assert code == 1 and messages["packages"] == [f"{LIBRARY} is 0.2.0; required: {LIBRARY}=={VERSION}"]


@pytest.mark.parametrize(
    ("name", "value", "check", "words"),
    [
        ("VIRTUAL_NPU_DEVICES", "99", "device", "VIRTUAL_NPU_DEVICES is '99'"),
        ("VIRTUAL_NPU_DEVICE", "4", "device", "the nearest is VIRTUAL_NPU_DEVICES"),
    ],
)
def test_settings_of_the_virtual_npu(doctor, tmp_path, name, value, check, words):
    site = package(tmp_path / "site", "raise ImportError('no')")
    code, messages = doctor(PYTHONPATH=site, **{name: value})
    assert code == 1 and words in messages[check][0]


# One broken set-up for each check of files, tools, environment and host.
OF_HOSTS = {check: (breaks, level, words) for breaks, check, level, words in reversed(BROKEN)}


@pytest.mark.parametrize("check", OF_HOSTS)
def test_broken_hosts_are_named_by_the_command(run_python, tmp_path, host, check):
    assert len(OF_HOSTS) >= 10
    breaks, level, words = OF_HOSTS[check]
    setup = breaks(host)
    options = {"device": setup.device_name, "root": setup.root, "output_dir": setup.output_dir}
    options["disk_gb"] = setup.disk_gb
    flags = [word for name, value in options.items() for word in (f"--{name}", value)]
    site = package(tmp_path / "site", "raise ImportError('no')")  # what only Paddle knows is not asked here
    done = run_python("-m", "llm_npu", "doctor", "--json", *flags, PYTHONPATH=site, **setup.environ)
    assert done.stderr == "" and done.returncode == 1, done.stderr
    findings = json.loads(done.stdout)["findings"]
    named = [finding for finding in findings if finding["check"] == check and finding["level"] != "ok"]
    assert [(finding["level"], words in finding["message"], bool(finding["fix"])) for finding in named] == [
        (level, True, True)
    ]
    others = {
        finding["check"] for finding in findings if finding["check"] in OF_HOSTS and finding["level"] != "ok"
    }
    assert others - {check} <= {"pairs"}, findings  # an older CANN is another than the plugin's


def plugin_library(folder: Path, code: str) -> str:
    """A folder with a device plugin that is compiled of ``code``."""
    source, library = write(folder / "plugin.cc", code), folder / "plugin" / virtual_npu.LIBRARY
    library.parent.mkdir()
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source], check=True)
    return str(library.parent)


PLUGINS = {
    "undefined symbol": (
        'extern "C" void of_another_cann(); extern "C" void InitPlugin(void*) { of_another_cann(); }'
        "void (*kept)() = of_another_cann;",
        ["with the device plugin import paddle failed: ", "undefined symbol: of_another_cann"],
    ),
    "abort": (
        '#include <cstdlib>\nextern "C" void InitPlugin(void*) { std::abort(); }',
        ["with the device plugin import paddle was killed by SIGABRT", "; without it, the import succeeds"],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLUGINS)
def test_a_plugin_that_was_built_wrong(doctor, tmp_path, host, kind):
    source, words = PLUGINS[kind]
    sourced = str(host / "usr/local/Ascend/ascend-toolkit/latest/lib64")
    variables = {"CUSTOM_DEVICE_ROOT": plugin_library(tmp_path, source), "LD_LIBRARY_PATH": sourced}
    code, messages = doctor("--device", "npu:card", "--root", host, **variables)
    assert code == 1 and "signatures" not in messages, messages
    assert all(word in messages["process"][0] for word in words), messages


@pytest.mark.slow
def test_a_plugin_that_paddle_cannot_load(doctor, host):
    variables = {"CUSTOM_DEVICE_ROOT": str(host / "plugin")}
    code, messages = doctor("--device", "npu:card", "--root", host, **variables)
    assert code == 1
    (what,) = messages["process"]
    assert what.startswith("with the device plugin import paddle failed") and virtual_npu.LIBRARY in what
    assert what.endswith("without it, the import succeeds")


@pytest.mark.slow
def test_a_paddlenlp_that_cannot_be_imported(doctor, tmp_path):
    write(tmp_path / "site/paddlenlp/__init__.py", "raise ImportError('cannot import name download')")
    code, messages = doctor("--device", "cpu", PYTHONPATH=str(tmp_path / "site"))
    assert code == 1
    assert messages["process"] == [
        "import the model library failed: ImportError: cannot import name download"
    ]


@pytest.mark.slow
def test_the_document(run_python):
    """Its example runs."""
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/doctor.md").read_text(), re.DOTALL)
    done = run_python("-c", example)
    assert done.returncode == 0, done.stderr


WITHOUT_FRAMEWORKS = """
import sys
from llm_npu.commands.doctor import main
code = main(["--json", "--disk_gb", "0.001", "--timeout", "500"])
heavy = {"paddle", "paddlenlp", "paddleformers", "numpy"}
loaded = {module.partition(".")[0] for module in sys.modules} & heavy
sys.exit(f"imported: {loaded}" if loaded else code)
"""


@pytest.mark.slow
def test_a_whole_installation(run_python, tmp_path):
    done = run_python("-c", WITHOUT_FRAMEWORKS, cwd=tmp_path, VIRTUAL_NPU_FLASH_ATTENTION_ABI="v10")
    assert done.returncode == 0, done.stdout + done.stderr
    findings = json.loads(done.stdout)["findings"]
    messages = {finding["check"]: finding["message"] for finding in findings if finding["level"] == "ok"}
    assert (
        f"paddlepaddle {PADDLE}" in messages["packages"]
        and "virtual NPUs on the host CPU" in messages["device"]
    )
    assert (
        "a matmul was correct on npu:0" in messages["process"]
        and f"{LIBRARY} {VERSION}" in messages["process"]
    )
    assert (
        "flash_attention_npu (10 arguments, without lengths), rms_norm_npu, fused_rope"
        in messages["signatures"]
    )
    assert "fused_mm_reduce_scatter" in messages["signatures"] and messages["kernels"].startswith(
        "the host kernels use "
    )
