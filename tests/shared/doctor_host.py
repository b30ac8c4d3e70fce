"""A folder like a host's with a card, and the ways to break it that the doctor has to name."""

import os
import stat
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import virtual_npu
from llm_npu.doctor import Setup
from llm_npu.models.library import names

PADDLE = metadata.version("paddlepaddle")
ANOTHER_PADDLE = "3.0.0" if PADDLE != "3.0.0" else "3.1.1"
CHIP = (
    "| 0     910B2               | {health}            | 93.6        40                0    / 0             |"
)


def write(file: Path, content: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    return file


def tool(file: Path, output: str) -> None:
    write(file, f"#!/bin/sh\ncat <<'END'\n{output}\nEND\n").chmod(stat.S_IRWXU)


def card_host(tmp_path: Path) -> Path:
    """A folder like a host's with one card: device nodes, driver, CANN, npu-smi, and paddle-custom-npu."""
    root = tmp_path / "host"
    for node in ("davinci0", "davinci_manager", "devmm_svm", "hisi_hdc"):
        write(root / "dev" / node, "")
    write(root / "proc/meminfo", "MemTotal: 65000000 kB\nMemAvailable:   64000000 kB\n")
    write(root / "proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n")
    write(root / "proc/sys/net/ipv4/ip_local_reserved_ports", "50000,60000-60031\n")
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


# A way to break a host, the check that has to name it, the level, and words of the finding.
BROKEN: list[tuple[Callable[[Path], Setup], str, str, str]] = []


def breaks(check: str, level: str, words: str):
    """Adds the decorated function to ``BROKEN``."""

    def add(function):
        BROKEN.append((function, check, level, words))
        return function

    return add


@breaks("mc2", "error", "CANN 8.0.RC1 cannot run")
def old_cann(host):
    info = host / "usr/local/Ascend/ascend-toolkit/latest"
    (info / "version.cfg").unlink()
    write(info / "x86_64-linux/ascend_toolkit_install.info", "package_name=toolkit\nversion=8.0.RC1\n")
    return on_card(host, FLAGS_NPU_MC2="1")


@breaks("mc2", "error", "the driver 23.0.3 cannot run")
def old_driver(host):
    write(host / "usr/local/Ascend/driver/version.info", "Version=23.0.3\n")
    return on_card(host, FLAGS_NPU_MC2="1")


@breaks("cann", "warning", "have other versions: opp 8.0.RC1")
def mixed_cann(host):
    file = host / "usr/local/Ascend/ascend-toolkit/latest/version.cfg"
    file.write_text(
        file.read_text().replace(
            "opp_running_version=[7.3.0.1.231:8.0.RC2]", "opp_running_version=[7.1:8.0.RC1]"
        )
    )
    return on_card(host)


@breaks("cann", "error", "ASCEND_TOOLKIT_HOME is ")
def moved_cann(host):
    return on_card(host, ASCEND_TOOLKIT_HOME=str(host / "opt/ascend"))


@breaks("cann", "error", "does not contain the version")
def nameless_cann(host):
    (host / "usr/local/Ascend/ascend-toolkit/latest/version.cfg").unlink()
    return on_card(host)


@breaks("cann", "error", "CANN is not installed")
def no_cann(host):
    (host / "usr/local/Ascend/ascend-toolkit/latest").rename(host / "elsewhere")
    return on_card(host)


@breaks("cann", "error", "libascendcl.so is not in any folder of LD_LIBRARY_PATH")
def not_sourced(host):
    return on_card(host, LD_LIBRARY_PATH="")


@breaks("pairs", "error", f"paddlepaddle {ANOTHER_PADDLE}, but {PADDLE} is installed")
def other_paddle(host):
    write(host / "plugin/npu/__init__.py", f"full_version  = '{ANOTHER_PADDLE}'\ncann_version  = '8.0.RC2'\n")
    return on_card(host)


@breaks("pairs", "warning", "was built with CANN 8.0.0, but CANN 8.0.RC2 is installed")
def other_cann(host):
    write(host / "plugin/npu/__init__.py", f"full_version  = '{PADDLE}'\ncann_version  = '8.0.0'\n")
    return on_card(host)


@breaks("device", "error", "/dev/devmm_svm")
def missing_node(host):
    (host / "dev/devmm_svm").unlink()
    return on_card(host)


@breaks("device", "error", "hides every card")
def hidden_card(host):
    return on_card(host, ASCEND_RT_VISIBLE_DEVICES="")


@breaks("driver", "error", "card 0 (910B2) is Alarm")
def ill_card(host):
    tool(host / "usr/local/bin/npu-smi", CHIP.format(health="Alarm"))
    return on_card(host)


@breaks("driver", "error", "ret is -8005")
def mute_card(host):
    write(
        host / "usr/local/bin/npu-smi",
        "#!/bin/sh\necho 'dcmi module initialize failed. ret is -8005'; exit 1\n",
    )
    (host / "usr/local/bin/npu-smi").chmod(stat.S_IRWXU)
    return on_card(host)


@breaks("variables", "warning", "HCCL_INTRA_PCIE_ENABLE")
def misspelt(host):
    return on_card(host, HCCL_INTRA_PCIE_EHABLE="1")


@breaks("variables", "warning", f"MC2 has no effect: {names.TITLE} reads FLAGS_NPU_MC2")
def unread(host):
    return on_card(host, MC2="1")


@breaks("mc2", "error", "reads it as a number")
def text_for_mc2(host):
    return on_card(host, FLAGS_NPU_MC2="true")


@breaks("hccl", "error", "HCCL_CONNECT_TIMEOUT is '10'; accepted: seconds, from 120 to 7200")
def short_timeout(host):
    return on_card(host, HCCL_CONNECT_TIMEOUT="10")


@breaks("hccl", "error", "not an address of this host")
def other_address(host):
    return on_card(host, HCCL_IF_IP="192.0.2.1")  # of a network that is reserved for documents


@breaks("hccl", "error", "'eth0', which is not an address")
def no_address(host):
    return on_card(host, HCCL_IF_IP="eth0")


@breaks("hccl", "error", "matches none of this host's")
def no_interface(host):
    return on_card(host, HCCL_SOCKET_IFNAME="=no-such-interface")


@breaks("ports", "warning", "ports 60000 to 60031, but the system may assign 60000 to another program")
def unreserved_ports(host):
    write(host / "proc/sys/net/ipv4/ip_local_reserved_ports", "\n")
    return on_card(host)


@breaks("ports", "warning", "ports 60100 to 60131, but the system may assign 60100 to another program")
def other_base_port(host):
    return on_card(host, HCCL_IF_BASE_PORT="60100")


@breaks("memory", "error", "0.5 GiB of memory are available")
def little_memory(host):
    write(host / "proc/meminfo", "MemAvailable:   500000 kB\n")
    return on_card(host)


@breaks("memory", "warning", "1.0 GiB of memory are available")
def small_container(host):
    for name, value in (("memory.max", 2**31), ("memory.current", 2**30)):
        write(host / "sys/fs/cgroup" / name, f"{value}\n")
    return on_card(host)


@breaks("shm", "warning", "/dev/shm has 64 MiB")
def small_shm(host):
    write(
        host / "proc/mounts", "shm /dev/shm tmpfs rw,nosuid,nodev,noexec,relatime,size=65536k,inode64 0 0\n"
    )
    return on_card(host)


@breaks("disk", "error", "cannot be written")
def read_only(host):
    return Setup({}, "cpu", output_dir=Path("/proc/no/such/folder"), root=host)


@breaks("disk", "error", "cannot be written")
def file_in_the_way(host):
    return Setup({}, "cpu", output_dir=write(host / "file", "") / "output", root=host)


@breaks("disk", "warning", "are free in")
def full_disk(host):
    return Setup({}, "cpu", output_dir=host, root=host, disk_gb=1e9)


@breaks("threads", "warning", "threads wait for each other")
def many_threads(host):
    return on_card(host, OMP_NUM_THREADS=str(100 * os.cpu_count()))


@breaks("threads", "error", "OMP_NUM_THREADS is 'all'; accepted: 1 or more")
def no_threads(host):
    return on_card(host, OMP_NUM_THREADS="all")
