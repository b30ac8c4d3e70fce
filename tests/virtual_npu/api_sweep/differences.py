"""What does not agree with the CPU place, or cannot be compared with it, each with the reason.

Both lists are tested: an entry that no longer holds fails the test, so that neither can rot.
"""

from __future__ import annotations

from dataclasses import dataclass

from api_sweep.case import Case, case, layer
from api_sweep.families.tensors import sparse
from api_sweep.inputs import constant, fraction, integers, normal, wide
from paddle_fused.paddle_release import before


@dataclass(frozen=True)
class Difference:
    """``finding``: a regular expression for what the comparison says; ``reason``: for the reader."""

    cases: tuple[str, ...]
    finding: str
    reason: str


DIFFERENCES = [
    Difference(
        ("paddle.linalg.lstsq", "paddle.linalg.lstsq[strided]"),
        "Only support lstsq api for CPU or CUDA device",
        "Paddle's Python code refuses every device but CPU and CUDA before a kernel is asked for",
    ),
    Difference(
        ("paddle.optimizer.Adam[SelectedRows]", "paddle.optimizer.Adam[lazy SelectedRows]"),
        r"outputs\[0\]: 12 of 28 elements differ",
        "Upstream Paddle's CPU kernel for sparse gradients advances the powers of beta before use, so "
        "that its first steps are too short; on npu they equal those of the dense Adam",
    ),
    Difference(
        ("paddle.optimizer.AdamW",),
        rf"outputs\[0\]: {'1' if before(3, 3) else ''}\d of 15 elements differ",
        "One pass over all arrays on all threads, as in 16 bits, instead of Paddle's CPU kernel on one "
        "thread; it rounds elsewhere, and both follow the rule to a few roundings",
    ),
    Difference(
        (
            *(f"paddle.nn.functional.gelu{kind}" for kind in ("", "[strided]", "[to_static]")),
            *(f"paddle.nn.functional.gelu[tanh{kind}]" for kind in ("", ", strided", ", to_static")),
            "paddle.nn.GELU",
        ),
        r"outputs\[0\]: 1\d of 18 elements differ",
        "One pass over memory on all threads instead of the several passes that Paddle's CPU kernel makes on "
        "one; it rounds elsewhere, and for negative x it computes the small share itself instead of 1 + erf, "
        "which cancels",
    ),
    Difference(
        tuple(case.id for case in sparse.FALLING_BACK),
        r"^outputs or gradients are on Place\(cpu\)$",
        "No sparse kernel is registered for npu, as in paddle-custom-npu, and Paddle itself falls back to "
        "the CPU place: values and gradients are equal, but stay there",
    ),
]
if before(3, 3):
    DIFFERENCES.append(
        Difference(
            ("paddle.nn.ClipGradByGlobalNorm",),
            r"outputs\[1\]: 1 of 3 elements differ",
            "Paddle before 3.3 sums the squares of the gradients in another order",
        )
    )
BY_CASE = {name: difference for difference in DIFFERENCES for name in difference.cases}


@dataclass(frozen=True)
class NotOnCpu:
    """An API with nothing to compare to: upstream Paddle has no working CPU kernel for it."""

    case: Case
    error: str


NOT_ON_CPU = [
    NotOnCpu(case("nn.functional.rms_norm", normal(3, 6), [6], normal(6)), "is not registered"),
    NotOnCpu(layer("SyncBatchNorm", (3,), normal(4, 3, 5, 2)), "is not registered"),
    NotOnCpu(
        case("nn.functional.margin_cross_entropy", fraction(4, 6), integers(6, 4)),
        "Do not support margin_cross_entropy for cpu",
    ),
    NotOnCpu(case("incubate.softmax_mask_fuse_upper_triangle", wide(2, 2, 4, 4)), "is_gpu_place"),
    NotOnCpu(
        case("incubate.nn.functional.fused_linear", normal(3, 4), normal(4, 5), normal(5)),
        "is not registered",
    ),
    NotOnCpu(
        case("incubate.nn.functional.fused_matmul_bias", normal(3, 4), normal(4, 5), normal(5)),
        "is not registered",
    ),
    NotOnCpu(
        case("incubate.nn.functional.fused_linear_activation", normal(3, 4), normal(4, 5), normal(5)),
        "fused_gemm_epilogue",
    ),
    NotOnCpu(
        case("incubate.nn.functional.fused_rotary_position_embedding", constant(normal(2, 5, 2, 4))),
        "is not registered",
    ),
]
