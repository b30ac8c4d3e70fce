"""The planner's answers, and its command line."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from argparse import Namespace

import pytest

from llm_npu.config import parse
from llm_npu.config.conflicts import DEGREES as DEGREES_OF_SCRIPT
from llm_npu.config.conflicts import UNSUPPORTED_PARALLELISM, check_parallel
from llm_npu.core import cards
from llm_npu.plan import __main__ as command
from llm_npu.plan import answer as answers
from llm_npu.plan import cost, interval, page, search, table
from llm_npu.plan.layout import Layout
from llm_npu.plan.memory_model import memory
from llm_npu.plan.shape import ModelShape

PUBLISHED = ["--model_name_or_path", "llama2-70b", "--cards", "32", "--global_batch_size", "512"]
DEGREES = [
    "--tensor_parallel_degree",
    "8",
    "--pipeline_parallel_degree",
    "4",
    "--sequence_parallel",
    "--overlap",
    "mc2",
]
KEYS = ["tokens_per_second_per_card", "step_time_s", "mfu", "peak_memory_bytes", "breakdown", "plan"]


def asked(capsys, *argv: str) -> tuple[int, str, str]:
    code = command.main([str(word) for word in argv])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture(scope="module")
def published():
    return command.planned([*PUBLISHED, *DEGREES])[1]


@pytest.fixture(scope="module")
def searched():
    return command.planned([*PUBLISHED, "--overlap", "mc2", "--search"])[1]


def test_the_search_is_at_least_as_fast_as_the_published_layout(published, searched):
    assert published.fits and searched.fits
    assert searched.time.step_time_s <= published.time.step_time_s
    assert searched.search.fitting <= searched.search.considered
    seconds = [found.seconds for found in searched.search.best]
    assert seconds == sorted(seconds) and seconds[0] == searched.time.step_time_s


def test_the_search_tries_every_overlap_that_is_not_given(searched):
    free = command.planned([*PUBLISHED, "--search"])[1]
    assert {found.layout.overlap for found in free.search.best} >= {"pipelined", "mc2"}
    assert free.time.step_time_s <= searched.time.step_time_s
    assert {found.layout.overlap for found in searched.search.best} == {"mc2"}
    graph = command.planned([*PUBLISHED, "--search", "--stack", "mindformers"])[1]
    assert graph.layout.overlap == "serial"


def test_another_stack_is_predicted_as_it_runs():
    ours, theirs = (
        command.planned([*PUBLISHED, *DEGREES, "--stack", name])[1] for name in ("paddle", "mindspeed")
    )
    assert theirs.memory.peak_memory_bytes < ours.memory.peak_memory_bytes  # it gathers inputs again
    assert theirs.time.step_time_s != ours.time.step_time_s
    text = table.write(theirs)
    assert "Predicted as mindspeed runs it" in text and "run_llama_npu.py" not in text
    assert "The published runs are of MindSpeed-LLM and MindFormers, none of this trainer" in table.write(
        ours
    )


def test_an_answer_says_what_it_assumed_and_how_far_it_can_be_trusted():
    few = command.planned(["--model_name_or_path", "llama2-7b", "--cards", "12"])[1]
    text = table.write(few)
    assert "12 samples of 4096 tokens per step in 1 micro batch of 1" in text
    assert "a larger --global_batch_size spreads them" in text
    assert "12 cards fill no whole number of servers of 8" in text
    low, high = few.interval.around(few.time.step_time_s)
    assert low < few.time.step_time_s < high and f"({low:.2f} to {high:.2f} s)" in text
    mixture = command.planned(["--model_name_or_path", "deepseek-v3", "--cards", "512", "--card", "910c"])[1]
    assert mixture.interval.unlike == ("more than 160 experts", "the card ascend910c")
    assert "No published run has more than 160 experts, or the card ascend910c" in table.write(mixture)


def test_context_parallelism_is_predicted_on_request():
    argv = ["--model_name_or_path", "llama3.1-8b", "--cards", "32", "--max_seq_length", "131072"]
    whole, cut = (
        command.planned([*argv, "--tensor_parallel_degree", "8", *more])[1]
        for more in ((), ("--context_parallel_degree", "4"))
    )
    assert cut.memory.peak_memory_bytes < whole.memory.peak_memory_bytes / 2
    assert cut.layout.data_parallel_degree == 1 and cut.time.communication["cp"] > 0
    text = table.write(cut)
    assert "this trainer does not run it yet" in text and "run_llama_npu.py" not in text
    found = command.planned(
        [*argv, "--context_parallel_degree", "4", "--global_batch_size", "32", "--search"]
    )[1]
    assert found.layout.context_parallel_degree == 4


# Paddle assigns whole weights, so that the fullest card has more than its share.
@pytest.mark.parametrize(("stack", "most"), [("mindspeed", 1.03), ("paddle", 1.2)])
def test_expert_parallelism_is_predicted_on_request(stack, most):
    argv = ["--model_name_or_path", "qwen3-235b-a22b", "--cards", "256", "--sharding", "stage1"]
    argv += ["--tensor_parallel_degree", "4", "--global_batch_size", "1024", "--stack", stack]
    whole, cut = (command.planned([*argv, *more])[1] for more in ((), ("--expert_parallel_degree", "16")))
    assert cut.memory.peak_memory_bytes < whole.memory.peak_memory_bytes / 3
    assert cut.time.communication["ep"] > 0
    share = 4 * cut.shape.parameters / 256
    assert share <= cut.memory.stages[0].moments[0].parts["master weights"] <= most * share
    text = table.write(cut)
    assert "expert 16" in text and "run_llama_npu.py" not in text


def test_the_fastest_layouts_are_told_by_what_differs(searched):
    (found,) = (each for each in table.tables(searched) if each.title == "Fastest layouts")
    assert found.rows[0][0] == "-"
    assert "--recompute true --recompute_granularity core_attn" in [row[0] for row in found.rows]


def test_the_search_sees_every_layout_of_the_trainer():
    shape, like = ModelShape.of("llama2-7b"), Layout(cards=8, global_batch_size=16)
    found = list(search.layouts(shape, like, cards_per_server=8))
    assert len(set(found)) == len(found)
    for layout in found:
        layout.check(shape)
        assert (layout.cards, layout.global_batch_size) == (8, 16)
        values = dict.fromkeys((*DEGREES_OF_SCRIPT, *UNSUPPORTED_PARALLELISM), 1)
        values |= {"tensor_parallel_degree": layout.tensor_parallel_degree, "sharding": layout.sharding}
        values["pipeline_parallel_degree"] = layout.pipeline_parallel_degree
        values["virtual_pp_degree"] = layout.virtual_pp_degree
        values["gradient_accumulation_steps"] = layout.micro_batches
        values |= {"overlap": None, "enable_auto_parallel": False, "amp_master_grad": True}
        check_parallel(Namespace(**values, processes=8))
    degrees = {(one.tensor_parallel_degree, one.pipeline_parallel_degree) for one in found}
    assert degrees == {(tp, pp) for tp in (1, 2, 4, 8) for pp in (1, 2, 4, 8) if tp * pp <= 8}
    assert {one.sharding for one in found} == {"", "stage1", "stage2", "stage3"}
    assert {one.virtual_pp_degree for one in found} == {1, 2, 4}


def test_what_is_spent_adds_up_to_the_step(published):
    assert sum(published.shares.values()) == pytest.approx(published.time.step_time_s, rel=0.01)
    assert published.interval.width > 0


def test_a_run_that_does_not_fit_gets_the_cheapest_change():
    answer = command.planned([*PUBLISHED, *DEGREES[:4]])[1]
    assert not answer.fits and answer.memory_range[0] > answer.limit
    assert answer.to_change == {"sequence_parallel": True}
    assert answer.change.memory.peak_memory_bytes <= answer.limit < answer.memory.peak_memory_bytes
    assert "Cheapest change that fits: --sequence_parallel true" in table.write(answer)


def test_a_run_near_the_limit_is_neither_refused_nor_promised():
    answer = command.planned([*PUBLISHED, *DEGREES])[1]
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
    other = command.planned([*PUBLISHED, *DEGREES, "--stack", "mindspeed"])[1]
    assert answer.memory_width == interval.OWN_MEMORY and 0 < other.memory_width < 0.1


def test_the_network_and_fused_operators_are_those_of_the_command_line():
    argv = [*PUBLISHED, *DEGREES]
    plain = command.planned(argv)[1]
    slow = command.planned([*argv, "--oversubscription", "8"])[1]
    assert slow.time.communication["pp"] > 7 * plain.time.communication["pp"]
    assert "without oversubscription" in table.write(plain) and "1/8" in table.write(slow)
    without = command.planned([*argv, "--use_fused_swiglu", "false"])[1]
    (gain,) = (gain for gain in plain.gains if gain.what == "fused swiglu")
    assert gain.used and gain.seconds == without.time.step_time_s
    assert "--use_fused_swiglu false" in table.write(without)
    assert not command.planned([*argv, "--disable_fused_options"])[1].layout.fused


def test_nothing_fits_on_one_card():
    answer = command.planned(["--model_name_or_path", "llama2-70b", "--cards", "1"])[1]
    assert not answer.fits and answer.change is None
    text = table.write(answer)
    assert "No layout of 1 card fits; give more --cards" in text
    assert "run_llama_npu.py" not in text and "<code>" not in page.write(answer)


def test_each_fused_operator_mask_and_overlap_is_answered_for(published):
    gains = {gain.what: gain for gain in published.gains}
    assert set(gains) == {
        *(f"fused {name}" for name in ("attention", "rms_norm", "rope", "swiglu")),
        "mask full",
        "overlap serial",
        "overlap pipelined",
    }
    for name in ("attention", "rms_norm"):
        without = gains[f"fused {name}"]
        assert without.used and without.seconds > published.time.step_time_s
        assert without.bytes > published.memory.peak_memory_bytes


def test_scaling_goes_to_8192_cards_and_names_every_limit(published):
    assert [scale.cards for scale in published.scaling] == [8 << power for power in range(11)] * 2
    assert all(scale.limit for scale in published.scaling)
    limits = {(scale.cards, scale.grows): scale.limit for scale in published.scaling}
    assert limits[8, True] == "a replica needs 32 cards"
    few = command.planned(["--model_name_or_path", "llama2-7b", "--cards", "8", "--global_batch_size", "64"])[
        1
    ]
    assert few.scaling[-1].limit == "64 samples per step are too few"


def test_memory_of_the_system_and_of_communication_is_no_program_s():
    card = cards.card("910b")
    one = answers.usable(card, Layout(cards=1))
    assert one < card.memory
    assert answers.usable(card, Layout(cards=8, tensor_parallel_degree=8)) == one - 2 * answers.HCCL_BUFFERS


@pytest.mark.parametrize("model", ["llama2-70b", "qwen2.5-3b", "mixtral-8x7b", "llama3.2-1b"])
def test_the_arguments_of_a_plan_are_those_of_the_script(model):
    answer = command.planned(["--model_name_or_path", model, *PUBLISHED[2:], "--search"])[1]
    run = parse(table.arguments(answer.shape, answer.layout))
    assert run.model.model_name_or_path == model
    assert run.training.gradient_accumulation_steps == answer.layout.micro_batches


@pytest.mark.parametrize(("cards", "samples"), [(32, 48), (32, 33), (256, 32)])
def test_a_search_needs_no_batch_that_suits_as_many_replicas_as_cards(cards, samples):
    argv = ["--model_name_or_path", "llama2-70b", "--cards", cards, "--global_batch_size", samples]
    answer = command.planned([*map(str, argv), "--search"])[1]
    assert answer.fits and answer.layout.global_batch_size == samples
    assert answer.layout.tensor_parallel_degree <= cards_of_server(answer)


def cards_of_server(answer) -> int:
    return answer.card.within_server.cards


def test_a_search_passes_over_larger_micro_batches_of_what_does_not_fit():
    shape, like = ModelShape.of("llama2-7b"), Layout(cards=8, global_batch_size=64)
    bytes_of_card = 40 << 30
    found, considered, smallest = search.fitting(shape, like, lambda layout: bytes_of_card, 8)
    all_of_them = list(search.layouts(shape, like, 8))
    peaks = {layout: memory.peak(shape, layout).peak_memory_bytes for layout in all_of_them}
    fitting = {layout for layout, size in peaks.items() if size <= bytes_of_card}
    assert {one.layout for one in found} == fitting and fitting
    assert (considered, smallest) == (len(all_of_them), min(peaks.values()))


def test_numbers_without_end_are_divided_fast():
    assert search._divisors(10**12)[-2:] == [10**12 // 2, 10**12]
    assert [search._divisors(number) for number in (0, 1, 12, 16)] == [
        [], [1], [1, 2, 3, 4, 6, 12], [1, 2, 4, 8, 16],
    ]  # fmt: skip


def test_what_the_script_is_told_may_be_said_to_the_planner():
    said = ["--sequence_parallel", "true", "--recompute", "false", "--overlap", "pipelined:4"]
    layout = command.planned([*PUBLISHED, *DEGREES[:4], *said])[1].layout
    assert (layout.sequence_parallel, layout.recompute, layout.overlap) == (True, False, "pipelined")
    again = layout.arguments(ModelShape.of("llama2-70b"))
    assert again[again.index("--overlap") + 1] == "pipelined:4"


def test_masks_are_those_of_the_script(tmp_path):
    documents = ["--model_name_or_path", "llama2-7b", "--cards", "8", "--sharding", "stage1"]
    answer = command.planned([*documents, "--mask", "documents"])[1]
    assert parse(table.arguments(answer.shape, answer.layout)).data.reset_attention_mask
    full = command.planned([*documents, "--mask", "full"])[1]
    assert "--mask full: the script has no such flag" in table.write(full)
    fields = {"model_type": "mistral", "num_key_value_heads": 8, "sliding_window": 1024}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    band = ["--model_name_or_path", str(tmp_path), "--cards", "8", "--max_seq_length", "4096"]
    answer = command.planned([*band, "--mask", "band"])[1]
    assert not [gain.what for gain in answer.gains if gain.what.startswith("mask")]


def test_the_batch_of_now_says_why_it_does_not_suit_more_cards():
    argv = ["--model_name_or_path", "llama-tiny", "--cards", "24", "--global_batch_size", "48"]
    limits = {scale.cards: scale.limit for scale in command.planned(argv)[1].scaling if not scale.grows}
    assert limits[32] == "48 samples per step are not a multiple of 32"
    assert limits[64] == "48 samples per step are too few"


def test_json_has_the_keys_that_programs_read(capsys):
    code, out, _ = asked(capsys, *PUBLISHED, *DEGREES, "--json")
    found = json.loads(out)
    assert code == 0 and list(found) == KEYS
    layout = Layout(**{**found["plan"]["layout"], "fused": frozenset(found["plan"]["layout"]["fused"])})
    time = cost.step_time(ModelShape.of("llama2-70b"), layout, cards.card("910b"))
    assert found["step_time_s"] == time.step_time_s
    assert found["peak_memory_bytes"] == max(
        moment["bytes"] for stage in found["breakdown"]["memory"] for moment in stage["moments"]
    )
    assert found["plan"]["fits"] and found["plan"]["arguments"][:2] == ["--model_name_or_path", "llama2-70b"]


def test_the_table_and_the_page_say_the_same(published, searched):
    for answer in (published, searched):
        text, html = table.write(answer), page.write(answer)
        assert "It fits: " in text
        assert f"{answer.time.tokens_per_second_per_card:.0f} tokens/s per card" in text
        for each in table.tables(answer):
            assert each.title in text and each.title in html
        assert html.count("data:image/svg+xml;base64,") == 3
        assert "<script" not in html and "http" not in html.replace("http-equiv", "")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--cards", "8"], "--model_name_or_path"),
        (["--model_name_or_path", "llama2-7"], "--cards"),
        (["--model_name_or_path", "llama2-7", "--cards", "8"], "Did you mean llama2-7b?"),
        ([*PUBLISHED, "--card", "910x"], "--card is 910x: give one of"),
        ([*PUBLISHED, "--tensor_parallel_degree", "3"], "does not divide --cards 32"),
        ([*PUBLISHED, "--cards", "many"], "invalid int value: 'many'"),
        ([*PUBLISHED, "--global_batch_size", "7"], "choose a multiple of 32"),
        (
            ["--model_name_or_path", "qwen2.5-3b", "--cards", "4", "--tensor_parallel_degree", "4"],
            "num_key_value",
        ),
        ([*PUBLISHED, "--search", "--tensor_parallel_degree", "8"], "omit one of the two"),
        (["--model_name_or_path", "llama2-7b", "--cards", "8", "--search"], "needs --global_batch_size"),
        (
            ["--model_name_or_path", "llama2-70b", "--cards", "2", "--global_batch_size", "8", "--search"],
            "fit on 2",
        ),
        ([*PUBLISHED, "--overlap", "some"], "--overlap is 'some'"),
        ([*PUBLISHED, "--sequence_length", "8"], "unrecognized arguments: --sequence_length"),
        ([*PUBLISHED, "--max_seq_length", "8192"], "has 4096 positions"),
        ([*PUBLISHED[:4], "--global_batch_size", "0"], "--global_batch_size is 0, but must be"),
        ([*PUBLISHED, "--recompute", "some"], "'some' is neither true nor false"),
        ([*PUBLISHED, "--recompute_granularity", "full_attn"], "refines --recompute, which is off"),
        ([*PUBLISHED, "--overlap", "pipelined:8"], "pipelined:8 cannot be planned; give pipelined:4"),
        ([*PUBLISHED, *DEGREES[:4], "--mask", "documents"], "passes no masks from stage to stage"),
        ([*PUBLISHED, "--mask", "band"], "llama2-70b has none shorter than --max_seq_length 4096"),
        ([*PUBLISHED, "--html", "/no/folder/plan.html"], "the folder /no/folder does not exist; create it"),
        ([*PUBLISHED, "--html", "/"], "--html is /, which is a folder"),
        (["--model_name_or_path", "", "--cards", "8"], "'' is neither a preset"),
        (["--model_name_or_path", "deepseekv3", "--cards", "8"], "Did you mean deepseek-v3?"),
        ([*PUBLISHED, "--oversubscription", "0.5"], "must be a number of 1 or more"),
        ([*PUBLISHED, "--oversubscription", "nan"], "must be a number of 1 or more"),
        ([*PUBLISHED, "--pod_cards", "64"], "refines --oversubscription"),
        ([*PUBLISHED, "--oversubscription", "2", "--pod_cards", "12"], "multiple of 8"),
    ],
)
def test_bad_input_gets_a_sentence_and_exit_code_2(capsys, argv, words):
    code, out, err = asked(capsys, *argv)
    assert (code, out) == (2, "")
    assert err.startswith("llm_npu.plan: ") and words in err and err.count("\n") == 1


@pytest.mark.slow
def test_it_ends_without_a_traceback(start_python, tmp_path):
    """After Ctrl-C, which comes here while the model's file is read; and with nobody to print to."""
    model = tmp_path / "model"
    model.mkdir()
    os.mkfifo(model / "config.json")
    process = start_python("-m", "llm_npu.plan", "--model_name_or_path", model, "--cards", "1")
    with (model / "config.json").open("w"):  # opens once the planner has opened it, too
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (130, "stopped by SIGINT before the plan was printed\n", "")

    for argv in ([*PUBLISHED, *DEGREES], ["--help"]):
        reader, writer = os.pipe()
        os.close(reader)
        done = run(*argv, stdout=writer)
        os.close(writer)
        assert (done.returncode, done.stderr) == (0, ""), argv
    closed = run(*PUBLISHED, *DEGREES, preexec_fn=lambda: os.close(1))
    assert closed.returncode == 2 and "there is no standard output" in closed.stderr
    assert closed.stderr.count("\n") == 1


def run(*argv, **fields):
    command = [sys.executable, "-m", "llm_npu.plan", *argv]
    return subprocess.run(command, text=True, stderr=subprocess.PIPE, **fields)
