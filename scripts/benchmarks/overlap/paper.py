"""The planner's model with a card's published figures: 8 cards of a node, N nodes. Nothing here is measured.

Figures, for a card of an Atlas 800T A2 (8 cards, HCCS full mesh):

    peak in 16 bits   313 TFLOP/s, which public estimators take for the 910B series; products reach SHARE
    HCCS              392 GB/s over 7 links, both directions: 28 GB/s in each direction of a link
    RoCE              200 Gb/s = 25 GB/s (both: Huawei, Atlas 800T A2, EDOC1100317202)

SHARE: MindSpeed-LLM's README (2025-03) reports 68.8 % of the peak for training LLaMA2-7B on 8 cards. LATENCY
is an assumption. Tensor parallelism stays inside a node; nodes add the sums of gradients of data parallelism
over RoCE, of which as much is taken to be hidden as the backward pass is long. That is the best case.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table

from llm_npu.overlap import Product, Setting
from llm_npu.overlap.pipeline_model import Rates, predict

PEAK, SHARE = 313e12, 0.688
HCCS_LINK, ROCE, LATENCY = 28e9, 25e9, 20e-6
CARDS, DTYPE = 8, "bfloat16"
SETTINGS = ("serial", "pipelined:2", "pipelined:4", "pipelined:8", "pipelined:16")


@dataclass(frozen=True)
class Model:
    """A decoder's linear layers: sizes, and the tokens of a step on one node."""

    name: str
    hidden: int
    intermediate: int
    layers: int
    key_value: int
    tokens: int


MODELS = (
    Model("Llama2-7B", 4096, 11008, 32, 4096, 4096),
    Model("Llama2-13B", 5120, 13824, 40, 5120, 4096),
    Model("Llama2-70B", 8192, 28672, 80, 1024, 4096),
)


def products(model: Model, cards: int) -> list[tuple[Product, int]]:
    """Those of a layer, sequence parallel: (one that communicates, products that can only follow it)."""
    local = model.tokens // cards
    made = []
    for wide in ((model.hidden + 2 * model.key_value) // cards, 2 * model.intermediate // cards):
        made.append((Product("all_gather", local, model.hidden, wide, DTYPE, cards), 0))
        made.append((Product("reduce_scatter", model.tokens, wide, model.hidden, DTYPE, cards, True), 0))
    for deep in (model.hidden // cards, model.intermediate // cards):
        made.append((Product("reduce_scatter", model.tokens, deep, model.hidden, DTYPE, cards), 0))
        # Backward: the weight's gradient needs all that was gathered.
        made.append((Product("all_gather", local, model.hidden, deep, DTYPE, cards), 1))
    return made


def rates(product: Product, cards: int) -> Rates:
    """A product at SHARE of the peak; collectives over all links of the full mesh at once."""
    seconds = 2 * product.rows_multiplied * product.depth * product.columns / (PEAK * SHARE)
    return Rates(
        product=((product.rows_multiplied, seconds),),
        latency=LATENCY,
        seconds_per_byte=1 / (HCCS_LINK * (cards - 1)),
        work=0.0,
        work_per_byte=0.0,
        copy_per_byte=0.0,
    )


def step(model: Model, setting: str, cards: int = CARDS) -> float:
    """Seconds of the linear layers of a step on one node; ``best``: the best setting of each product."""
    total = 0.0
    for product, following in products(model, cards):
        measured = rates(product, cards)
        times = {name: predict(product, Setting.of(name), measured) for name in SETTINGS}
        total += min(times.values()) if setting == "best" else times[setting]
        total += following * measured.multiply(product.rows_multiplied)
    return model.layers * total


def gradients(model: Model, nodes: int, cards: int = CARDS) -> float:
    """Seconds to sum the gradients of one card's parameters over the nodes."""
    per_layer = model.hidden * (2 * model.hidden + 2 * model.key_value + 3 * model.intermediate)
    sent = 2 * (nodes - 1) / nodes * 2 * model.layers * per_layer / cards
    return sent / ROCE + (LATENCY if nodes > 1 else 0.0)


def records(nodes: tuple[int, ...] = (1, 2, 4, 16)) -> list[dict]:
    found = []
    for model in MODELS:
        serial, best = step(model, "serial"), step(model, "best")
        for count in nodes:
            summed = gradients(model, count)
            serial_step, best_step = (_with_sums(time, summed) for time in (serial, best))
            found.append(
                {
                    "kind": "paper",
                    "model": model.name,
                    "tokens": model.tokens,
                    "cards": CARDS * count,
                    "serial": serial_step,
                    "overlapped": best_step,
                    "gain": 1 - best_step / serial_step,
                    "gradients": summed,
                }
            )
    return found


def _with_sums(step: float, summed: float) -> float:
    """Two thirds of a step are backward: so much of the sums is hidden."""
    return step + max(0.0, summed - 2 / 3 * step)


def table(found: list[dict]) -> Table:
    made = Table(
        title="A model, nothing measured: linear layers of a step, Atlas 800T A2, published figures",
        title_justify="left",
    )
    for heading in (
        "model",
        "tokens/node",
        "cards",
        "serial ms",
        "overlapped ms",
        "gain",
        "gradients' sums ms",
    ):
        made.add_column(heading, justify="left" if heading == "model" else "right")
    for record in found:
        if record["kind"] == "paper":
            milliseconds = (f"{record[key] * 1e3:.1f}" for key in ("serial", "overlapped"))
            gain, summed = f"{record['gain']:.1%}", f"{record['gradients'] * 1e3:.1f}"
            made.add_row(
                record["model"], str(record["tokens"]), str(record["cards"]), *milliseconds, gain, summed
            )
    return made
