"""The doctor, and a run before it imports Paddle, on a folder like a host's with a card."""

import json
import os

import fake_cann
import pytest
from doctor_host import CHIP, card_host, on_card, tool
from fake_cann import FakeCann

from llm_npu.acceptance.result import versions
from llm_npu.commands import train
from llm_npu.device import Device
from llm_npu.doctor.checks import ascend

ROW_OF_A_DIE = (
    "| 0     Ascend910           | OK            | 93.6        40                0    / 0             |"
)


@pytest.fixture
def host(tmp_path):
    return card_host(tmp_path)


def with_cann(host, release="8.2.RC1", chip="A2", **parts):
    folder = host / "usr/local/Ascend/ascend-toolkit/latest"
    cann = FakeCann(folder, release, chip, **parts).write()
    fake_cann.plugin(host / "plugin", cann.lib64)
    return on_card(host, ASCEND_HOME_PATH=str(folder))


@pytest.mark.slow
def test_the_doctor_says_that_all_is_there(host):
    (finding,) = ascend.operators(with_cann(host))
    assert finding.level == "ok"
    for part in ("54 aclnn functions", "34 aclop types", "910B", "8.2.RC1"):
        assert part in finding.message


def test_the_doctor_names_what_is_missing_with_its_users_and_the_fix(host):
    setup = with_cann(host, without={"aclnnRmsNorm", "GatherV2", "aclnnHardswish"})
    findings = list(ascend.operators(setup))
    assert [finding.level for finding in findings] == ["error", "error", "warning"]
    function, optype, other = (finding.message for finding in findings)
    assert "aclnnRmsNorm" in function and "rms_norm_npu" in function and "RMSNorm" in function
    assert "GatherV2" in optype and "embedding" in optype and "aclnnHardswish" in other


@pytest.mark.slow
def test_the_chip_is_that_of_the_cards(host):
    setup = with_cann(host)
    tool(host / "usr/local/bin/npu-smi", f"{ROW_OF_A_DIE}\n{ROW_OF_A_DIE}")
    (finding,) = ascend.operators(setup)
    assert finding.level == "error" and "910C" in finding.message and "A3-ops" in finding.fix


@pytest.mark.slow
@pytest.mark.parametrize(("release", "too_old"), [("8.1.RC1", "8.1.RC1"), ("8.5.0", "")])
def test_mc2_knows_a_910c(host, run_python, release, too_old):
    setup = with_cann(host, release, "A3")
    tool(host / "usr/local/bin/npu-smi", f"{ROW_OF_A_DIE}\n{ROW_OF_A_DIE}")
    program = "from llm_npu.parallel.overlap import mc2; print([mc2.is_910c(), mc2.too_old_for_910c()])"
    path = f"{host / 'usr/local/bin'}:{os.environ['PATH']}"
    environ = setup.environ | {"PATH": path, "CUSTOM_DEVICE_ROOT": ""}
    done = run_python("-c", program, **environ)
    assert done.stdout.split("\n")[-2:] == [str([True, too_old]), ""], done.stderr


def test_npu_smi_runs_once(host):
    setup = with_cann(host)
    count = host / "runs"
    tool(host / "usr/local/bin/npu-smi", f"END\necho >> {count}\ncat <<'END'\n{CHIP.format(health='OK')}")
    findings = [*ascend.driver(setup), *ascend.operators(setup), *ascend.mc2(setup)]
    assert any("health OK" in finding.message for finding in findings)
    assert len(count.read_text().splitlines()) == 1


def test_a_run_on_a_card_says_it_before_paddle_is_imported(host, capsys, monkeypatch):
    setup = with_cann(host, without={"aclnnSwiGlu"})
    for name, value in setup.environ.items():
        monkeypatch.setenv(name, value)
    train.report_card(Device("npu", "card", "a test"), root=host)
    printed = capsys.readouterr().out
    assert "warning: " in printed and "aclnnSwiGlu" in printed and "swiglu" in printed


@pytest.mark.slow
def test_a_run_names_the_forwarding_library(host, capsys, monkeypatch):
    setup = with_cann(host, "9.0.0", without={"libopapi.so"})
    folder = host / "bridge"
    from llm_npu.cann import bridge

    library, missing = bridge.write(setup.cann, folder, setup.environ)
    assert not missing and json.loads((folder / bridge.MARK).read_text())["cann"] == str(setup.cann.folder)
    for name, value in setup.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{folder}:{setup.environ['LD_LIBRARY_PATH']}")
    train.report_card(Device("npu", "card", "a test"), root=host)
    printed = capsys.readouterr().out.replace("\n", " ")
    assert str(library) in printed and "libopapi_transformer.so" in printed and "warning" not in printed


def test_the_acceptance_report_names_the_layout_of_cann(host):
    setup = with_cann(host, "8.5.0", "A3")
    tool(host / "usr/local/bin/npu-smi", f"{ROW_OF_A_DIE}\n{ROW_OF_A_DIE}")
    facts = versions(setup.environ, host)
    assert facts["chip"].startswith("910C") and facts["CANN"] == "8.5.0" and "910C" in facts["operators for"]
    assert {"libopapi.so", "libopapi_nn.so"} <= set(facts["operator libraries"].split(", "))
    assert "CANN" not in versions({}, host / "empty")
