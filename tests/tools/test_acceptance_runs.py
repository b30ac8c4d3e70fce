"""The acceptance of a card from end to end on the virtual NPU, as it is and with planted faults."""

import getpass
import json
import os
import re
import socket

import pytest
from places import ROOT

from llm_npu.acceptance.checks import BY_NAME

pytestmark = pytest.mark.slow
FAULTS = ROOT / "tests/tools/acceptance_faults"


@pytest.fixture
def accepted(run_python, tmp_path):
    """A function that runs the script: exit code, result and the page."""

    def run(*arguments, faults: str = ""):
        planted = os.pathsep.join(filter(None, [str(FAULTS), os.environ.get("PYTHONPATH"), str(ROOT)]))
        done = run_python(
            str(ROOT / "scripts/accept_card.py"),
            *("--device", "virtual_npu", "--cards", "2", "--output_dir", "found", *arguments),
            cwd=tmp_path,
            timeout=1500,
            **({"PYTHONPATH": planted, "ACCEPTANCE_FAULTS": faults} if faults else {}),
        )
        assert done.returncode in (0, 1), done.stdout + done.stderr
        print(done.stdout)
        report = json.loads((tmp_path / "found/result.json").read_text())
        return done.returncode, report, (tmp_path / "found/index.html").read_text()

    return run


def by_name(result: dict) -> dict[str, str]:
    return {check["name"]: check["verdict"] for check in result["checks"]}


def test_everything_is_as_recorded(accepted, tmp_path):
    code, result, html = accepted()
    assert result["differences"] == [] and code == 0
    assert by_name(result) == {
        name: "left out" if check.cards > 2 else "same" for name, check in BY_NAME.items()
    }
    assert sorted(file.name for file in (tmp_path / "found").iterdir()) == ["index.html", "result.json"]
    names = {socket.gethostname(), getpass.getuser()} - {"root", "localhost"}
    for text in (html, json.dumps(result)):
        assert str(tmp_path) not in text and str(ROOT) not in text
        assert not any(re.search(rf"\b{re.escape(name)}\b", text) for name in names)


def test_every_fault_is_named_and_the_rest_is_done(accepted):
    code, result, html = accepted(
        *("--only", "doctor", "operators", "adamw", "training", "profile", "collectives"),
        faults="missing wrong hangs dies profile",
    )
    assert code == 1
    assert by_name(result) == {
        "doctor": "same",
        "operators": "lost",
        "adamw": "same",
        "training": "same",
        "profile": "differs",
        "collectives": "same",
    }
    named = {f"{row['case']} {row['verdict']}": row["message"] for row in result["differences"]}

    def of(operator: str) -> dict[str, str]:
        return {case: message for case, message in named.items() if case.startswith(operator)}

    assert any("fused_rope" in message for message in of("apply_rotary").values())
    assert of("flash_attention")
    assert all("varlen" in message and "wrong" in message for message in of("flash_attention").values())
    assert any("no progress" in message for case, message in of("swiglu float16").items() if "lost" in case)
    assert any("SIGSEGV" in message for case, message in of("moe_token_permute").items() if "lost" in case)
    assert of("report")  # the profile's
    assert set(named) == {
        case
        for operator in ("apply_rotary", "rotary_mul", "flash", "swiglu", "moe_token_permute", "report")
        for case in of(operator)
    }
    operators = next(check for check in result["checks"] if check["name"] == "operators")["cases"]
    assert {"rms_norm", "grouped_matmul", "linear_cross_entropy", "fused_adamw"} <= {
        case["case"].split()[0] for case in operators if case["verdict"] == "same"
    }
    assert html.index("SIGSEGV") < html.index("<h2 id=")
