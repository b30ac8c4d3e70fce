"""Operations of other programs, counted by hand: mixtures of experts, rings, interleaving."""

from dataclasses import replace

import pytest

from benchmarks.planner.programs.feed_forward import GATHER
from benchmarks.planner.programs.layout import PublishedLayout
from benchmarks.planner.programs.program import (
    ProgramEfficiencies,
    PublishedProgram,
    published_step_time,
)
from benchmarks.planner.programs.software import STACKS, Software
from llm_npu.core import cards
from llm_npu.plan.shape import ModelShape
from llm_npu.plan.step_model import program
from llm_npu.plan.step_model.operations import Operation
from llm_npu.plan.step_model.stage import ADAM

pytestmark = pytest.mark.slow
CARD = cards.card("910b")
GUESS = ProgramEfficiencies(cube=0.8, attention=0.5, hidden=0.5)
PLAIN = Software()
MIXTRAL, LLAMA = ModelShape.of("mixtral-8x7b"), ModelShape.of("llama2-7b")
TOKENS, HIDDEN, LAYERS, CHOSEN = 4096, 4096, 32, 2
ALL_GATHER = replace(STACKS["mindspeed"], dispatcher="allgather")


def micro_batch(shape, layout, software=PLAIN):
    return program.micro_batch(shape, layout, 0, PublishedProgram(software))


def operations(software, **layout):
    all_operations = micro_batch(MIXTRAL, PublishedLayout(max_seq_length=TOKENS, **layout), software)
    return [operation for operation in all_operations if operation.name.startswith(("experts", "mlp"))]


def total(operations, name, phase, what="bytes"):
    return sum(
        getattr(operation, what) * operation.times
        for operation in operations
        if operation.name == name and operation.phase == phase
    )


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_every_element_is_addressed_where_all_tokens_are_gathered(phase):
    sent_operations = operations(ALL_GATHER, cards=8, expert_parallel_degree=8, sharding="stage1")
    # Four kernels: an index of 8 bytes, 2 read, 2 written.
    assert total(sent_operations, "experts.permute", phase) == 4 * 12 * TOKENS * CHOSEN * HIDDEN * LAYERS
    assert all(
        operation.kind == GATHER for operation in sent_operations if operation.name == "experts.permute"
    )
    sent = [
        operation
        for operation in sent_operations
        if operation.name == "experts.exchange" and operation.phase == phase
    ]
    assert [(operation.collective, operation.payload, operation.times) for operation in sent] == [
        ("all_gather", 8 * TOKENS * HIDDEN * 2, 2 * LAYERS)
    ]


def test_tokens_are_sent_to_their_experts_only():
    sent_operations = operations(PLAIN, cards=8, expert_parallel_degree=8, sharding="stage1")
    assert not any(operation.kind == GATHER for operation in sent_operations)
    sent = [operation for operation in sent_operations if operation.name == "experts.exchange"]
    assert {(operation.collective, operation.payload) for operation in sent} == {
        ("all_to_all", CHOSEN * TOKENS * HIDDEN * 2)
    }


@pytest.mark.parametrize(
    ("dispatcher", "sent"),
    [
        ("allgather", {"all_gather": 1, "reduce_scatter": 1}),
        ("alltoall", {"all_gather": CHOSEN, "reduce_scatter": CHOSEN, "all_to_all": 2}),
    ],
)
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_dispatchers_move_tokens_between_tensor_parallel_ranks(dispatcher, sent, phase):
    layout = {"cards": 8, "tensor_parallel_degree": 8, "sequence_parallel": True, "overlap": "mc2"}
    software = replace(ALL_GATHER, dispatcher=dispatcher)
    waiting = [
        operation
        for operation in operations(software, **layout)
        if operation.group == "tp" and operation.phase == phase
    ]
    assert not any(operation.overlaps for operation in waiting)
    tokens = dict.fromkeys(sent, 0.0)
    for operation in waiting:
        tokens[operation.collective] += operation.payload * operation.times / (TOKENS * HIDDEN * 2 * LAYERS)
    assert tokens == sent


def test_experts_without_a_dispatcher_overlap_as_dense_layers():
    layout = {"cards": 8, "tensor_parallel_degree": 8, "sequence_parallel": True, "overlap": "mc2"}
    beside = [
        operation for operation in operations(replace(ALL_GATHER, dispatcher=""), **layout) if operation.group
    ]
    assert len(beside) == 5 and all(operation.overlaps for operation in beside)


@pytest.mark.parametrize("capacity", [1.0, 1.25])
def test_experts_compute_their_capacity(capacity):
    computed_operations = operations(replace(PLAIN, capacity=capacity), cards=1)
    products = 3 * TOKENS * CHOSEN * HIDDEN * MIXTRAL.intermediate_size * 2 * LAYERS
    computed = sum(
        total(computed_operations, f"experts.{name}", "forward", "flops") for name in ("up", "down")
    )
    assert computed == pytest.approx(capacity * products, rel=1e-6)


def test_addressing_elements_is_slower_than_reading_them():
    read = Operation("x", "vector", bytes=1e9)
    rates = replace(GUESS, launch=0.0, gather=0.25)
    whole, element = (
        PublishedProgram(PLAIN).seconds(operation, CARD, rates)
        for operation in (read, read._replace(kind=GATHER))
    )
    assert element == pytest.approx(4 * whole)


def test_grouped_products_are_one_kernel():
    alone, together = (
        operations(replace(PLAIN, grouped=grouped), cards=1, fused=frozenset()) for grouped in (False, True)
    )
    for name in ("experts.up", "experts.swiglu", "experts.down"):
        kernels = [
            sum(operation.times for operation in micro_batch_operations if operation.name == name)
            for micro_batch_operations in (alone, together)
        ]
        assert kernels[0] == MIXTRAL.num_experts * kernels[1]
        assert total(alone, name, "forward", "flops") == total(together, name, "forward", "flops")
        assert total(alone, name, "forward") == total(together, name, "forward")


def test_fewer_cards_share_the_states_of_experts():
    layout = PublishedLayout(cards=8, expert_parallel_degree=8, sharding="stage1")
    once = PublishedProgram(PLAIN)
    (adam,) = (
        operation for operation in program.once_a_step(MIXTRAL, layout, 0, once) if operation.name == "adam"
    )
    experts = LAYERS * MIXTRAL.expert_parameters
    alone = replace(layout, expert_parallel_degree=1)
    (shared,) = (
        operation for operation in program.once_a_step(MIXTRAL, alone, 0, once) if operation.name == "adam"
    )
    # Every card has the states of its own experts, an eighth of all, whether it shares them or not.
    assert adam.bytes == pytest.approx(shared.bytes, rel=1e-6) and adam.bytes > ADAM * experts / 8


@pytest.mark.parametrize("overlap", ["serial", "mc2"])
def test_a_program_may_gather_again_in_the_backward_pass(overlap):
    layout = PublishedLayout(cards=8, tensor_parallel_degree=8, sequence_parallel=True, overlap=overlap)
    gathers = {
        again: sum(
            operation.times
            for operation in micro_batch(LLAMA, layout, Software(recompute_all_gather=again))
            if operation.collective == "all_gather" and operation.phase == "backward"
        )
        for again in (False, True)
    }
    assert gathers[True] - gathers[False] == 2 * LLAMA.num_hidden_layers + 1  # qkv, mlp; and the head


def test_replicas_are_inside_stages():
    layout = PublishedLayout(cards=16, tensor_parallel_degree=2, pipeline_parallel_degree=2)
    strides = PublishedProgram(PLAIN).strides(layout)
    assert [strides[group] for group in ("dp", "pp")] == [2, 8]


def test_kernels_of_other_releases_take_longer_by_a_factor():
    rates = replace(GUESS, earlier=1.25, later=0.8)
    assert rates.of("") == rates
    assert rates.of("earlier").cube == pytest.approx(GUESS.cube / 1.25)
    assert rates.of("later").links == pytest.approx(GUESS.links / 0.8)
    assert rates.of("later").hidden == GUESS.hidden


def test_interleaved_parts_hide_collectives_and_separate_products_add_some():
    layout = PublishedLayout(cards=8, tensor_parallel_degree=8, sequence_parallel=True)
    plain = Software(scatters=True)

    def exchanged(software):
        time = published_step_time(LLAMA, layout, CARD, GUESS, software)
        return time.communication["tp"], time.hidden

    alone, nothing = exchanged(plain)
    beside, hidden = exchanged(replace(plain, interleaves=2))
    assert nothing == 0 and hidden > 0 and beside + hidden == pytest.approx(alone)
    # A layer has 4 collectives forward and 4 backward; 2 and 1 more with products of their own.
    more, _ = exchanged(replace(plain, separate_products=True))
    assert more / alone == pytest.approx(11 / 8, rel=0.02)


def test_parts_of_ring_attention_are_merged():
    layout = PublishedLayout(cards=8, context_parallel_degree=4, max_seq_length=32768)
    merges = [operation for operation in micro_batch(LLAMA, layout) if operation.name == "attention.merge"]
    elements, steps = layout.tokens_per_rank * LLAMA.query_size, 3 * LLAMA.num_hidden_layers
    moved = {operation.phase: operation.bytes * operation.times for operation in merges}
    # Three quarters of the queries, on average; every key and value; all gradients read twice, written once.
    assert moved == {
        "forward": 62 * 0.75 * elements * steps,
        "backward": 6 * (0.75 + 2) * elements * steps,
    }
    whole = micro_batch(LLAMA, replace(layout, cards=2, context_parallel_degree=1))
    assert not any(operation.name == "attention.merge" for operation in whole)


def test_context_parallelism_divides_attention_that_is_not_fused():
    layout = PublishedLayout(cards=4, context_parallel_degree=4, fused=frozenset())
    cut = micro_batch(LLAMA, layout)
    whole = micro_batch(LLAMA, replace(layout, cards=1, context_parallel_degree=1))
    products = [
        sum(
            operation.flops * operation.times
            for operation in micro_batch_operations
            if operation.name.startswith("attention.product")
        )
        for micro_batch_operations in (whole, cut)
    ]
    assert products[0] == 4 * products[1] > 0
    assert {operation.phase for operation in cut if operation.name == "attention.ring"} == {
        "forward",
        "backward",
    }
