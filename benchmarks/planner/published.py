"""Published runs, as shapes and layouts that the cost model can predict."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

from llm_npu.core.cards import card, read
from llm_npu.plan.cost import StepTime
from llm_npu.plan.shape import ModelShape, latent_attention

from .programs.layout import PublishedLayout
from .programs.program import ProgramEfficiencies, published_step_time
from .programs.software import FUSED_ACCUMULATION, MEGATRON_DISPATCHER, STACKS, Software

DATA = Path(__file__).parent
SERVER = "910b"  # Atlas 900 A2 PODc; data/cards.json says why this card
# UNNAMED: neither fitted nor judged.
FITTED, HELD_OUT, UNNAMED = "fitted", "held out", "card not named"


@dataclass(frozen=True)
class Point:
    """A published run: its configuration and its published results.

    ``measured``: tokens/s of a card. ``half``: FITTED, HELD_OUT or UNNAMED.
    """

    name: str
    stack: str
    card: str
    shape: ModelShape
    layout: PublishedLayout
    software: Software
    measured: float
    half: str
    script: str

    def model(self) -> tuple[int, ...]:
        """Sizes of the layers; runs with equal sizes belong to the same model."""
        shape = self.shape
        return shape.hidden_size, shape.intermediate_size, shape.num_hidden_layers

    def predict(self, efficiencies: ProgramEfficiencies) -> StepTime:
        return published_step_time(self.shape, self.layout, card(self.card), efficiencies, self.software)


def data() -> dict:
    """The data file: ``points``, ``gains`` and their ``sources``."""
    return read("published.json", DATA)


def half(run: dict) -> str:
    """The half of a run, by the rule in the data file."""
    if run.get("card_unnamed"):
        return UNNAMED
    odd = hashlib.sha256(run["name"].encode()).digest()[0] % 2
    return HELD_OUT if odd and not run.get("seen") else FITTED


def _mixture(run: dict) -> dict[str, int | None]:
    """The fields of the shape that differ in a mixture of experts and with latent attention."""
    fields = {"intermediate_size": run["ffn_hidden_size"], "head_dim": run.get("head_dim")}
    if experts := run.get("num_experts"):
        fields |= {
            "num_experts": experts,
            "experts_per_token": run["experts_per_token"],
            "intermediate_size": run.get("moe_intermediate_size", run["ffn_hidden_size"]),
            "shared_expert_intermediate_size": run.get("shared_expert_intermediate_size", 0),
            "dense_layers": run.get("first_dense_layers", 0),
            "dense_intermediate_size": run["ffn_hidden_size"],
        }
    if "kv_lora_rank" in run:
        fields |= latent_attention(SimpleNamespace(**run))
        fields["head_dim"] = run.get("head_dim", fields["head_dim"])  # as padded for the kernel
    return fields


def _point(run: dict) -> Point:
    layers, stages = run["num_layers"], run["pipeline_parallel"]
    window = run.get("sliding_window")
    shape = ModelShape(
        **_mixture(run),
        name=run["model"],
        model_type="llama",
        vocab_size=run["vocab_size"],
        hidden_size=run["hidden_size"],
        num_hidden_layers=layers,
        num_attention_heads=run["num_attention_heads"],
        num_key_value_heads=run["num_query_groups"],
        max_position_embeddings=run["seq_length"],
        tie_word_embeddings=not run["untied"],
        attention_bias=run["qkv_bias"],
        sliding_window=window,
    )
    tp = run["tensor_parallel"]
    chunks = run.get("virtual_stages", 1)
    if "layers_per_virtual_stage" in run:
        chunks = layers // stages // run["layers_per_virtual_stage"]
    again = run.get("recompute")
    own = run.get("stage_layers")
    layout = PublishedLayout(
        cards=run["cards"],
        tensor_parallel_degree=tp,
        pipeline_parallel_degree=stages,
        virtual_pp_degree=chunks,
        context_parallel_degree=run.get("context_parallel", 1),
        expert_parallel_degree=run.get("expert_parallel", 1),
        sharding="stage1" if run["distributed_optimizer"] else "",
        sequence_parallel=run["sequence_parallel"] and tp > 1,
        recompute=bool(again),
        recompute_granularity=again["granularity"] if again else "full",
        recomputed=tuple(again["layers"]) if again else None,
        layers_of_stages=tuple(own) if own else None,
        max_seq_length=run["seq_length"],
        per_device_train_batch_size=run["micro_batch_size"],
        global_batch_size=run["global_batch_size"],
        overlap="mc2" if run["mc2"] and tp > 1 else "serial",
        fused=frozenset(run["fused"]) | ({"moe"} if run.get("moe_token_permute_fusion") else set()),
        mask="band" if window else "causal",
    )
    base = STACKS[run["stack"]]
    software = replace(
        base,
        overlaps_gradients=run["overlap_grad_reduce"],
        overlaps_weights=run.get("overlap_param_gather", base.overlaps_weights),
        interleaves=run.get("fine_grain_interleave", 1) * run.get("micro_batch_interleave", 1),
        kernels=run.get("kernels", base.kernels),
        dispatcher=run.get("moe_token_dispatcher", MEGATRON_DISPATCHER if base.dispatcher else ""),
        capacity=run.get("moe_capacity_factor", base.capacity),
        accumulate=FUSED_ACCUMULATION if run.get("gradient_accumulation_fusion") else base.accumulate,
        grouped=run.get("moe_grouped_gemm", False),
    )
    return Point(
        name=run["name"],
        stack=run["stack"],
        card=run.get("card", SERVER),
        shape=shape,
        layout=layout,
        software=software,
        measured=run["tokens_per_s_per_card"],
        half=half(run),
        script=run["script"],
    )


@cache
def points() -> tuple[Point, ...]:
    """The published runs that the models can describe."""
    return tuple(_point(run) for run in data()["points"] if "left_out" not in run)


def timed(half_of: str) -> tuple[Point, ...]:
    """The runs of a half."""
    return tuple(point for point in points() if point.half == half_of)
