"""VIRTUAL_NPU_CHECK: what it accepts, what it reports, and what it leaves unchanged."""

import json
import re

import pytest

from virtual_npu.settings import CHECKS, check_settings

ALL = ",".join(CHECKS)

# One bug of each check that raises errors; the program continues after each error.
ONE_BUG_EACH = """
import json
import paddle

paddle.set_device("npu")
findings = []


def observe(work):
    try:
        work()
    except RuntimeError as error:
        if "VIRTUAL_NPU_CHECK" in str(error):
            findings.append(str(error))


def uninitialized():
    paddle.empty([1]) + 1.0


def beyond():
    paddle.as_strided(paddle.ones([1024]), [9, 128], [128, 1]).mean()


def unordered():
    written = paddle.ones([1024]) * 2
    with paddle.device.stream_guard(paddle.device.Stream()):
        written + 1


for work in (uninitialized, beyond, unordered):
    observe(work)
print(json.dumps(findings))
"""
LINES = [
    ONE_BUG_EACH[: ONE_BUG_EACH.index(text)].count("\n") + 1 for text in ("empty", "as_str", "written + 1")
]


def findings(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_each_check_names_its_line(run_program):
    reports = findings(run_program(ONE_BUG_EACH, VIRTUAL_NPU_CHECK=ALL))
    assert len(reports) == 3
    for check, line, finding in zip(("init", "memory", "race"), LINES, reports, strict=True):
        assert f"VIRTUAL_NPU_CHECK ({check}): " in finding
        assert f"program.py:{line}" in finding


@pytest.mark.slow
@pytest.mark.parametrize("check", ["init", "memory", "race", "sync", ""])
def test_only_chosen_checks_report(run_program, check):
    reports = findings(run_program(ONE_BUG_EACH, VIRTUAL_NPU_CHECK=check))
    assert [re.search(r"CHECK \((\w+)\)", finding).group(1) for finding in reports] == (
        [check] if check in ("init", "memory", "race") else []
    )


@pytest.mark.parametrize("value", ["races", "race,", "race,race", "race init", "1"])
def test_bad_values_are_refused_in_python(value):
    with pytest.raises(
        ValueError, match=f"VIRTUAL_NPU_CHECK is '{value}'.*a list of race, init, memory, sync"
    ):
        check_settings({"VIRTUAL_NPU_CHECK": value})


@pytest.mark.parametrize("value", ["race", "sync,race", ALL])
def test_lists_of_checks_are_accepted(value):
    check_settings({"VIRTUAL_NPU_CHECK": value})


ACTIVE_BEFORE = "import os, virtual_npu; virtual_npu.activate(); os.environ.update({}); import paddle"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"VIRTUAL_NPU_CHECK": "races"}, "VIRTUAL_NPU_CHECK"),
        ({"VIRTUAL_NPU_CHECK": "race", "VIRTUAL_NPU_DRY": "1"}, "VIRTUAL_NPU_DRY=1 does not compute"),
    ],
)
def test_bad_values_are_refused_in_the_plugin(run_python, variables, reason):
    done = run_python("-c", ACTIVE_BEFORE.format(variables))
    assert "not loaded: " in done.stderr  # Paddle then has no device npu
    assert reason in done.stderr


@pytest.mark.slow
def test_losses_with_checks_are_those_without(run_program):
    program = """
        import json
        import paddle

        paddle.set_device("npu")
        paddle.seed(0)
        layers = paddle.nn.Sequential(
            paddle.nn.Embedding(10, 8),
            paddle.nn.LayerNorm(8),
            paddle.nn.Dropout(0.1),
            paddle.nn.Linear(8, 10),
        )
        clip = paddle.nn.ClipGradByGlobalNorm(1.0)
        optimizer = paddle.optimizer.AdamW(0.01, parameters=layers.parameters(), grad_clip=clip)
        losses = []
        for step in range(3):
            tokens = paddle.randint(0, 10, [4, 6])
            logits = layers(tokens).reshape([-1, 10])
            loss = paddle.nn.functional.cross_entropy(logits, tokens.reshape([-1]))
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            losses.append(float(loss))
        print(json.dumps(losses))
    """
    assert findings(run_program(program, VIRTUAL_NPU_CHECK=ALL)) == findings(run_program(program))
