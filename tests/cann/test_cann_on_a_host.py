"""The doctor, and a run before it imports Paddle, on a folder like a host's with a card."""

import json

import fake_cann
import pytest
from doctor_host import card_host, on_card, tool
from fake_cann import FakeCann

from llm_npu.acceptance.result import versions
from llm_npu.commands import train
from llm_npu.device import Device
from llm_npu.doctor.checks import ascend


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
    row = "| 0     Ascend910           | OK            | 93.6        40                0    / 0             |"
    tool(host / "usr/local/bin/npu-smi", f"{row}\n{row}")
    (finding,) = ascend.operators(setup)
    assert finding.level == "error" and "910C" in finding.message and "A3-ops" in finding.fix


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
    facts = versions(setup.environ, host)
    assert facts["CANN"] == "8.5.0" and "910C" in facts["operators for"]
    assert {"libopapi.so", "libopapi_nn.so"} <= set(facts["operator libraries"].split(", "))
    assert "CANN" not in versions({}, host / "empty")
