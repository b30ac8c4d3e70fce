"""The search of the planner: which layouts it tries, and what it says that it left out."""

from argparse import Namespace

import pytest
from plans import DEGREES, PUBLISHED

from llm_npu.config import parallel_checks, parse
from llm_npu.models.families import FAMILIES
from llm_npu.plan import __main__ as command
from llm_npu.plan import search, table
from llm_npu.plan.answer import left_out
from llm_npu.plan.layout import Layout
from llm_npu.plan.memory_model import memory
from llm_npu.plan.shape import ModelShape

pytestmark = pytest.mark.sampled


@pytest.fixture(scope="module")
def searched():
    return command.planned([*PUBLISHED, "--overlap", "mc2", "--search"])[1]


@pytest.mark.paddlenlp  # --overlap
def test_the_search_is_at_least_as_fast_as_the_published_layout(searched):
    published = command.planned([*PUBLISHED, *DEGREES])[1]
    assert published.fits and searched.fits
    assert searched.time.step_time_s <= published.time.step_time_s
    assert searched.search.fitting <= searched.search.considered
    seconds = [candidate.seconds for candidate in searched.search.best]
    assert seconds == sorted(seconds) and seconds[0] == searched.time.step_time_s


@pytest.mark.slow
@pytest.mark.paddlenlp  # --overlap
def test_the_search_tries_every_overlap_that_is_not_given(searched):
    free = command.planned([*PUBLISHED, "--search"])[1]
    assert {candidate.layout.overlap for candidate in free.search.best} >= {"pipelined", "mc2"}
    assert free.time.step_time_s <= searched.time.step_time_s
    assert {candidate.layout.overlap for candidate in searched.search.best} == {"mc2"}


@pytest.mark.paddlenlp  # --overlap
def test_the_fastest_layouts_are_told_by_what_differs(searched):
    (fastest,) = (shown for shown in table.tables(searched) if shown.title == "Fastest layouts")
    assert fastest.rows[0][0] == "-"
    assert "--recompute true --recompute_granularity core_attn" in [row[0] for row in fastest.rows]


def test_the_search_sees_every_layout_of_the_trainer():
    shape, like = ModelShape.of("llama2-7b"), Layout(cards=8, global_batch_size=16)
    layouts = list(search.layouts(shape, like, cards_per_server=8))
    assert len(set(layouts)) == len(layouts)
    for layout in layouts:
        layout.check(shape)
        assert (layout.cards, layout.global_batch_size) == (8, 16)
        values = dict.fromkeys(
            (*parallel_checks.DEGREES, *parallel_checks.UNSUPPORTED_PARALLELISM, "expert_parallel_degree"), 1
        )
        values |= {"tensor_parallel_degree": layout.tensor_parallel_degree, "sharding": layout.sharding}
        values["pipeline_parallel_degree"] = layout.pipeline_parallel_degree
        values["virtual_pp_degree"] = layout.virtual_pp_degree
        values["gradient_accumulation_steps"] = layout.micro_batches
        values |= {"pipeline_schedule": None, "overlap": None, "enable_auto_parallel": False}
        values |= {"amp_master_grad": True}
        parallel_checks.check(Namespace(**values, processes=8))
    degrees = {
        (candidate.tensor_parallel_degree, candidate.pipeline_parallel_degree) for candidate in layouts
    }
    assert degrees == {(tp, pp) for tp in (1, 2, 4, 8) for pp in (1, 2, 4, 8) if tp * pp <= 8}
    assert {candidate.sharding for candidate in layouts} == {"", "stage1", "stage2", "stage3"}
    assert {candidate.virtual_pp_degree for candidate in layouts} == {1, 2, 4}


@pytest.mark.slow
@pytest.mark.paddlenlp
def test_long_sequences_are_split():
    shape = ModelShape.of("llama3.1-8b")
    for length, degrees in ((16384, {(1, 1)}), (32768, {(1, 1), (1, 2), (2, 1), (1, 4), (2, 2), (4, 1)})):
        like = Layout(cards=4, global_batch_size=4, max_seq_length=length)
        layouts = list(search.layouts(shape, like, cards_per_server=8))
        assert {(run.sep_parallel_degree, run.context_parallel_degree) for run in layouts} == degrees
        for run in layouts:
            run.check(shape)
    argv = ["--model_name_or_path", "llama3.1-8b", "--cards", "32", "--global_batch_size", "32"]
    answer = command.planned([*argv, "--max_seq_length", "131072", "--search"])[1]
    assert answer.layout.sequence_degree > 1
    run = parse(table.arguments(answer.shape, answer.layout))
    assert run.data.max_seq_length == 131072


@pytest.mark.parametrize(("cards", "samples"), [(32, 48), (32, 33), (256, 32)])
def test_a_search_needs_no_batch_that_suits_as_many_replicas_as_cards(cards, samples):
    argv = ["--model_name_or_path", "llama2-70b", "--cards", cards, "--global_batch_size", samples]
    answer = command.planned([*map(str, argv), "--search"])[1]
    assert answer.fits and answer.layout.global_batch_size == samples
    assert answer.layout.tensor_parallel_degree <= cards_of_server(answer)


def cards_of_server(answer) -> int:
    return answer.card.within_server.cards


@pytest.mark.slow
def test_a_search_passes_over_larger_micro_batches_of_what_does_not_fit():
    shape, like = ModelShape.of("llama2-7b"), Layout(cards=8, global_batch_size=64)
    bytes_of_card = 40 << 30
    candidates, considered, smallest = search.fitting(shape, like, lambda layout: bytes_of_card, 8)
    all_of_them = list(search.layouts(shape, like, 8))
    peaks = {layout: memory.peak(shape, layout).peak_memory_bytes for layout in all_of_them}
    fitting = {layout for layout, size in peaks.items() if size <= bytes_of_card}
    assert {candidate.layout for candidate in candidates} == fitting and fitting
    assert (considered, smallest) == (len(all_of_them), min(peaks.values()))


def test_numbers_without_end_are_divided_fast():
    assert search._divisors(10**12)[-2:] == [10**12 // 2, 10**12]
    assert [search._divisors(number) for number in (0, 1, 12, 16)] == [
        [], [1], [1, 2, 3, 4, 6, 12], [1, 2, 4, 8, 16],
    ]  # fmt: skip


PLANNED = {name: family for name, family in FAMILIES.items() if family.gated}


def tensor_parallel_is_planned(family, shape) -> bool:
    """A single key-value head cannot be split; experts must be split by size or by number."""
    splits = family.experts is None or family.experts.tensor_parallel in ("size", "number")
    return splits and shape.num_key_value_heads % 2 == 0


@pytest.mark.parametrize("family", PLANNED.values(), ids=PLANNED)
def test_the_search_tries_what_the_trainer_runs_of_every_family(family):
    shape, like = ModelShape.of(family.tiny), Layout(cards=8, global_batch_size=16, max_seq_length=512)
    layouts = list(search.layouts(shape, like, cards_per_server=8))
    for layout in layouts:
        layout.check(shape)
    tensor = tensor_parallel_is_planned(family, shape)
    assert (max(layout.tensor_parallel_degree for layout in layouts) > 1) == tensor
    assert (max(layout.pipeline_parallel_degree for layout in layouts) > 1) == family.pipeline
    argv = ["--model_name_or_path", family.tiny, "--cards", "8", "--global_batch_size", "16", "--search"]
    answer = command.planned([*argv, "--max_seq_length", "512"])[1]
    assert answer.layout in layouts or answer.layout.overlap != "serial"
    reasons = left_out(shape, like)
    assert ("pipeline parallelism" in reasons) != family.pipeline
    assert ("tensor parallelism" in reasons) != tensor
    assert all(reason in " ".join(table.notes(answer)) for reason in reasons.values())
    assert table.command(answer)


@pytest.mark.paddlenlp
def test_models_of_paddleformers_are_searched_as_it_runs_them():
    argv = ["--model_name_or_path", "qwen3-8b", "--cards", "8", "--global_batch_size", "64"]
    answer = command.planned([*argv, "--search"])[1]
    assert {candidate.layout.overlap for candidate in answer.search.best} == {"serial"}
    shape, like = ModelShape.of("qwen3-8b"), Layout(cards=8, global_batch_size=8)
    layouts = list(search.layouts(shape, like, cards_per_server=8))
    assert {layout.recompute_granularity for layout in layouts} == {"full"}
    assert max(layout.pipeline_parallel_degree for layout in layouts) == 8
    with pytest.raises(ValueError, match=r"--overlap is mc2, .* qwen3-8b .*PaddleFormers"):
        command.planned([*argv, "--tensor_parallel_degree", "4", "--overlap", "mc2"])
