"""Published runs, as shapes and layouts that the cost model can predict."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from llm_npu.core.cards import Card, read
from llm_npu.plan.cost import StepTime, step_time
from llm_npu.plan.layout import Layout
from llm_npu.plan.shape import ModelShape
from llm_npu.plan.step_model.roofline import Efficiencies
from llm_npu.plan.step_model.stage import Software

DATA = Path(__file__).parent


@dataclass(frozen=True)
class Point:
    """A published run: its configuration, and ``measured``, tokens/s of a card. ``goal``: one of the eight by
    which the model is judged."""

    name: str
    shape: ModelShape
    layout: Layout
    software: Software
    measured: float
    goal: bool
    script: str

    def twin(self, other: Point) -> bool:
        """Whether both have the same layers and degrees, so that one predicts the other."""
        return self._layers() == other._layers()

    def _layers(self) -> tuple:
        shape, layout = self.shape, self.layout
        sizes = (shape.hidden_size, shape.intermediate_size, shape.num_attention_heads)
        degrees = (layout.tensor_parallel_degree, layout.pipeline_parallel_degree)
        return (*sizes, shape.num_key_value_heads, *degrees, layout.max_seq_length)

    def predict(self, efficiencies: Efficiencies, on: Card) -> StepTime:
        return step_time(self.shape, self.layout, on, efficiencies, self.software)


def data() -> dict:
    """The data file: ``points``, ``gains`` and their sources."""
    return read("published.json", DATA)


def _point(found: dict, as_scripted: bool) -> Point:
    layers, stages = found["num_layers"], found["pipeline_parallel"]
    window = found.get("sliding_window")
    shape = ModelShape(
        name=found["model"],
        model_type="llama",
        vocab_size=found["vocab_size"],
        hidden_size=found["hidden_size"],
        intermediate_size=found["ffn_hidden_size"],
        num_hidden_layers=layers,
        num_attention_heads=found["num_attention_heads"],
        num_key_value_heads=found["num_query_groups"],
        max_position_embeddings=found["seq_length"],
        tie_word_embeddings=not found["untied"],
        attention_bias=found["qkv_bias"],
        sliding_window=window,
    )
    tp = found["tensor_parallel"]
    mc2 = found.get("mc2_in_script", found["mc2"]) if as_scripted else found["mc2"]
    chunks = (
        layers // stages // found["layers_per_virtual_stage"] if "layers_per_virtual_stage" in found else 1
    )
    layout = Layout(
        cards=found["cards"],
        tensor_parallel_degree=tp,
        pipeline_parallel_degree=stages,
        virtual_pp_degree=chunks,
        sharding="stage1" if found["distributed_optimizer"] else "",
        sequence_parallel=found["sequence_parallel"] and tp > 1,
        max_seq_length=found["seq_length"],
        per_device_train_batch_size=found["micro_batch_size"],
        global_batch_size=found["global_batch_size"],
        overlap="mc2" if mc2 and tp > 1 else "serial",
        fused=frozenset(found["fused"]),
        mask="band" if window else "causal",
    )
    own = found.get("stage_layers")
    software = Software(
        gathers_again=True,
        scatters=True,
        accumulate=10,
        asynchronous=True,
        overlaps_gradients=found["overlap_grad_reduce"],
        stage_layers=tuple(own) if own else None,
    )
    return Point(
        found["model"],
        shape,
        layout,
        software,
        found["tokens_per_s_per_card"],
        found["goal"],
        found["script"],
    )


@cache
def points(as_scripted: bool = False) -> tuple[Point, ...]:
    """The published runs that the model can describe.

    ``as_scripted``: with MC2 wherever a script names it, even if the data file says why it had no effect.
    """
    runs = data()["points"]
    return tuple(_point(found, as_scripted) for found in runs if "left_out" not in found)
