"""The planner's answers, and its command line."""

import dataclasses
import functools
import json

import pytest
from places import ROOT
from plans import DEGREES, PUBLISHED

from llm_npu.config import parse
from llm_npu.core import cards, program
from llm_npu.plan import __main__ as command
from llm_npu.plan import answer as answers
from llm_npu.plan import cost, interval, table
from llm_npu.plan.layout import Layout
from llm_npu.plan.shape import ModelShape

pytestmark = pytest.mark.sampled

KEYS = ["tokens_per_second_per_card", "step_time_s", "mfu", "peak_memory_bytes", "breakdown", "plan"]


@functools.cache
def planned(*argv: str):
    """The answer; many tests look at the same ones."""
    return command.planned([*argv])[1]


@pytest.fixture(scope="module")
def published():
    return planned(*PUBLISHED, *DEGREES)


def test_an_answer_says_what_it_assumed_and_how_far_it_can_be_trusted():
    few = planned("--model_name_or_path", "llama2-7b", "--cards", "12")
    text = table.write(few)
    assert all(key in text for key in ("12 samples", "4096 tokens", "1 micro batch"))
    assert "a larger --global_batch_size spreads them" in text
    assert "not a multiple of 8" in text
    low, high = interval.around(few.time.step_time_s, few.interval.width)
    assert low < few.time.step_time_s < high and f"({low:.2f} to {high:.2f} s)" in text


def test_a_run_in_float16_has_its_own_peak():
    half, brain = (planned(*PUBLISHED, *DEGREES, *more) for more in (("--fp16",), ()))
    assert (half.card.peak, brain.card.peak) == (376e12, 353.89e12)
    assert half.time.step_time_s < brain.time.step_time_s
    assert half.time.mfu / brain.time.mfu == pytest.approx(
        brain.time.step_time_s * brain.card.peak / (half.time.step_time_s * half.card.peak)
    )
    arguments = half.layout.arguments(half.shape)
    assert arguments[arguments.index("--fp16") + 1] == "true"
    assert "--fp16" not in brain.layout.arguments(brain.shape)


@pytest.mark.slow
def test_an_answer_says_what_no_published_run_has():
    moe_model = planned("--model_name_or_path", "deepseek-v3", "--cards", "512", "--card", "910c")
    assert moe_model.interval.unlike == ("more than 160 experts", "the card ascend910c")
    text = table.write(moe_model)
    assert all(key in text for key in ("160 experts", "ascend910c"))


def test_what_is_spent_adds_up_to_the_step(published):
    assert sum(published.shares.values()) == pytest.approx(published.time.step_time_s, rel=0.01)
    assert published.interval.width > 0


def test_a_run_that_does_not_fit_gets_the_cheapest_change():
    answer = planned(*PUBLISHED, *DEGREES[:4])
    assert not answer.fits and answer.memory_range[0] > answer.limit
    assert answer.to_change == {"sequence_parallel": True}
    assert answer.change.memory.peak_memory_bytes <= answer.limit < answer.memory.peak_memory_bytes
    assert "Cheapest change that fits: --sequence_parallel true" in table.write(answer)


def test_a_run_near_the_limit_is_neither_refused_nor_promised():
    answer = planned(*PUBLISHED, *DEGREES)
    peak = answer.memory.peak_memory_bytes
    low, high = answer.memory_range
    assert low < peak < high and answer.fits and not answer.close
    for limit in (peak - 1, peak + 1, low, high - 1):
        near = dataclasses.replace(answer, limit=int(limit) + (limit == low))
        assert near.fits and near.close
        text = table.write(near)
        assert "Close to the limit" in text and "It fits" not in text and "run_llama_npu.py" in text
        assert command.as_json(near)["plan"]["close_to_limit"] is True
    assert not dataclasses.replace(answer, limit=int(low) - 1).fits
    assert answer.memory_width == interval.OWN_MEMORY


def test_nothing_fits_on_one_card():
    answer = planned("--model_name_or_path", "llama2-70b", "--cards", "1")
    assert not answer.fits and answer.change is None
    text = table.write(answer)
    assert "--cards 1;" in text
    assert "run_llama_npu.py" not in text


def test_the_cheapest_change_says_that_it_is_close_to_the_limit():
    answer = planned(*PUBLISHED, *DEGREES[:4])
    peak = answer.change.memory.peak_memory_bytes
    for limit, close in ((int(1.01 * peak), True), (int(1.1 * peak), False)):
        card = dataclasses.replace(answer.card, memory=answer.card.memory + limit - answer.limit)
        near = dataclasses.replace(answer, card=card)
        assert ("close to the limit" in table.write(near)) == close
        assert command.as_json(near)["plan"]["cheapest_change"]["close_to_limit"] == close


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--sharding", "stage3"], "sharding stage3"),
        (["--tensor_parallel_degree", "16"], "tensor parallelism of more than 8 cards"),
    ],
)
def test_what_no_published_run_resembles_is_said_and_has_the_widest_range(argv, words):
    argv = ["--model_name_or_path", "llama2-7b", "--cards", "32", *argv]
    plain, odd = (planned(*command_line) for command_line in (argv[:4], argv))
    assert not plain.interval.unlike and f"No published run has {words}: " in table.write(odd)
    assert odd.interval.width > plain.interval.width


def test_memory_of_the_system_and_of_communication_is_no_program_s():
    card = cards.card("910b")
    usable_bytes = answers.usable(card, Layout(cards=1))
    assert usable_bytes < card.memory
    assert (
        answers.usable(card, Layout(cards=8, tensor_parallel_degree=8))
        == usable_bytes - 2 * answers.HCCL_BUFFERS
    )


@pytest.mark.parametrize("model", ["llama2-70b", "qwen2.5-3b", "mixtral-8x7b", "llama3.2-1b"])
def test_the_arguments_of_a_plan_are_those_of_the_script(model):
    answer = planned("--model_name_or_path", model, *PUBLISHED[2:], "--search")
    run = parse(table.arguments(answer.shape, answer.layout))
    assert run.model.model_name_or_path == model
    assert run.training.gradient_accumulation_steps == answer.layout.micro_batches


def test_what_the_script_is_told_may_be_said_to_the_planner():
    flags = ["--sequence_parallel", "true", "--recompute", "false", "--overlap", "pipelined:4"]
    layout = planned(*PUBLISHED, *DEGREES[:4], *flags).layout
    assert (layout.sequence_parallel, layout.recompute, layout.overlap) == (True, False, "pipelined")
    again = layout.arguments(ModelShape.of("llama2-70b"))
    assert again[again.index("--overlap") + 1] == "pipelined:4"


def test_masks_are_those_of_the_script():
    documents = ["--model_name_or_path", "llama2-7b", "--cards", "8", "--sharding", "stage1"]
    answer = planned(*documents, "--mask", "documents")
    assert parse(table.arguments(answer.shape, answer.layout)).data.reset_attention_mask


def plan_output(capsys, *argv: str) -> tuple[int, str, str]:
    code = program.run(command.main, [str(word) for word in argv])
    out, err = capsys.readouterr()
    return code, out, err


def test_json_has_the_keys_that_programs_read(capsys):
    code, out, _ = plan_output(capsys, *PUBLISHED, *DEGREES, "--json")
    answer = json.loads(out)
    assert code == 0 and list(answer) == KEYS
    layout = Layout(**answer["plan"]["layout"])
    time = cost.step_time(ModelShape.of("llama2-70b"), layout, cards.card("910b"))
    assert answer["step_time_s"] == time.step_time_s
    assert answer["peak_memory_bytes"] == max(
        moment["bytes"] for stage in answer["breakdown"]["memory"] for moment in stage["moments"]
    )
    assert answer["plan"]["fits"] and answer["plan"]["arguments"][:2] == [
        "--model_name_or_path",
        "llama2-70b",
    ]


@pytest.mark.slow
def test_the_table_says_that_the_run_fits(published):
    for answer in (published, planned(*PUBLISHED, "--search")):
        text = table.write(answer)
        assert "It fits: " in text
        assert f"{answer.time.tokens_per_second_per_card:.0f} tokens/s per card" in text
        assert all(shown.title in text for shown in table.tables(answer))


@pytest.mark.slow
def test_a_table_of_many_stages_has_the_first_the_fullest_and_the_last():
    argv = ["--model_name_or_path", "qwen3-235b-a22b", "--cards", "256", "--global_batch_size", "64"]
    argv += ["--tensor_parallel_degree", "4", "--pipeline_parallel_degree", "32"]
    answer = planned(*argv)
    memory = answer.memory
    (shown,) = (section for section in table.tables(answer) if section.title == "Peak memory per card, GiB")
    kept = sorted({0, 1, memory.fullest.stage, 31})
    assert list(shown.columns) == ["component", *(f"stage {stage}" for stage in kept)]
    assert len(memory.stages) > len(kept)


@pytest.mark.parametrize("flag", ["overlap mc2", "pipeline_schedule dualpipev"])
def test_flags_without_their_degree_are_noted(flag):
    name, value = flag.split()
    answer = planned("--model_name_or_path", "llama2-7b", "--cards", "8", f"--{name}", value)
    assert any(f"--{flag} has no effect" in line for line in table.notes(answer))


def test_the_page_about_errors_has_the_widths_and_efficiencies_of_plans():
    text = (ROOT / "docs/planning_validation.md").read_text()
    data = json.loads((cost.DATA / "efficiencies.json").read_text())
    assert set(data["families"]) == {*interval.FAMILIES, interval.OTHER}
    for name, family in data["families"].items():
        assert f"| {name} | {family['runs']} | ±{100 * family['width']:.1f} % |" in text
    for name, value in data["efficiencies"].items():
        (row,) = (line for line in text.splitlines() if line.startswith(f"| `{name}` |"))
        assert row.endswith(f"| {value:.3f} |")
