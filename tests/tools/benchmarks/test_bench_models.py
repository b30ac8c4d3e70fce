"""python -m benchmarks models runs with tiny models, and verifies; speed is not asserted."""

import re

import pytest

from benchmarks import contest, report
from benchmarks.models import QUICK, SIZES, command, results, turns
from paddle_fused.command_line import UserError

pytestmark = pytest.mark.slow

PROGRAM = ("-m", "benchmarks", "models")


@pytest.fixture(scope="module")
def first_run(run_python, tmp_path_factory):
    """The result for a Llama, unfused and fused, and the files that it wrote."""
    folder = tmp_path_factory.mktemp("bench_models")
    chosen = ["--families", "llama", "--contenders", "unfused,fused", "--dtype", "float32"]
    written = ["--json", folder / "new.jsonl"]
    done = run_python(*PROGRAM, "--quick", "--rounds", 1, "--threads", 1, *chosen, *written)
    return done, folder


def test_training_and_generation_are_timed(first_run):
    done, folder = first_run
    assert done.returncode == 0, done.stderr
    assert "goal " not in done.stdout  # tiny models are not what the goals are about
    times = [record for record in report.read(str(folder / "new.jsonl")) if record["kind"] == "time"]
    assert {(record["way"], record["contender"]) for record in times} == {
        (way, name) for way in turns.WAYS for name in (turns.UNFUSED, turns.FUSED)
    }
    size = QUICK["llama"]
    for record in times:
        expected = results.tokens(size, record["way"])
        assert record["tokens_per_second"] == pytest.approx(expected / record["median"])
        assert record["gain"] == 1 if record["contender"] == turns.UNFUSED else record["gain"] > 0
        assert record["memory"] > 4 * size.vocabulary * size.hidden
        assert (record["launches"] or 0) > 0 if record["way"] == "train" else record["launches"] is None


def test_every_family_and_operator(run_python, first_run):
    older = first_run[1] / "new.jsonl"
    some = ("--dtype", "float32", "--ways", "train")
    done = run_python(*PROGRAM, "--quick", "--rounds", 1, *some, "--compare", older, timeout=1500)
    assert done.returncode == 0, done.stderr
    assert "new / old" in done.stdout
    assert all(f"{family} H64" in done.stdout for family in SIZES)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--families", "gpt"], "--families: unknown 'gpt'; accepted: llama, qwen2"),
        (["--ways", "train,infer"], "--ways: unknown 'infer'; accepted: train, prefill, decode"),
        (["--contenders", "adamw"], "unknown 'adamw'; accepted: unfused, fused"),
        (["--torch-python", "python"], "unrecognized arguments"),
    ],
)
def test_what_is_wrong_is_refused(arguments, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)):
        command.parse(arguments)


def test_groups_hold_the_unfused_model_and_what_the_family_has():
    assert turns.groups(turns.CONTENDERS, has_experts=False) == [
        ["unfused", "fused", "attention"],
        ["unfused", "rms_norm", "rotary"],
        ["unfused", "swiglu", "fused_adamw"],
    ]
    assert turns.groups(("moe", "unfused"), has_experts=True) == [["unfused", "moe"]]
    assert turns.groups(("moe",), has_experts=False) == [["unfused"]]


@pytest.mark.parametrize("other", [9.5, float("nan")])
def test_different_answers_are_refused(other):
    contest.agree("float32", {"unfused": [9.0, 8.0], "fused": [9.0, 8.0000001]})
    with pytest.raises(contest.Wrong, match=r"step 1: .* 8\.000000 with unfused"):
        contest.agree("float32", {"unfused": [9.0, 8.0], "fused": [9.0, other]})
    turns.verify_logits("float32", {"unfused": [[9.0, 1e-9]], "fused": [[9.0, 0.0]]})
    with pytest.raises(contest.Wrong, match="the largest is 9"):
        turns.verify_logits("float32", {"unfused": [[9.0, 1.0]], "fused": [[9.0, other]]})


@pytest.mark.parametrize(("gain", "met"), [(1.31, True), (1.29, False)])
def test_the_goal_is_about_training_a_llama(gain, met):
    llama = report.Timed("llama", SIZES["llama"].label, "float32", "train", "on", "fused")
    others = [llama._replace(operator="qwen2"), llama._replace(way="decode"), llama._replace(contender="moe")]
    records = [{**of._asdict(), "gain": gain} for of in (llama, *others)]
    (record,) = command.goals(records)
    assert record["met"] == met and record["operator"] == "llama"


def test_gains_are_those_within_a_group():
    memory = {"train": dict.fromkeys(turns.CONTENDERS, 1)}
    groups = [
        turns.Turns({"train": {"unfused": [4.0, 4.0], "fused": [2.0, 2.0]}}, memory),
        turns.Turns({"train": {"unfused": [8.0, 8.0], "rotary": [4.0, 4.0]}}, memory),
    ]
    records = results.records(QUICK["llama"], "float32", "on", groups)
    assert {record["contender"]: record["gain"] for record in records} == {
        "unfused": 1.0,
        "fused": 2.0,
        "rotary": 2.0,
    }
    assert next(record for record in records if record["contender"] == "unfused")["rounds"] == 4
