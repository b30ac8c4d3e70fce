"""The memory of Megatron: shards, schedules, releases and what a layer saves."""

from dataclasses import replace

import pytest

from benchmarks.planner.megatron import memory as megatron
from benchmarks.planner.megatron.release import (
    CORE_0_8,
    CURRENT,
    LEGACY,
    LatentAttention,
    Release,
    Switches,
)
from benchmarks.planner.megatron.saved_layer import saved
from benchmarks.planner.megatron.schedule import fullest, passes
from benchmarks.planner.megatron.shards import largest_piece
from benchmarks.planner.programs.layout import PublishedLayout
from benchmarks.planner.programs.software import STACKS
from llm_npu.plan.shape import ModelShape

pytestmark = pytest.mark.slow
LLAMA = ModelShape.of("llama2-7b")
MIXTRAL = ModelShape(
    name="mixtral",
    model_type="llama",
    vocab_size=32000,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=4,
    num_attention_heads=32,
    num_key_value_heads=8,
    max_position_embeddings=4096,
    num_experts=8,
    experts_per_token=2,
)
SOFTWARE = STACKS["mindspeed"]


def ranks(
    shape: ModelShape, layout: PublishedLayout, release: Release = CURRENT, software=SOFTWARE, **switches
) -> tuple[megatron.RankMemory, ...]:
    return megatron.ranks(shape, layout, software, release, Switches(**switches))


def layer(
    shape: ModelShape, layout: PublishedLayout, release: Release = CURRENT, software=SOFTWARE, **switches
):
    return saved(shape, layout, layout.tokens_per_rank, software, release, Switches(**switches))


def test_a_shard_cuts_weights_that_begin_at_the_end_of_the_model():
    # Reversed: 2, 8, 6. Halves of 8: the first has 2 and 6 of the 8, the second 2 of the 8 and 6.
    assert [largest_piece((6, 8, 2), 2, None, rank) for rank in (0, 1)] == [6, 6]
    assert [largest_piece((10, 4, 2), 2, None, rank) for rank in (0, 1)] == [4, 8]
    assert largest_piece((10, 4, 2), 2, None, None) == 8
    assert largest_piece((10, 4, 2), 1, None, None) == 10
    # A bucket is full at 6: 2 and 4, of which each half has 3 at most, and 10.
    assert largest_piece((10, 4, 2), 2, 6, 0) == 5


def test_one_forward_one_backward():
    assert list(passes(0, 1, 1, 8)) == [(True, 0), (False, 0)]
    assert "".join("FB"[not forward] for forward, _ in passes(1, 2, 1, 3)) == "FBFBFB"
    assert "".join("FB"[not forward] for forward, _ in passes(0, 2, 1, 3)) == "FFBFBB"
    # Two chunks of two stages: the first one has 2 x 1 + 2 passes before its first backward pass.
    order = list(passes(0, 2, 2, 4))
    assert order[:5] == [(True, 0), (True, 0), (True, 1), (True, 1), (True, 0)] and order[5] == (False, 1)
    assert [forward for forward, _ in passes(0, 2, 2, 2, fills=True)] == [True] * 4 + [False] * 4


def test_the_fullest_moment_of_a_schedule():
    order = list(passes(0, 2, 1, 4))
    assert fullest(iter(order), [10.0], [1.0], [0.0]) == 21.0
    assert fullest(iter(order), [10.0], [0.0], [5.0]) == 25.0


def test_releases_differ_in_the_loss_the_update_and_the_warm_up():
    layout = PublishedLayout(cards=1, max_seq_length=4096)
    old, new = ranks(LLAMA, layout, CORE_0_8)[0], ranks(LLAMA, layout)[0]
    assert old.activations - new.activations == pytest.approx(4 * 4096 * 32000, rel=1e-3)
    assert old.step == 4 * 32000 * 4096 and new.step == megatron.WORKSPACE
    assert ranks(LLAMA, layout, reuses=True)[0].step == old.step
    assert ranks(LLAMA, layout, reuses=True, narrow_moments=True)[0].step == 3 * old.step
    assert old.warm_up == 17 * 2 * 4096 * 11008 and new.warm_up == 5 * 2 * 4096 * 11008
    long = replace(layout, cards=8, context_parallel_degree=8)
    assert [ranks(LLAMA, long, release)[0].warm_up for release in (CORE_0_8, CURRENT)] == [
        old.warm_up,
        new.warm_up / 8,
    ]


def test_without_core_every_layer_has_a_mask_and_repeated_keys():
    layout = PublishedLayout(cards=1, max_seq_length=4096)
    grouped = replace(LLAMA, num_key_value_heads=8)
    assert ranks(LLAMA, layout, LEGACY)[0].buffers == 32 * 4096**2
    assert ranks(LLAMA, layout)[0].buffers == megatron.MASK
    plain = PublishedLayout(cards=1, max_seq_length=4096, fused=layout.fused - {"rope"})
    more = layer(grouped, plain, LEGACY).attention - layer(grouped, plain).attention
    assert more == 2 * 2 * 4096 * (4096 - 1024)


def test_what_a_layer_saves():
    layout = PublishedLayout(cards=2, tensor_parallel_degree=2, sequence_parallel=True, max_seq_length=4096)
    memory = layer(LLAMA, layout)
    between, query, inner = 2 * 4096 * 4096 / 2, 2 * 4096 * 4096 / 2, 2 * 4096 * 11008 / 2
    tables, statistics = 8 * 4096 * 128, 64 * 32 * 4096 / 2
    assert memory.whole == 4 * between + 4 * query + tables + statistics + 3 * inner
    assert memory.kept("full", False, False, False) == between
    assert memory.whole - memory.kept("activation", False, False, False) == inner
    away = memory.attention + statistics + between
    assert memory.whole - memory.kept("", True, False, True) == away + 3 * inner
    assert memory.whole - memory.kept("core_attn", False, False, False) == statistics
    assert memory.whole - memory.kept("full_attn", False, False, False) == 4 * query + tables + statistics
    assert memory.whole - memory.kept("", False, True, False) == 2 * between
    old = layer(LLAMA, layout, replace(CORE_0_8, rotary_input=True))
    assert old.attention - memory.attention == 3 * query
    latent = layer(LLAMA, layout, latent=LatentAttention(64, 128, 1536, 512, 192))
    assert latent.attention == 4096 * (2 * (16 * (4 * 192 + 128) + 2 * 2048 + 64))


def test_composed_operators_save_more():
    layout = PublishedLayout(cards=2, tensor_parallel_degree=2, sequence_parallel=True, max_seq_length=4096)
    grouped = replace(LLAMA, num_key_value_heads=8)

    def without(*names):
        return layer(grouped, replace(layout, fused=layout.fused - set(names)))

    fused, between, inner = without(), 2 * 4096 * 4096 / 2, 2 * 4096 * 11008 / 2
    assert without("rms_norm").whole - fused.whole == 4 * between
    assert without("swiglu").whole - fused.whole == inner
    memory, scores = without("attention"), 16 * 4096**2
    assert memory.gradients == 8 * scores
    repeated = 2 * 2 * 4096 * (4096 - 1024) / 2
    assert (memory.core, fused.core) == (6 * scores + repeated, 64 * 16 * 4096)
    for granularity in ("core_attn", "full_attn"):
        assert memory.kept(granularity, False, False, False) < fused.whole


def test_experts_save_their_tokens_twice_and_share_states_among_fewer_cards():
    layout = PublishedLayout(cards=4, max_seq_length=4096, global_batch_size=4, sharding="stage1")
    memory, tokens = layer(MIXTRAL, layout), 4096
    inner, moved = 2 * 2 * tokens * 14336, 2 * 2 * tokens * 4096
    assert memory.feed_forward == 3 * inner + 2 * moved + 12 * tokens * 8
    half = layer(MIXTRAL, layout, software=replace(SOFTWARE, capacity=0.5))
    assert half.result == inner / 2
    masters_of_one, four = (
        ranks(MIXTRAL, replace(layout, expert_parallel_degree=degree))[0].masters for degree in (1, 4)
    )
    # All cards share the states of all experts, or each has those of its own two.
    assert four == pytest.approx(masters_of_one, rel=1e-3)


def test_tensor_parallelism_divides_the_shared_expert():
    shared = replace(MIXTRAL, shared_expert_intermediate_size=14336)
    layout = PublishedLayout(cards=2, tensor_parallel_degree=2)
    more = ranks(shared, layout)[0].weights - ranks(MIXTRAL, layout)[0].weights
    assert more == pytest.approx(2 * MIXTRAL.num_hidden_layers * 3 * 14336 * 4096 / 2, rel=1e-3)


def test_empty_layers_and_chunks_of_two_stages():
    layout = PublishedLayout(cards=2, pipeline_parallel_degree=2, max_seq_length=4096, global_batch_size=8)
    layout = replace(layout, layers_of_stages=(15, 15))
    some = ranks(LLAMA, layout, chunks=4, empty=frozenset({1, 31}))
    plain = ranks(LLAMA, layout)
    assert [rank.weights for rank in some] == [rank.weights for rank in plain]
    assert some[0].activations > plain[0].activations  # more chunks are in flight


def test_short_samples_and_swapped_attention_take_less():
    layout = PublishedLayout(cards=1, max_seq_length=4096)
    whole = ranks(LLAMA, layout)[0].activations
    assert ranks(LLAMA, layout, tokens=256)[0].activations < whole / 4
    # The attention of the layer that goes backward is on the card.
    swapped = ranks(LLAMA, layout, swaps=True)[0].activations
    away = layer(LLAMA, layout).attention + layer(LLAMA, layout).core + 2 * 4096 * 4096
    assert whole - swapped == pytest.approx(32 * away, rel=0.05)
