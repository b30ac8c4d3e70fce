"""Which operators of a Llama ran fused, and which ran as separate small operators."""

from __future__ import annotations

import re
from dataclasses import dataclass

from paddle_fused import registry

from . import classes
from .measure import Operator


@dataclass(frozen=True)
class _Fusion:
    """A fused operator, with name patterns (as normalized by ``classes.key``) for it and its parts.

    The parts only count as an unfused operator if each of ``marks`` ran, because parts are also used
    elsewhere. If the fused operator ran as well, ``mark_beside_fused`` must also have run.
    """

    name: str
    fused: str
    marks: tuple[str, ...]
    parts: str
    fix: str
    mark_beside_fused: str = ""


def _surgery(operator: str) -> str:
    switch = registry.find(operator).switch
    return f"llm_npu.surgery.apply_fused_kernels(model), or --{switch} true for scripts/run_llama_npu.py"


_FUSIONS = (
    _Fusion(
        "attention",
        r"flashatt|attentionscore|inferattention|scaleddotproduct|fusedattention",
        (r"^softmax(v2|grad|ext)*$", r"^(batch)?matmul(v[23])?(grad)?$"),
        r"^softmax(v2|grad|ext)*$|^batchmatmul(v[23])?(grad)?$",
        _surgery("flash_attention"),
        r"^batchmatmul",  # without it, the softmax belongs to the router of an MoE layer
    ),
    _Fusion(
        "RMSNorm",
        r"rmsnorm",
        (r"^rsqrt(grad)?$",),
        r"^(rsqrt|pow|square|reducemean|reducemeand|mean)(grad)?$",
        _surgery("rms_norm"),
    ),
    _Fusion(
        "SwiGLU",
        r"swiglu",
        (r"^(silu|swish)(grad)?$",),
        r"^(silu|swish)(grad)?$",
        _surgery("swiglu"),
    ),
    _Fusion(
        "rotary embedding",
        r"rotary|fusedrope|^rope",
        # Paddle negates with scale. Every model scales and concatenates, but not all have gated activations.
        (r"^neg(ative)?(grad)?$|^scale$|^muls$", r"^concat(v2|d)?(grad)?$", r"^swiglu|^silu|^swish"),
        r"^neg(ative)?(grad)?$|^concat(v2|d)?(grad)?$",
        _surgery("apply_rotary"),
        r"^neg(ative)?(grad)?$",
    ),
    _Fusion(
        "AdamW",
        r"applyadamw|fusedadamw|^adamw",
        (r"^applyadamd?$",),
        r"^applyadamd?$",
        "paddle_fused.FusedAdamW, which updates in a single kernel",
    ),
)


@dataclass(frozen=True)
class Coverage:
    """The share of an operator that ran fused; times in ns.

    ``parts`` lists the small operators that computed the rest. Their time is a lower bound, because additions
    and multiplications cannot be attributed to one operator.
    """

    name: str
    fused_calls: int
    fused_time: int
    unfused_calls: int
    unfused_time: int
    parts: tuple[str, ...]
    fix: str

    @property
    def status(self) -> str:
        """In words."""
        if self.unfused_time:
            return "partly fused" if self.fused_time else "not fused"
        return "fused" if self.fused_time else "did not run"


def coverage(operators: list[Operator]) -> list[Coverage]:
    """One entry per fused operator that a Llama can use."""
    entries = []
    keys = [(classes.key(operator.name), operator) for operator in operators]
    for fusion in _FUSIONS:
        fused = [operator for key, operator in keys if re.search(fusion.fused, key)]
        marks = (*fusion.marks, fusion.mark_beside_fused) if fused else fusion.marks
        complete = all(any(re.search(mark, key) for key, _ in keys) for mark in marks)
        parts = [operator for key, operator in keys if complete and re.search(fusion.parts, key)]
        entries.append(
            Coverage(
                fusion.name,
                sum(operator.calls for operator in fused),
                sum(operator.time for operator in fused),
                sum(operator.calls for operator in parts),
                sum(operator.time for operator in parts),
                tuple(dict.fromkeys(operator.name for operator in parts)),
                fusion.fix,
            )
        )
    return entries
