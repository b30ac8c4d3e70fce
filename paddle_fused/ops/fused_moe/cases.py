"""Cases of fused_moe. T tokens, H hidden, I intermediate, K experts of a token, E experts."""

import numpy as np

from paddle_fused.paddle_release import min_tokens

from ..case import OpCase
from .op import fused_moe


def _case(tokens, hidden, inner, experts, top_k, router, norm_topk_prob=True) -> OpCase:
    """``router``: "logits", "float32 logits" or "probs"."""

    def arrays(random):
        drawn = {
            "hidden": random.standard_normal((tokens, hidden)),
            "gate_up_weight": random.standard_normal((experts, hidden, 2 * inner)) / np.sqrt(hidden),
            "down_weight": random.standard_normal((experts, inner, hidden)) / np.sqrt(inner),
        }
        # Logits a quarter apart: exact in 16 bits, and no tie decides who is among the top.
        apart = np.array([random.permutation(experts) / 4 for _ in range(tokens)]).reshape(tokens, experts)
        if router == "probs":
            drawn["router"] = random.uniform(0, 1, (tokens, top_k))
            drawn["indices"] = np.argsort(apart, axis=1)[:, :top_k].astype(np.int64)
        else:
            drawn["router"] = apart
        return drawn

    def call(t):
        chosen = (t["router"], t["indices"]) if router == "probs" else t["router"]
        return (fused_moe(t["hidden"], chosen, t["gate_up_weight"], t["down_weight"], top_k, norm_topk_prob),)

    def golden(arrays):
        probs, indices = arrays["router"], arrays.get("indices")
        if indices is None:
            weights = np.exp(probs - probs.max(axis=1, keepdims=True, initial=-np.inf))
            weights = weights / weights.sum(axis=1, keepdims=True)
            indices = np.argsort(-probs, axis=1, kind="stable")[:, :top_k]
            probs = np.take_along_axis(weights, indices, axis=1)
            probs = probs / probs.sum(axis=1, keepdims=True) if norm_topk_prob else probs
        both = np.einsum("th,tkhi->tki", arrays["hidden"], arrays["gate_up_weight"][indices])
        gate, up = both[..., :inner], both[..., inner:]
        made = np.einsum("tki,tkih->tkh", gate / (1 + np.exp(-gate)) * up, arrays["down_weight"][indices])
        return ((made * probs[..., None]).sum(1),)

    return OpCase(
        operator="fused_moe",
        name=f"{tokens} tokens, H {hidden}, I {inner}, {top_k} of {experts} experts, {router}"
        + ("" if norm_topk_prob else ", not normalised"),
        arrays=arrays,
        call=call,
        golden=golden,
        gradients=("hidden", "router", "gate_up_weight", "down_weight"),
        keep_float32=("router",) if router == "float32 logits" else (),
    )


CASES = [
    _case(7, 16, 24, 4, 2, "logits"),
    _case(7, 16, 24, 4, 2, "logits", norm_topk_prob=False),
    _case(9, 33, 17, 3, 1, "float32 logits"),
    _case(40, 16, 16, 1, 1, "logits"),
    _case(12, 20, 12, 8, 3, "probs"),
    _case(min_tokens(), 8, 8, 4, 2, "logits"),
]


def _random_case(random) -> OpCase:
    experts = int(random.integers(1, 6))
    return _case(
        int(random.integers(min_tokens(), 8)),
        int(random.integers(1, 20)),
        int(random.integers(1, 20)),
        experts,
        int(random.integers(1, experts + 1)),
        str(random.choice(["logits", "float32 logits", "probs"])),
        bool(random.integers(2)),
    )


RANDOM_CASE = {"fused_moe": _random_case}
