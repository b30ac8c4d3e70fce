"""The plan of a parallel model as data: placements of each parameter, and of activations at a few points.

PaddleNLP's LlamaForCausalLM is written for one device. A plan shards it without changing its code: rules
place parameters by name, and points in the model place activations. Between two points, the SPMD rules of the
operators apply.

B batch, S sequence, H hidden, V vocabulary. ``dp`` splits B everywhere; a plan only describes ``tp``.

    embedding [V, H] by H  ->  hidden, whole (or split by S: sequence parallel)
    attention: q, k, v by heads; o by rows, so that each process has a partial sum
    MLP: gate and up by columns, down by rows: a partial sum again
    output layer [H, V] by V, from whole hidden states; the loss exchanges three numbers per token
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import paddle.distributed as dist

from llm_npu.core.errors import UserError

WHOLE = None


@dataclass(frozen=True)
class Rule:
    """tp splits parameters with names that match ``pattern`` along ``dim``, or replicates them for None."""

    pattern: str
    dim: int | None


@dataclass(frozen=True)
class Point:
    """tp splits the activations of layers with names that match ``pattern`` along ``dim``.

    ``at`` is "input" for the first argument, "output" for the (first) result.
    """

    pattern: str
    at: str
    dim: int | None

    def __post_init__(self):
        if self.at not in ("input", "output"):
            raise UserError(f"a point is at {self.at!r}; accepted: input, output")


@dataclass(frozen=True)
class ParallelPlan:
    """The placements of a model.

    Attributes:
        between: the dimension along which tp splits the hidden states sent between pipeline stages.
        divided: the fields of the model's configuration that tp must divide.
    """

    rules: tuple[Rule, ...]
    points: tuple[Point, ...]
    between: int | None
    divided: tuple[str, ...]

    def dim_of(self, name: str) -> int | None:
        """The dimension along which tp splits the parameter ``name``. Exactly one rule must match."""
        rules = [rule for rule in self.rules if re.fullmatch(rule.pattern, name)]
        if len(rules) != 1:
            what = "no rule of the plan matches" if not rules else f"{len(rules)} rules of the plan match"
            raise UserError(f"{what} the parameter {name!r}; exactly one must match")
        return rules[0].dim

    def check(self, config, tp: int) -> None:
        """Raises ValueError if tp does not divide a split field of ``config``."""
        for name in self.divided:
            if getattr(config, name) % tp:
                raise UserError(
                    f"tp is {tp}, which does not divide the model's {name} {getattr(config, name)}; choose "
                    "another degree"
                )


_COLUMNS = r"(self_attn\.(q|k|v)_proj|mlp\.(gate|up)_proj)\.weight"
_ROWS = r"(self_attn\.o_proj|mlp\.down_proj)\.weight"


def llama(sequence_parallel: bool = False) -> ParallelPlan:
    """The plan of PaddleNLP's LlamaForCausalLM; ``sequence_parallel`` as in ``dense``."""
    return dense("llama", sequence_parallel)


def dense(prefix: str, sequence_parallel: bool = False) -> ParallelPlan:
    """The plan of a dense PaddleNLP model with separate projections.

    Args:
        prefix: the name of the model's decoder.
        sequence_parallel: split the hidden states between attention and MLP along S instead of replicating
            them. Norms and residuals are then computed once; all_gather and reduce_scatter replace
            all_reduce.
    """
    between = 1 if sequence_parallel else WHOLE
    layer = rf"{prefix}\.layers\.\d+"
    return ParallelPlan(
        rules=(
            Rule(rf"{prefix}\.embed_tokens\.weight", 1),
            Rule(rf"{layer}\.{_COLUMNS}", 1),
            Rule(rf"{layer}\.self_attn\.(q|k|v)_proj\.bias", 0),
            Rule(rf"{layer}\.{_ROWS}", 0),
            Rule(rf"{layer}\.(input|post_attention)_layernorm\.weight", WHOLE),
            Rule(rf"{prefix}\.norm\.weight", WHOLE),
            Rule(r"lm_head\.weight", 1),
        ),
        points=(
            Point(rf"{prefix}\.embed_tokens", "output", between),
            Point(rf"{layer}\.(self_attn|mlp)", "input", WHOLE),
            Point(rf"{layer}\.(self_attn|mlp)", "output", between),
            Point(rf"{prefix}\.norm", "output", WHOLE),
        ),
        between=between,
        divided=(
            "hidden_size",
            "num_attention_heads",
            "num_key_value_heads",
            "intermediate_size",
            "vocab_size",
        ),
    )


def placements(dp: int | None, tp: int | None) -> list:
    """Placements on a mesh (dp, tp) from the dimensions that its axes split."""
    return [dist.Replicate() if dim is None else dist.Shard(dim) for dim in (dp, tp)]
