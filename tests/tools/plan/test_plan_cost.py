"""Seconds of operations, collectives, pipelines and steps, against single measurements and by hand."""

import dataclasses
from collections import Counter

import pytest

from llm_npu.core import cards
from llm_npu.models.flops import flops_per_token
from llm_npu.models.presets import model_config
from llm_npu.plan import cost
from llm_npu.plan.layout import Layout
from llm_npu.plan.memory_model import memory
from llm_npu.plan.shape import ModelShape
from llm_npu.plan.step_model import program
from llm_npu.plan.step_model.operations import Operation
from llm_npu.plan.step_model.roofline import Efficiencies, collective_seconds, compute_seconds
from llm_npu.plan.step_model.stage import causal

pytestmark = pytest.mark.sampled

CARD = cards.card("910b")
GUESS = Efficiencies(cube=0.8, attention=0.5, hidden=0.5)
LLAMA = ModelShape.of("llama2-7b")


def matmul(m, n, k):
    shapes = ((m, k), (k, n))
    return Operation("x", "matmul", 2.0 * m * n * k, 2.0 * (m * k + k * n + m * n), shapes=shapes)


@pytest.mark.parametrize(
    ("m", "n", "k", "tflops"),
    [
        (6912, 16384, 2048, 291.6),
        (2304, 5120, 1536, 272.6),
        (6144, 17920, 2816, 301.3),
        (14336, 4096, 4096, 317.3),
    ],
)
def test_products_take_as_long_as_measured(m, n, k, tflops):
    product = matmul(m, n, k)
    efficiencies = Efficiencies(cube=0.93, attention=0.5, hidden=0.5, launch=0.0)
    assert product.flops / compute_seconds(product, CARD, efficiencies) / 1e12 == pytest.approx(
        tflops, rel=0.04
    )


@pytest.mark.parametrize(("ranks", "gigabytes"), [(2, 38), (4, 64), (8, 149)])
def test_gathering_takes_as_long_as_measured(ranks, gigabytes):
    gather = Operation("x", "collective", collective="all_gather", payload=1e9, group="tp", group_size=ranks)
    assert 1 / collective_seconds(gather, CARD) == pytest.approx(gigabytes, rel=0.13)
    reduce = gather._replace(collective="all_reduce")
    assert collective_seconds(reduce, CARD) == pytest.approx(2 * collective_seconds(gather, CARD))


def test_between_servers_every_card_has_a_port():
    gather = Operation("x", "collective", collective="all_gather", payload=1e9, group="dp", group_size=4)
    apart, together = collective_seconds(gather, CARD, stride=8), collective_seconds(gather, CARD)
    assert apart == pytest.approx(1e9 * 3 / 4 / 20e9, rel=0.01) and apart > together
    # 16 ranks in two servers: the eighth of a server's card crosses.
    both = gather._replace(group_size=16)
    alone = collective_seconds(gather._replace(group_size=8), CARD)
    assert collective_seconds(both, CARD) - alone == pytest.approx(1e9 / 8 / 2 / 20e9, rel=0.02)
    send = gather._replace(collective="send", payload=1e9)
    assert collective_seconds(send, CARD, stride=8) == pytest.approx(1 / 20, rel=0.01)


def test_a_pipeline_waits_for_its_slowest_hop():
    near = Operation("x", "collective", collective="send", payload=1e9, group="pp", group_size=2)
    far = near._replace(group_size=4)  # with four cards each, two of these stages have a server
    for bandwidth in (5e9, 500e9):
        link = dataclasses.replace(CARD.between_servers, bandwidth=bandwidth)
        card = dataclasses.replace(CARD, between_servers=link)
        within, between = collective_seconds(near, card, stride=4), collective_seconds(near, card, stride=8)
        assert within == collective_seconds(near, CARD, stride=4) != between
        assert collective_seconds(far, card, stride=4) == max(within, between)


@pytest.mark.parametrize(
    ("sharding", "collective", "bytes_a_weight"),
    [("stage1", "reduce", 0), ("stage2", "reduce", 4), ("stage3", "all_reduce", 4)],
)
def test_gradients_are_summed_as_paddle_does_it(sharding, collective, bytes_a_weight):
    layout = Layout(cards=8, sharding=sharding, global_batch_size=16)
    weights = sum(memory.weights(LLAMA, layout, 0))

    def sent(operations):
        reductions = [
            operation
            for operation in operations
            if operation.collective in ("reduce", "all_reduce", "reduce_scatter")
        ]
        assert {operation.collective for operation in reductions} <= {collective}
        return sum(operation.payload * operation.times for operation in reductions)

    assert sent(program.micro_batch(LLAMA, layout)) == pytest.approx(bytes_a_weight * weights, rel=1e-3)
    assert sent(program.once_a_step(LLAMA, layout)) == pytest.approx((4 - bytes_a_weight) * weights, rel=1e-3)


def test_smaller_heads_slow_attention_down():
    def seconds(heads, size):
        shape = (1, 4096, heads, size)
        return compute_seconds(Operation("x", "attention", 1e12, 1e6, shapes=(shape, shape)), CARD, GUESS)

    assert seconds(32, 64) == pytest.approx(2 * seconds(16, 128), rel=0.01)
    assert seconds(8, 256) == pytest.approx(seconds(16, 128))


def simulated(stages, micro_batches):
    """Seconds of 1F1B, step by step: a forward pass takes a third of a stage's time."""
    count = len(stages)
    orders = []
    for stage in range(count):
        warm = min(count - 1 - stage, micro_batches)
        order = [("f", i) for i in range(warm)]
        for i in range(micro_batches - warm):
            order += [("f", warm + i), ("b", i)]
        orders.append(order + [("b", i) for i in range(micro_batches - warm, micro_batches)])
    done, free = {}, [0.0] * count
    while any(orders):
        for stage, order in enumerate(orders):
            while order:
                what, i = order[0]
                before = (what, i, stage - 1) if what == "f" else (what, i, stage + 1)
                first = stage == (0 if what == "f" else count - 1)
                if not first and before not in done:
                    break
                start = max(free[stage], 0.0 if first else done[before])
                free[stage] = start + stages[stage] * (1 if what == "f" else 2) / 3
                done[what, i, stage] = free[stage]
                order.pop(0)
    return max(free)


@pytest.mark.parametrize(
    "stages", [[3.0], [3.0] * 4, [3.0, 3.0, 4.0], [5.0, 3.0, 3.0, 3.0], [3.0, 3.0, 3.0, 4.5]]
)
def test_a_pipeline_takes_as_long_as_its_simulation(stages):
    whole, bubble = cost.pipeline(stages, 16)
    assert 1 - 1e-9 <= whole / simulated(stages, 16) < 1.07
    if len(set(stages)) == 1:
        assert whole == pytest.approx(simulated(stages, 16))
    assert bubble == pytest.approx(sum(stages) - max(stages))
    assert cost.pipeline(stages, 16, 2)[1] == pytest.approx(bubble / 2)


def in_v(stage: int, stages: int, micro_batches: int) -> list[tuple[str, int]]:
    """The operations of a stage of DualPipeV in Paddle's order, each with its chunk.

    F: forward pass; B: backward pass; I, W: without weight gradients, and only these.
    """
    later, half = stages - stage - 1, (stage + 1) // 2
    order = [("F", 0)] * 2 * later + [("F", 0), ("F", 1)] * (stage + 1)
    order += [("I", 1), ("W", 1), ("F", 1)] * later
    order += [("F", 0), ("B", 1), ("F", 1), ("B", 0)] * (micro_batches - 2 * stages + stage + 1)
    order += [("B", 1), ("F", 1), ("B", 0)] * later
    for number in range(stage + 1):
        order.append(("I" if number >= half + (stage + 1) % 2 else "B", 1))
        order.append(("I" if number >= half else "B", 0))
    return order + [("W", 0), ("I", 0)] * later + [("W", 0)] * (stage + 1)


def simulated_in_v(stages: int, micro_batches: int, forward: float, backward: float, late: float) -> float:
    """Seconds until all stages are done; an operation starts when its stage is free and its input there."""
    seconds = {"F": forward, "B": backward, "I": backward - late, "W": late}
    orders = [in_v(stage, stages, micro_batches) for stage in range(stages)]
    free, done, counts = [0.0] * stages, {}, [Counter() for _ in range(stages)]
    while any(orders):
        for stage, order in enumerate(orders):
            while order:
                what, chunk = order[0]
                kind = "F" if what == "F" else "B"
                number = counts[stage][kind, chunk]
                towards_last = (kind == "F") == (chunk == 0)
                before = stage - 1 if towards_last else stage + 1
                needed = (kind, chunk, before, number)
                if before in (-1, stages):  # at an end of the V, the other chunk; or the loss; or the tokens
                    same = {("F", 1): ("F", 0), ("B", 0): ("B", 1), ("B", 1): ("F", 1)}.get((kind, chunk))
                    needed = same and (*same, stage, number)
                if what != "W" and needed and needed not in done:
                    break
                start = max(free[stage], done[needed]) if what != "W" and needed else free[stage]
                free[stage] = start + seconds[what]
                if what != "W":
                    done[kind, chunk, stage, number] = free[stage]
                    counts[stage][kind, chunk] += 1
                order.pop(0)
    return max(free)


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (3, 8), (4, 8), (8, 24)])
@pytest.mark.parametrize("times", [(1.0, 2.0, 1.0), (1.0, 2.0, 0.5), (2.0, 3.0, 0.0), (2.0, 4.0, 1.9)])
def test_a_pipeline_in_v_takes_as_long_as_its_simulation(stages, micro_batches, times):
    forward, backward, late = times
    stage = cost.Tally({"matmul": 2 * (forward + backward)}, {}, 2 * forward, 2 * late)  # of two chunks
    whole = micro_batches * stage.device + cost.bubble_in_v([stage] * (stages - 1))
    assert whole == pytest.approx(simulated_in_v(stages, micro_batches, *times))


@pytest.mark.paddlenlp
def test_a_pipeline_in_v_idles_less():
    layout = Layout(4, pipeline_parallel_degree=4, pipeline_schedule="dualpipev", global_batch_size=16)
    in_v, usual = (
        cost.step_time(LLAMA, dataclasses.replace(layout, pipeline_schedule=schedule), CARD)
        for schedule in ("dualpipev", "")
    )
    assert in_v.bubble < usual.bubble / 2 and in_v.step_time_s < usual.step_time_s
    assert sum(in_v.compute.values()) == pytest.approx(sum(usual.compute.values()), rel=0.1)


@pytest.mark.paddlenlp
def test_experts_over_cards_move_tokens_instead_of_gradients():
    mixtral, whole = ModelShape.of("mixtral-8x7b"), Layout(8)
    shared = dataclasses.replace(whole, expert_parallel_degree=8)
    alone, spread = (cost.step_time(mixtral, layout, CARD) for layout in (whole, shared))
    assert alone.communication.keys() == {"dp"} and spread.communication.keys() == {"dp", "experts"}
    assert spread.communication["dp"] < alone.communication["dp"] / 10
    sent = [
        operation
        for operation in program.micro_batch(mixtral, shared)
        if operation.group == "experts" and operation.phase == "forward"
    ]
    routed = 4096 * 2 * mixtral.hidden_size * 2  # bytes of the rows, each of two experts
    assert sum(operation.payload * operation.times for operation in sent) == 2 * 2 * 32 * 7 / 8 * routed
    assert memory.peak(mixtral, shared).peak_memory_bytes < memory.peak(mixtral, whole).peak_memory_bytes / 4


# All weights, of the models' cards; those of them that are in no product with a token (embedding
# tables that are not the head's, norms, biases, the six experts of eight that a token is not sent to);
# layers, and width of all heads together.
PUBLISHED = {
    "llama2-7b": (6_738_415_616, 32_000 * 4096 + 65 * 4096, 32, 4096),
    "llama3-8b": (8_030_261_248, 128_256 * 4096 + 65 * 4096, 32, 4096),
    "qwen2-0.5b": (494_032_768, 49 * 896 + 24 * (896 + 2 * 128), 24, 896),
    "mixtral-8x7b": (46_702_792_704, 32_000 * 4096 + 65 * 4096 + 32 * 6 * 3 * 4096 * 14_336, 32, 4096),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.paddlenlp] * (name == "mixtral-8x7b")) for name in PUBLISHED],
)
def test_model_flops_of_published_sizes(name):
    weights, idle, layers, width = PUBLISHED[name]
    expected = 6 * (weights - idle) + 12 * layers * width * 4096
    assert flops_per_token(ModelShape.of(name), 4096) == expected  # as the planner counts them
    assert flops_per_token(model_config(name), 4096) == expected  # as a run does


@pytest.mark.parametrize(("tensor", "stages", "chunks"), [(1, 1, 1), (8, 1, 1), (2, 4, 1), (4, 4, 2)])
def test_all_ranks_together_compute_the_model(tensor, stages, chunks):
    layout = Layout(
        cards=tensor * stages,
        tensor_parallel_degree=tensor,
        pipeline_parallel_degree=stages,
        virtual_pp_degree=chunks,
        sequence_parallel=tensor > 1,
        global_batch_size=2 * stages,
    )
    layout.check(LLAMA)
    computed = {"matmul": 0.0, "attention": 0.0}
    for stage in range(stages):
        for operation in program.micro_batch(LLAMA, layout, stage):
            if operation.kind in computed:
                computed[operation.kind] += operation.flops * operation.times * tensor
    length, tokens = layout.max_seq_length, layout.max_seq_length
    attention = (
        causal(length) * 14 * LLAMA.num_hidden_layers * LLAMA.hidden_size * length
    )  # two products forward, five back
    products = flops_per_token(LLAMA, 0)
    assert computed["matmul"] == pytest.approx(products * tokens)
    assert computed["attention"] == pytest.approx(attention * tokens)


def step(**fields):
    usual = {
        "cards": 8,
        "tensor_parallel_degree": 8,
        "sequence_parallel": True,
        "global_batch_size": 16,
        "overlap": "serial",
    }
    return cost.step_time(LLAMA, Layout(**(usual | fields)), CARD, GUESS)


def test_offload_takes_the_time_of_the_bus():
    rate = CARD.to_host.bandwidth * CARD.to_host.efficiency
    alone, recomputed = (
        {"cards": 1, "tensor_parallel_degree": 1, "sequence_parallel": False},
        {"recompute": True},
    )
    for where, moved in (("device", 24), ("host", 6)):
        longer = step(**alone, offload_optimizer=where).optimizer - step(**alone).optimizer
        assert longer == pytest.approx(moved * LLAMA.parameters / rate, rel=0.01)
    copies = step(**alone, **recomputed, offload_activations=True).compute["offload"]
    assert copies == pytest.approx(2 * 2 * 16 * 4096 * LLAMA.hidden_size * LLAMA.num_hidden_layers / rate)
    assert "offload" not in step(**alone, **recomputed).compute


def test_transfers_of_a_ring_are_hidden_behind_its_blocks():
    """Only what takes longer than the blocks is exposed, up to the share that overlap hides."""
    llama, links = ModelShape.of("llama3.1-8b"), CARD.within_server
    for length, hides in ((8192, False), (131072, True)):
        layout = Layout(cards=4, context_parallel_degree=4, max_seq_length=length)
        time = cost.step_time(llama, layout, CARD, dataclasses.replace(GUESS, hidden=1.0))
        exposed = time.communication.get("ring", 0.0)
        assert (exposed == 0) == hides and time.hidden > 0
    tokens, steps = 8192 // 4, 3 * llama.num_hidden_layers
    # Key and value travel in bfloat16; in the backward pass also their gradients, in float32.
    sent = tokens * llama.key_value_size * 2 * (2 + 2 + 4) * steps
    layout = dataclasses.replace(layout, max_seq_length=8192)
    alone = cost.step_time(llama, layout, CARD, dataclasses.replace(GUESS, hidden=0.0)).communication["ring"]
    assert alone == pytest.approx(sent / (links.bandwidth * links.efficiency), rel=0.05)


@pytest.mark.parametrize(("ranks", "rounds"), [(2, 1), (3, 3), (4, 3), (8, 7)])
def test_heads_are_exchanged_in_rounds(ranks, rounds):
    """In a round a part of query, key, value and output is sent, then one is received, in both passes."""
    llama, links = ModelShape.of("llama3.1-8b"), CARD.within_server
    layout = Layout(cards=ranks, sep_parallel_degree=ranks, max_seq_length=24576)
    tokens, heads, keys = 24576 // ranks, -(-32 // ranks) + (ranks == 3), -(-8 // ranks)
    parts = 2 * (2 * heads + 2 * keys) * tokens * llama.head_dim * 2 * llama.num_hidden_layers
    exposed = cost.step_time(llama, layout, CARD).communication["heads"]
    latency = 2 * 4 * llama.num_hidden_layers * links.latency
    of_a_round = (parts / (links.bandwidth * links.efficiency) + latency) / cost.fitted().links
    assert exposed == pytest.approx(2 * rounds * of_a_round)


def test_a_step_is_the_sum_of_its_parts():
    for fields in (
        {},
        {"tensor_parallel_degree": 2, "pipeline_parallel_degree": 4},
        {"tensor_parallel_degree": 1, "sequence_parallel": False, "sharding": "stage3", "recompute": True},
        {"cards": 16, "sharding": "stage1", "overlap": "mc2"},
        {"recompute": True, "offload_activations": True, "offload_optimizer": "host"},
    ):
        step_cost = step(**fields)
        parts = (
            *step_cost.compute.values(),
            *step_cost.communication.values(),
            step_cost.bubble,
            step_cost.host,
        )
        assert sum(parts) + step_cost.optimizer == pytest.approx(step_cost.step_time_s)
        assert min(parts) >= 0
        tokens = 16 * 4096
        cards_used = fields.get("cards", 8)
        assert step_cost.tokens_per_second_per_card == pytest.approx(
            tokens / step_cost.step_time_s / cards_used
        )
        assert 0 < step_cost.mfu < 1


def test_what_makes_a_step_faster():
    slow = step()
    assert step(overlap="mc2").step_time_s < slow.step_time_s
    assert step(overlap="mc2").hidden > 0 == slow.hidden
    assert slow.step_time_s > step(mask="documents").step_time_s


@pytest.mark.paddlenlp
def test_recompute_is_the_forward_pass_again():
    layers = {"full": 1.0, "full_attn": 0.45, "core_attn": 0.1}
    forward = step().step_time_s / 3
    for granularity, share in layers.items():
        again = step(recompute=True, recompute_granularity=granularity)
        assert again.compute["recompute"] < 1.2 * share * forward
        assert again.step_time_s - step().step_time_s >= again.compute["recompute"] * 0.99


def test_pieces_limit_what_the_pipelined_overlap_hides():
    perfect = dataclasses.replace(GUESS, hidden=1.0)
    layout = Layout(
        cards=8, tensor_parallel_degree=8, sequence_parallel=True, global_batch_size=8, overlap="pipelined"
    )
    cut = cost.step_time(LLAMA, layout, CARD, perfect)
    whole = cost.step_time(LLAMA, dataclasses.replace(layout, overlap="mc2"), CARD, perfect)
    assert cut.hidden == pytest.approx(0.75 * whole.hidden)


def test_small_models_wait_for_the_host():
    small = ModelShape.of("llama-tiny")
    layout = Layout(cards=1, max_seq_length=128, global_batch_size=4)
    assert cost.step_time(small, layout, CARD, GUESS).host > 0 == step().host


def test_every_figure_of_a_card_has_a_source():
    data = cards.read("cards.json")
    for name, record in data["cards"].items():
        optional = {"fp16_tflops", "tflops_elsewhere"} & record.keys()
        for figure in ("tflops", "memory", "bandwidth", *optional):
            assert len(record[f"{figure}_source"]) > 10, (name, figure)
        card = cards.card(name)
        assert (
            100e12 < card.peak < 1e15
            and card.memory >= 32 << 30
            and card.sustained_bandwidth < card.bandwidth
        )
    for name, reason in data["unsupported"].items():
        assert "https://" in reason or "public" in reason
        for alias in (name, name.removeprefix("ascend"), name.upper()):
            with pytest.raises(ValueError, match="910c"):
                cards.card(alias)
    for name, record in cards.read("links.json")["links"].items():
        for figure in ("bandwidth", "efficiency", "latency"):
            assert record[f"{figure}_source"], (name, figure)
    assert cards.card("910B3") is cards.card("910B3") and cards.card("910b3").name == "ascend910b3"


def test_unknown_cards_get_a_sentence():
    with pytest.raises(ValueError, match=r"--card is 910b9\b.*910b, 910b1, .*910b"):
        cards.card("910b9")
    with pytest.raises(ValueError, match=r"--card is empty\b.*910b, .*910c[^;]*$"):
        cards.card("")


def test_efficiency_falls_with_a_fixed_batch_as_that_of_llama_3():
    """arXiv 2407.21783, table 4: 8,192 cards reach 430 TFLOPS, 16,384 with the same 16M tokens 400."""
    chunks = 8  # of one layer on each of 16 stages; 2048 rows of 8K tokens on 64 and 128 replicas

    def share(replicas):
        whole, bubble = cost.pipeline([1.0] * 16, 2048 // replicas, chunks)
        return 1 - bubble / whole

    assert share(128) / share(64) == pytest.approx(400 / 430, abs=0.025)
