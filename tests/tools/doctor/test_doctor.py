"""The doctor's checks of files, environment and host: what was broken on purpose is named, with its fix."""

import ipaddress
import itertools
import json
import os
import socket
from pathlib import Path

import pytest
from doctor_host import BROKEN, card_host, on_card

from llm_npu.doctor import Finding, Setup, as_json, examine, exit_code, text
from llm_npu.doctor.checks.device import judged
from paddle_fused.cann_installation import is_before


@pytest.fixture
def host(tmp_path):
    return card_host(tmp_path)


def findings_of(check: str, setup: Setup) -> list[Finding]:
    from llm_npu.doctor.checks import CHECKS

    return list(CHECKS[check](setup))


def problems(check: str, setup: Setup) -> list[tuple[str, str]]:
    return [
        (finding.level, finding.message) for finding in findings_of(check, setup) if finding.level != "ok"
    ]


def test_nothing_is_wrong_with_a_whole_host(host):
    setup = on_card(host, FLAGS_NPU_MC2="1")
    for check in dict.fromkeys(check for _, check, _, _ in BROKEN):
        assert problems(check, setup) == [], check
    messages = " ".join(
        finding.message for check in ("device", "cann", "driver") for finding in findings_of(check, setup)
    )
    assert "1 Ascend card(s)" in messages and "CANN 8.0.RC2" in messages and "driver 24.1.rc2" in messages
    assert "1 card(s), 910B2, health OK" in messages


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("breaks", "check", "level", "words"), BROKEN, ids=lambda value: getattr(value, "__name__", None)
)
def test_what_was_broken_on_a_host_is_named(host, breaks, check, level, words):
    (finding,) = [finding for finding in findings_of(check, breaks(host)) if finding.level != "ok"]
    assert finding.level == level and words in finding.message, finding
    assert finding.fix.endswith(".") or finding.fix.endswith(")"), finding.fix


def test_a_check_says_what_it_looks_at_and_what_is_a_problem():
    from llm_npu.doctor.checks import CHECKS, described

    rows = list(described())
    assert [name for name, _, _ in rows] == list(CHECKS)
    assert all(looks_at and problem and "|" not in looks_at + problem for _, looks_at, problem in rows)


def test_values_are_warnings_only_where_no_run_reads_them(host):
    what = "HCCL_BUFFSIZE is '0'; accepted: megabytes, 1 or more"
    for device, level in (("cpu", "warning"), ("virtual_npu", "error")):
        assert problems("hccl", Setup({"HCCL_BUFFSIZE": "0"}, device, root=host)) == [(level, what)]


@pytest.mark.sampled
@pytest.mark.parametrize("offset", [0, 15])
def test_a_base_port_that_is_taken(host, offset):
    with socket.create_server(("127.0.0.1", 0)) as server:
        base = server.getsockname()[1] - offset
        found_problems = problems("hccl", on_card(host, HCCL_IF_BASE_PORT=str(base)))
    sentence = f"HCCL_IF_BASE_PORT is {base}, and another program listens on port "
    assert [(level, what.startswith(sentence)) for level, what in found_problems] == [("error", True)]


NOT_OWN = "which is not an address of this host"
NO_HOST = "not a host address"


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("fe80::1", NOT_OWN),  # of a link: the system wants to know which
        ("fe80::1%lo", NOT_OWN),
        ("fe80::1%no-such", NOT_OWN),
        ("2001:db8::1", NOT_OWN),
        ("255.255.255.255", NOT_OWN),
        ("127.255.255.255", NOT_OWN),
        ("0.0.0.0", NO_HOST),
        ("::", NO_HOST),
        ("224.0.0.1", NO_HOST),
        ("1" * 9999, "...', which is not an address"),
    ],
)
def test_addresses_that_hccl_cannot_use(host, value, what):
    (problem,) = problems("hccl", on_card(host, HCCL_IF_IP=value))
    assert problem[0] == "error" and problem[1].endswith(what) and len(problem[1]) < 200


def test_own_addresses(host):
    own = ["127.0.0.1", "127.0.0.5"]
    own += [str(ipaddress.IPv6Address(bytes.fromhex(line[:32]))) for line in ipv6_addresses()]
    assert [problems("hccl", on_card(host, HCCL_IF_IP=value)) for value in own] == [[]] * len(own)


def ipv6_addresses():
    file = Path("/proc/net/if_inet6")
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["HCCL_CONNECT_TIMEOUT", "HCCL_IF_BASE_PORT", "HCCL_SOCKET_FAMILY"])
def test_a_number_of_thousands_of_digits(host, name):
    (problem,) = problems("hccl", on_card(host, **{name: "9" * 9999}))
    assert problem[0] == "error" and problem[1].startswith(f"{name} is '999") and len(problem[1]) < 200


SHM = "shm /dev/shm tmpfs rw,nosuid,size={}k,inode64 0 0\n"


@pytest.mark.parametrize(
    ("mounts", "messages"),
    [
        (SHM.format(65536) + SHM.format(16 << 20), []),  # the second one hides the first
        (SHM.format(16 << 20) + SHM.format(65536), ["/dev/shm has 64 MiB"]),
        (SHM.format(65536) + "/dev/sda /dev/shm ext4 rw,size=1k 0 0\n", []),
        (SHM.format(65536) + "tmpfs /dev tmpfs rw,size=65536k 0 0\n", []),
        (SHM.format(65536) + "tmpfs /dev/shm/below tmpfs rw,size=16777216k 0 0\n", ["/dev/shm has 64 MiB"]),
        ("malformed\n\n" + SHM.format(65536), ["/dev/shm has 64 MiB"]),
    ],
)
def test_the_mount_that_shared_memory_is_on(host, mounts, messages):
    (host / "proc/mounts").write_text(mounts)
    whats = [what.partition(":")[0] for _, what in problems("shm", on_card(host))]
    assert whats == messages


@pytest.mark.sampled
@pytest.mark.parametrize("value", ["lo", "=lo", "^eth", "^=eth0", "no-such,lo"])
def test_names_of_interfaces(host, value):
    assert problems("hccl", on_card(host, HCCL_SOCKET_IFNAME=value)) == []


@pytest.mark.parametrize("release", ["8.0.RC2", "8.0", "9.2.0-beta.1", "7.0.0"])
def test_every_release_of_the_virtual_npu_has_mc2(host, release):
    setup = Setup({"VIRTUAL_NPU_CANN": release, "FLAGS_NPU_MC2": "1"}, "virtual_npu", root=host)
    assert problems("mc2", setup) == []  # of a value that is no release, the check of the device reports


def test_a_910c_has_mc2_since_8_2(host):
    variables = {"VIRTUAL_NPU_CARD": "910c", "VIRTUAL_NPU_CANN": "8.1", "FLAGS_NPU_MC2": "1"}
    ((level, what),) = problems("mc2", Setup(variables, "virtual_npu", root=host))
    assert level == "error" and "CANN 8.1.RC1 cannot run" in what
    assert problems("mc2", Setup(variables | {"VIRTUAL_NPU_CANN": ""}, "virtual_npu", root=host)) == []


def test_the_order_of_versions():
    ascending = ["7.0.0", "8.0.RC1", "8.0.RC2.alpha001", "8.0.RC2", "8.0.RC3", "8.0.0", "8.1.RC1", "8.2.RC1"]
    for before, after in itertools.pairwise(ascending):
        assert is_before(before, after) and not is_before(after, before)
    assert is_before("23.0.3", "24.1.RC2") and not is_before("24.1.rc2", "24.1.RC2")
    assert not is_before("???", "8.0.RC2") and not is_before("8.0.RC2", "???")


def test_operators_that_are_missing_or_of_another_form():
    known = {"inputs": ["x", "gamma"], "attributes": ["epsilon"]}
    other = {"inputs": ["query", "cos", "sin", "extra"], "attributes": []}
    findings = judged({"rms_norm_npu": known, "fused_rope": other, "fused_mm_allreduce": None})
    assert [(finding.level, finding.message.split()[0]) for finding in findings] == [
        ("error", "fused_rope"),
        ("warning", "the"),
        ("ok", "signatures"),
    ]
    assert "(query, cos, sin, extra)" in findings[0].message and "fused_mm_allreduce" in findings[1].message


def test_text_and_json():
    findings = [Finding("python", "ok", "fine"), Finding("disk", "error", "full", "Make room.")]
    assert text(findings).splitlines() == [
        "ok       python       fine",
        "error    disk         full",
        "                  fix Make room.",
        "",
        "1 error, 0 warning, 1 ok",
    ]
    content = json.loads(as_json(findings))
    assert content["exit_code"] == exit_code(findings) == 1 and exit_code(findings[:1]) == 0
    assert content["findings"][1] == {
        "check": "disk",
        "level": "error",
        "message": "full",
        "fix": "Make room.",
    }


def test_a_check_that_fails_hides_no_other(host, monkeypatch):
    from llm_npu.doctor import checks

    def fails(setup):
        raise KeyError("something")

    monkeypatch.setattr(checks, "CHECKS", {"first": fails, "threads": checks.CHECKS["threads"]})
    first, second = examine(on_card(host))
    assert first.level == "error" and "KeyError: 'something'" in first.message and second.check == "threads"


def test_an_instruction_set_that_nobody_knows():
    setup = Setup({**os.environ, "PADDLE_FUSED_ISA": "sse9"})
    ((level, what),) = problems("kernels", setup)
    assert level == "error" and "PADDLE_FUSED_ISA=sse9 is unknown" in what
