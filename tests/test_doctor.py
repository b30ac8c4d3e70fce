"""python -m llm_npu.doctor: every set-up that was broken on purpose is named, with its cure."""

import itertools
import json
import os
import re
import stat
from importlib import metadata
from pathlib import Path

import pytest

from llm_npu.doctor import Finding, Setup, as_json, examine, exit_code, text
from llm_npu.doctor import plugin as plugin_checks
from llm_npu.doctor.ascend_version import is_before
from paddle_fused import virtual_npu

PADDLE = metadata.version("paddlepaddle")
CHIP = (
    "| 0     910B2               | {health}            | 93.6        40                0    / 0             |"
)


def write(file: Path, content: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    return file


def tool(file: Path, output: str) -> None:
    write(file, f"#!/bin/sh\ncat <<'END'\n{output}\nEND\n").chmod(stat.S_IRWXU)


@pytest.fixture
def host(tmp_path):
    """A folder like a host's with one card: device nodes, driver, CANN, npu-smi, and paddle-custom-npu."""
    root = tmp_path / "host"
    for node in ("davinci0", "davinci_manager", "devmm_svm", "hisi_hdc"):
        write(root / "dev" / node, "")
    write(root / "proc/meminfo", "MemTotal: 65000000 kB\nMemAvailable:   64000000 kB\n")
    ascend = root / "usr/local/Ascend"
    write(ascend / "driver/version.info", "Version=24.1.rc2\nascendhal_version=7.35.19\n")
    toolkit = ascend / "ascend-toolkit/latest"
    parts = [
        f"{part}_running_version=[7.3.0.1.231:8.0.RC2]" for part in ("runtime", "compiler", "opp", "toolkit")
    ]
    write(toolkit / "version.cfg", "# version: 1.0\n" + "\n".join(parts) + "\n")
    write(toolkit / "lib64/libascendcl.so", "")
    tool(root / "usr/local/bin/npu-smi", CHIP.format(health="OK"))
    write(root / "plugin" / virtual_npu.LIBRARY, "not a library")
    write(root / "plugin/npu/__init__.py", f"full_version  = '{PADDLE}'\ncann_version  = '8.0.RC2'\n")
    return root


def on_card(host, **variables) -> Setup:
    """A run on that host's card."""
    environ = {
        "CUSTOM_DEVICE_ROOT": str(host / "plugin"),
        "LD_LIBRARY_PATH": str(host / "usr/local/Ascend/ascend-toolkit/latest/lib64"),
        **variables,
    }
    return Setup(environ, "npu:card", output_dir=host / "output", root=host, disk_gb=0.001)


def findings_of(check: str, setup: Setup) -> list[Finding]:
    from llm_npu.doctor.checks import CHECKS

    return list(CHECKS[check](setup))


def problems(check: str, setup: Setup) -> list[tuple[str, str]]:
    return [(found.level, found.what) for found in findings_of(check, setup) if found.level != "ok"]


OF_FILES = ("device", "cann", "driver", "pairs", "mc2", "variables", "hccl", "memory", "disk", "threads")


def test_nothing_is_wrong_with_a_whole_host(host):
    setup = on_card(host, FLAGS_NPU_MC2="1")
    for check in OF_FILES:
        assert problems(check, setup) == [], check
    said = " ".join(found.what for check in OF_FILES for found in findings_of(check, setup))
    assert "1 Ascend card(s)" in said and "CANN 8.0.RC2" in said and "driver 24.1.rc2" in said
    assert "1 card(s), 910B2, health OK" in said


def old_cann(host):
    info = host / "usr/local/Ascend/ascend-toolkit/latest"
    (info / "version.cfg").unlink()
    write(info / "x86_64-linux/ascend_toolkit_install.info", "package_name=toolkit\nversion=8.0.RC1\n")
    return on_card(host, FLAGS_NPU_MC2="1")


def old_driver(host):
    write(host / "usr/local/Ascend/driver/version.info", "Version=23.0.3\n")
    return on_card(host, FLAGS_NPU_MC2="1")


def mixed_cann(host):
    file = host / "usr/local/Ascend/ascend-toolkit/latest/version.cfg"
    file.write_text(
        file.read_text().replace(
            "opp_running_version=[7.3.0.1.231:8.0.RC2]", "opp_running_version=[7.1:8.0.RC1]"
        )
    )
    return on_card(host)


def moved_cann(host):
    return on_card(host, ASCEND_TOOLKIT_HOME=str(host / "opt/ascend"))


def nameless_cann(host):
    (host / "usr/local/Ascend/ascend-toolkit/latest/version.cfg").unlink()
    return on_card(host)


def no_cann(host):
    (host / "usr/local/Ascend/ascend-toolkit/latest").rename(host / "elsewhere")
    return on_card(host)


def not_sourced(host):
    return on_card(host, LD_LIBRARY_PATH="")


def other_paddle(host):
    write(host / "plugin/npu/__init__.py", "full_version  = '3.0.0'\ncann_version  = '8.0.RC2'\n")
    return on_card(host)


def other_cann(host):
    write(host / "plugin/npu/__init__.py", f"full_version  = '{PADDLE}'\ncann_version  = '8.0.0'\n")
    return on_card(host)


def missing_node(host):
    (host / "dev/devmm_svm").unlink()
    return on_card(host)


def hidden_card(host):
    return on_card(host, ASCEND_RT_VISIBLE_DEVICES="")


def ill_card(host):
    tool(host / "usr/local/bin/npu-smi", CHIP.format(health="Alarm"))
    return on_card(host)


def mute_card(host):
    write(
        host / "usr/local/bin/npu-smi",
        "#!/bin/sh\necho 'dcmi module initialize failed. ret is -8005'; exit 1\n",
    )
    (host / "usr/local/bin/npu-smi").chmod(stat.S_IRWXU)
    return on_card(host)


def misspelt(host):
    return on_card(host, HCCL_INTRA_PCIE_EHABLE="1")


def unread(host):
    return on_card(host, MC2="1")


def text_for_mc2(host):
    return on_card(host, FLAGS_NPU_MC2="true")


def short_timeout(host):
    return on_card(host, HCCL_CONNECT_TIMEOUT="10")


def other_address(host):
    return on_card(host, HCCL_IF_IP="192.0.2.1")  # of a network that is reserved for documents


def no_address(host):
    return on_card(host, HCCL_IF_IP="eth0")


def no_interface(host):
    return on_card(host, HCCL_SOCKET_IFNAME="=no-such-interface")


def little_memory(host):
    write(host / "proc/meminfo", "MemAvailable:   500000 kB\n")
    return on_card(host)


def small_container(host):
    for name, value in (("memory.max", 2**31), ("memory.current", 2**30)):
        write(host / "sys/fs/cgroup" / name, f"{value}\n")
    return on_card(host)


def read_only(host):
    return Setup({}, "cpu", output_dir=Path("/proc/no/such/folder"), root=host)


def file_in_the_way(host):
    return Setup({}, "cpu", output_dir=write(host / "file", "") / "output", root=host)


def full_disk(host):
    return Setup({}, "cpu", output_dir=host, root=host, disk_gb=1e9)


def many_threads(host):
    return on_card(host, OMP_NUM_THREADS=str(100 * os.cpu_count()))


def no_threads(host):
    return on_card(host, OMP_NUM_THREADS="all")


BROKEN = [
    (old_cann, "mc2", "error", "CANN 8.0.RC1 cannot run"),
    (old_driver, "mc2", "error", "the driver 23.0.3 cannot run"),
    (mixed_cann, "cann", "warning", "of other versions: opp 8.0.RC1"),
    (moved_cann, "cann", "error", "ASCEND_TOOLKIT_HOME names"),
    (nameless_cann, "cann", "error", "does not say which version"),
    (no_cann, "cann", "error", "CANN is not installed"),
    (not_sourced, "cann", "error", "libascendcl.so is in no folder of LD_LIBRARY_PATH"),
    (other_paddle, "pairs", "error", f"paddlepaddle 3.0.0, and paddlepaddle {PADDLE} is installed"),
    (other_cann, "pairs", "warning", "was built with CANN 8.0.0, and CANN 8.0.RC2 is installed"),
    (missing_node, "device", "error", "/dev/devmm_svm"),
    (hidden_card, "device", "error", "hides every card"),
    (ill_card, "driver", "error", "card 0 (910B2) is Alarm"),
    (mute_card, "driver", "error", "ret is -8005"),
    (misspelt, "variables", "warning", "is HCCL_INTRA_PCIE_ENABLE meant?"),
    (unread, "variables", "warning", "MC2 has no effect: PaddleNLP reads FLAGS_NPU_MC2"),
    (text_for_mc2, "mc2", "error", "reads it as a number"),
    (short_timeout, "hccl", "error", "HCCL_CONNECT_TIMEOUT is '10'; accepted: seconds, from 120 to 7200"),
    (other_address, "hccl", "error", "not an address of this host"),
    (no_address, "hccl", "error", "'eth0', which is no address"),
    (no_interface, "hccl", "error", "leaves none of this host's"),
    (little_memory, "memory", "error", "0.5 GiB of memory are available"),
    (small_container, "memory", "warning", "1.0 GiB of memory are available"),
    (read_only, "disk", "error", "cannot be written"),
    (file_in_the_way, "disk", "error", "cannot be written"),
    (full_disk, "disk", "warning", "are free in"),
    (many_threads, "threads", "warning", "threads wait for each other"),
    (no_threads, "threads", "error", "OMP_NUM_THREADS is 'all'; accepted: 1 or more"),
]


@pytest.mark.parametrize(
    ("breaks", "check", "level", "words"), BROKEN, ids=lambda value: getattr(value, "__name__", None)
)
def test_what_was_broken_on_a_host_is_named(host, breaks, check, level, words):
    (found,) = [finding for finding in findings_of(check, breaks(host)) if finding.level != "ok"]
    assert found.level == level and words in found.what, found
    assert found.cure.endswith(".") or found.cure.endswith(")"), found.cure


def test_values_are_warnings_only_where_no_card_reads_them(host):
    setup = Setup({"HCCL_BUFFSIZE": "0"}, "virtual_npu", root=host)
    assert problems("hccl", setup) == [("warning", "HCCL_BUFFSIZE is '0'; accepted: megabytes, 1 or more")]


@pytest.mark.parametrize("value", ["lo", "=lo", "^eth", "^=eth0", "no-such,lo"])
def test_names_of_interfaces(host, value):
    assert problems("hccl", on_card(host, HCCL_SOCKET_IFNAME=value)) == []


def test_mc2_on_the_virtual_npu_follows_its_level(host):
    setup = Setup({"VIRTUAL_NPU_CANN": "7.0.0", "FLAGS_NPU_MC2": "1"}, "virtual_npu", root=host)
    ((level, what),) = problems("mc2", setup)
    assert level == "error" and "CANN 7.0.0 cannot run" in what
    assert problems("mc2", Setup({}, "virtual_npu", root=host)) == []


def test_the_order_of_versions():
    ascending = ["7.0.0", "8.0.RC1", "8.0.RC2.alpha001", "8.0.RC2", "8.0.RC3", "8.0.0", "8.1.RC1", "8.2.RC1"]
    for before, after in itertools.pairwise(ascending):
        assert is_before(before, after) and not is_before(after, before)
    assert is_before("23.0.3", "24.1.RC2") and not is_before("24.1.rc2", "24.1.RC2")
    assert not is_before("???", "8.0.RC2") and not is_before("8.0.RC2", "???")


def test_operators_that_are_missing_or_of_another_form():
    known = {"inputs": ["x", "gamma"], "attributes": ["epsilon"]}
    other = {"inputs": ["query", "cos", "sin", "extra"], "attributes": []}
    found = plugin_checks.judged({"rms_norm_npu": known, "fused_rope": other, "fused_mm_allreduce": None})
    assert [(finding.level, finding.what.split()[0]) for finding in found] == [
        ("error", "fused_rope"),
        ("warning", "the"),
        ("ok", "as"),
    ]
    assert "(query, cos, sin, extra)" in found[0].what and "fused_mm_allreduce" in found[1].what


def test_sources_that_are_newer_than_the_libraries(tmp_path):
    stamp = write(tmp_path / "virtual_npu/built_for.json", "{}")
    os.utime(stamp, (1000, 1000))
    for file, time in (
        ("kernels/a.cc", 900),
        ("kernels/b.cc", 1100),
        ("checks/main.cc", 1100),
        ("a.md", 1100),
    ):
        os.utime(write(tmp_path / "csrc" / file, ""), (time, time))
    assert plugin_checks._newer_sources(tmp_path) == ["csrc/kernels/b.cc"]


def test_text_and_json():
    found = [Finding("python", "ok", "fine"), Finding("disk", "error", "full", "Make room.")]
    assert text(found).splitlines() == [
        "ok       python       fine",
        "error    disk         full",
        "                 cure Make room.",
        "",
        "1 error, 0 warning, 1 ok",
    ]
    content = json.loads(as_json(found))
    assert content["exit_code"] == exit_code(found) == 1 and exit_code(found[:1]) == 0
    assert content["findings"][1] == {"check": "disk", "level": "error", "what": "full", "cure": "Make room."}


def test_a_check_that_fails_hides_no_other(host, monkeypatch):
    from llm_npu.doctor import checks

    def fails(setup):
        raise KeyError("something")

    monkeypatch.setattr(checks, "CHECKS", {"first": fails, "threads": checks.CHECKS["threads"]})
    first, second = examine(on_card(host))
    assert first.level == "error" and "KeyError: 'something'" in first.what and second.check == "threads"


@pytest.fixture
def doctor(run_python, tmp_path):
    """A function that runs the doctor in a process of its own: (exit code, {check: problems})."""

    def run(*arguments, options=(), **variables):
        command = [*options, "-m", "llm_npu.doctor", "--json", "--disk_gb", "0.001", *arguments]
        done = run_python(*command, cwd=tmp_path, **variables)
        assert done.stderr == "" and done.returncode in (0, 1), done.stderr
        found: dict[str, list[str]] = {}
        for each in json.loads(done.stdout)["findings"]:
            if each["level"] == "error":
                found.setdefault(each["check"], []).append(each["what"])
        return done.returncode, found

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
        ("import os; os.abort()", "was ended by SIGABRT"),
        ("import ctypes; ctypes.string_at(0)", "was ended by SIGSEGV"),
        ("import os; os._exit(7)", "ended the process with exit code 7"),
        ("import threading; threading.Event().wait()", "did not come to an end within 1 s"),
    ],
    ids=["import error", "abort", "segmentation fault", "exit", "hang"],
)
def test_a_paddle_that_cannot_be_imported(doctor, tmp_path, code, words):
    code, found = doctor("--timeout", "1", PYTHONPATH=package(tmp_path / "site", code))
    assert code == 1
    (what,) = found["process"]
    assert what.startswith("import paddle") and words in what


def test_a_plugin_that_was_built_for_another_paddle(doctor, tmp_path):
    code, found = doctor(PYTHONPATH=package(tmp_path / "site", "raise ImportError('no')", "3.2.0"))
    assert code == 1 and "but paddlepaddle 3.2.0" in found["plugin"][0]


def test_nothing_is_installed(doctor):
    code, found = doctor(options=["-S"])
    assert code == 1
    assert (
        "is not installed" in found["packages"][0] and "paddlepaddle is not installed" in found["plugin"][0]
    )
    assert "No module named 'paddle'" in found["process"][0]
    assert "yaml is not installed" in found["variables"][0]


def test_packages_of_other_versions(doctor, tmp_path):
    site = package(tmp_path / "site", "raise ImportError('no')")
    for name, version in (("paddlenlp", "2.8.0"), ("numpy", "2.3.1")):
        content = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        write(tmp_path / "site" / f"{name}-{version}.dist-info/METADATA", content)
    code, found = doctor(PYTHONPATH=site)
    assert code == 1 and found["packages"] == ["paddlenlp is 2.8.0; needed: paddlenlp==3.0.0b4"]


@pytest.mark.parametrize(
    ("name", "value", "check", "words"),
    [
        ("VIRTUAL_NPU_DEVICES", "99", "device", "VIRTUAL_NPU_DEVICES is '99'"),
        ("VIRTUAL_NPU_DEVICE", "4", "device", "the nearest is VIRTUAL_NPU_DEVICES"),
    ],
)
def test_settings_of_the_virtual_npu(doctor, tmp_path, name, value, check, words):
    site = package(tmp_path / "site", "raise ImportError('no')")
    code, found = doctor(PYTHONPATH=site, **{name: value})
    assert code == 1 and words in found[check][0]


def test_a_plugin_that_paddle_cannot_load(doctor, host):
    variables = {"CUSTOM_DEVICE_ROOT": str(host / "plugin")}
    code, found = doctor("--device", "npu:card", "--root", host, **variables)
    assert code == 1
    (what,) = found["process"]
    assert what.startswith("with the device plugin import paddle failed") and virtual_npu.LIBRARY in what
    assert what.endswith("without it, paddle is imported")


def test_a_paddlenlp_that_cannot_be_imported(doctor, tmp_path):
    write(tmp_path / "site/paddlenlp/__init__.py", "raise ImportError('cannot import name download')")
    code, found = doctor("--device", "cpu", PYTHONPATH=str(tmp_path / "site"))
    assert code == 1
    assert found["process"] == ["import paddlenlp failed: ImportError: cannot import name download"]


def test_the_document(run_python):
    """Its example runs, and its table has every check."""
    from llm_npu.doctor.checks import CHECKS

    document = (Path(__file__).resolve().parents[1] / "docs/doctor.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", document, re.DOTALL)
    done = run_python("-c", example)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^\| `(\w+)` \|", document, re.MULTILINE) == list(CHECKS)


def test_an_instruction_set_that_nobody_knows():
    setup = Setup({**os.environ, "PADDLE_FUSED_ISA": "sse9"})
    ((level, what),) = problems("kernels", setup)
    assert level == "error" and "PADDLE_FUSED_ISA=sse9 is unknown" in what


WITHOUT_FRAMEWORKS = """
import sys
from llm_npu.doctor.__main__ import main
code = main(["--json", "--disk_gb", "0.001"])
loaded = {module.partition(".")[0] for module in sys.modules} & {"paddle", "paddlenlp", "numpy"}
sys.exit(f"imported: {loaded}" if loaded else code)
"""


def test_a_whole_installation(run_python, tmp_path):
    done = run_python("-c", WITHOUT_FRAMEWORKS, cwd=tmp_path, VIRTUAL_NPU_FLASH_ATTENTION_ABI="v10")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)["findings"]
    said = {each["check"]: each["what"] for each in found if each["level"] == "ok"}
    assert f"paddlepaddle {PADDLE}" in said["packages"] and "virtual NPUs on the host CPU" in said["device"]
    assert "a product came out right on npu:0" in said["process"] and "paddlenlp 3.0.0b4" in said["process"]
    assert (
        "flash_attention_npu (10 arguments, without lengths), rms_norm_npu, fused_rope" in said["operators"]
    )
    assert "fused_mm_reduce_scatter" in said["operators"] and said["kernels"].startswith(
        "the host kernels use "
    )
