"""Operations of a mixture of experts, counted by hand for each way of dispatching tokens."""

from dataclasses import replace

import pytest

from llm_npu.core import cards
from llm_npu.plan.layout import Layout
from llm_npu.plan.shape import ModelShape
from llm_npu.plan.step_model import program
from llm_npu.plan.step_model.operations import Operation
from llm_npu.plan.step_model.roofline import Efficiencies, compute_seconds
from llm_npu.plan.step_model.software import STACKS, TRAINER
from llm_npu.plan.step_model.stage import ADAM

CARD = cards.card("910b")
MIXTRAL = ModelShape.of("mixtral-8x7b")
TOKENS, HIDDEN, LAYERS, CHOSEN = 4096, 4096, 32, 2
ALL_GATHER = replace(STACKS["mindspeed"], dispatcher="allgather")


def operations(software, **layout):
    found = program.micro_batch(MIXTRAL, Layout(max_seq_length=TOKENS, **layout), 0, software)
    return [one for one in found if one.name.startswith(("experts", "mlp"))]


def total(found, name, phase, what="bytes"):
    return sum(getattr(one, what) * one.times for one in found if one.name == name and one.phase == phase)


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_every_element_is_addressed_where_all_tokens_are_gathered(phase):
    found = operations(ALL_GATHER, cards=8, expert_parallel_degree=8, sharding="stage1")
    # Four kernels: an index of 8 bytes, 2 read, 2 written.
    assert total(found, "experts.permute", phase) == 4 * 12 * TOKENS * CHOSEN * HIDDEN * LAYERS
    assert all(one.by_element for one in found if one.name == "experts.permute")
    sent = [one for one in found if one.name == "experts.exchange" and one.phase == phase]
    assert [(one.collective, one.payload, one.times) for one in sent] == [
        ("all_gather", 8 * TOKENS * HIDDEN * 2, 2 * LAYERS)
    ]


def test_tokens_are_sent_to_their_experts_only():
    found = operations(TRAINER, cards=8, expert_parallel_degree=8, sharding="stage1")
    assert not any(one.by_element for one in found)
    sent = [one for one in found if one.name == "experts.exchange"]
    assert {(one.collective, one.payload) for one in sent} == {("all_to_all", CHOSEN * TOKENS * HIDDEN * 2)}


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
    waiting = [one for one in operations(software, **layout) if one.group == "tp" and one.phase == phase]
    assert not any(one.overlaps for one in waiting)
    tokens = dict.fromkeys(sent, 0.0)
    for one in waiting:
        tokens[one.collective] += one.payload * one.times / (TOKENS * HIDDEN * 2 * LAYERS)
    assert tokens == sent


def test_experts_without_a_dispatcher_overlap_as_dense_layers():
    layout = {"cards": 8, "tensor_parallel_degree": 8, "sequence_parallel": True, "overlap": "mc2"}
    beside = [one for one in operations(replace(ALL_GATHER, dispatcher=""), **layout) if one.group]
    assert len(beside) == 5 and all(one.overlaps for one in beside)


@pytest.mark.parametrize("capacity", [1.0, 1.25])
def test_experts_compute_their_capacity(capacity):
    found = operations(replace(TRAINER, capacity=capacity), cards=1)
    products = 3 * TOKENS * CHOSEN * HIDDEN * MIXTRAL.intermediate_size * 2 * LAYERS
    computed = sum(total(found, f"experts.{name}", "forward", "flops") for name in ("up", "down"))
    assert computed == pytest.approx(capacity * products, rel=1e-6)


def test_addressing_elements_is_slower_than_reading_them():
    read = Operation("x", "vector", bytes=1e9)
    rates = Efficiencies(cube=0.8, attention=0.5, hidden=0.5, launch=0.0, gather=0.25)
    element = compute_seconds(read._replace(by_element=True), CARD, rates)
    assert element == pytest.approx(4 * compute_seconds(read, CARD, rates))


def test_grouped_products_are_one_kernel():
    alone, together = (
        operations(replace(TRAINER, grouped=each), cards=1, fused=frozenset()) for each in (False, True)
    )
    for name in ("experts.up", "experts.swiglu", "experts.down"):
        kernels = [sum(each.times for each in found if each.name == name) for found in (alone, together)]
        assert kernels[0] == MIXTRAL.num_experts * kernels[1]
        assert total(alone, name, "forward", "flops") == total(together, name, "forward", "flops")
        assert total(alone, name, "forward") == total(together, name, "forward")


def test_fewer_cards_share_the_states_of_experts():
    layout = Layout(cards=8, expert_parallel_degree=8, sharding="stage1")
    (adam,) = (one for one in program.once_a_step(MIXTRAL, layout) if one.name == "adam")
    experts = LAYERS * MIXTRAL.expert_parameters
    alone = replace(layout, expert_parallel_degree=1)
    (shared,) = (one for one in program.once_a_step(MIXTRAL, alone) if one.name == "adam")
    # Every card has the states of its own experts, an eighth of all, whether it shares them or not.
    assert adam.bytes == pytest.approx(shared.bytes, rel=1e-6) and adam.bytes > ADAM * experts / 8
