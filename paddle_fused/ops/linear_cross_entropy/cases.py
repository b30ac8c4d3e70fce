"""Cases of linear_cross_entropy."""

import numpy as np

from paddle_fused.paddle_release import min_tokens

from ..case import OpCase
from .op import linear_cross_entropy

IGNORED = -100


def _golden(arrays, reduction, transpose_weight):
    hidden, labels = arrays["hidden"], arrays["labels"]
    logits = hidden @ (arrays["weight"].T if transpose_weight else arrays["weight"])
    largest = logits.max(-1, keepdims=True)
    lse = (largest + np.log(np.exp(logits - largest).sum(-1, keepdims=True)))[..., 0]
    counts = labels != IGNORED
    chosen = np.take_along_axis(logits, np.where(counts, labels, 0)[..., None], -1)[..., 0]
    losses = (lse - chosen) * counts
    if reduction == "none":
        return (losses,)
    return (losses.sum() / (max(counts.sum(), 1) if reduction == "mean" else 1),)


def _case(tokens, width, vocabulary, reduction="mean", transpose_weight=False, ignored=3) -> OpCase:
    """Every ``ignored``-th token is ignored; 1 ignores all of them."""

    def arrays(random):
        labels = random.integers(0, vocabulary, tokens)
        labels.reshape(-1)[ignored - 1 :: ignored] = IGNORED
        shape = (vocabulary, width) if transpose_weight else (width, vocabulary)
        return {
            "hidden": random.standard_normal((*tokens, width)),
            "weight": random.standard_normal(shape) / np.sqrt(width),
            "labels": labels,
        }

    layout = "[V, H]" if transpose_weight else "[H, V]"
    return OpCase(
        operator="linear_cross_entropy",
        name=f"tokens {list(tokens)}, H {width}, V {vocabulary}, weight {layout}, {reduction}"
        + (", all ignored" if ignored == 1 else ""),
        arrays=arrays,
        call=lambda t: (
            linear_cross_entropy(
                t["hidden"], t["weight"], t["labels"], reduction=reduction, transpose_weight=transpose_weight
            ),
        ),
        golden=lambda arrays: _golden(arrays, reduction, transpose_weight),
        gradients=("hidden", "weight"),
    )


CASES = [
    _case((64,), 48, 1000),
    _case((64,), 48, 1000, "none", transpose_weight=True),
    _case((3, 17), 33, 101, "none"),
    _case((3, 17), 33, 101, "sum", transpose_weight=True),
    _case((5,), 8, 1, "sum"),
    _case((6,), 8, 11, "mean", ignored=1),
    _case((1,), 1, 2),
    _case((5000,), 4, 900),  # the host kernel uses two chunks of logits, the second one narrow
    _case((min_tokens(),), 8, 11, "none"),
    _case((2, min_tokens()), 8, 11, "mean"),
]


def _random_case(random) -> OpCase:
    return _case(
        tuple(random.integers(min_tokens(), 6, random.integers(1, 4)).tolist()),
        int(random.integers(1, 40)),
        int(random.integers(1, 300)),
        str(random.choice(["mean", "sum", "none"])),
        transpose_weight=bool(random.integers(2)),
        ignored=int(random.integers(1, 6)),
    )


RANDOM_CASE = {"linear_cross_entropy": _random_case}
