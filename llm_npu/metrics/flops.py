"""MFU, model FLOPs utilization: the share of a device's peak that the model's own operations reach.

    MFU = tokens/s * F / (devices * peak)

    F = 6 N + 12 L H Q T       floating-point operations of a token, forward and backward

N weights that multiply a token (no embedding table; of a mixture's experts those that a token is sent to),
L layers, H heads of size Q, T tokens in a row. What recompute does again is not counted, nor is it taken into
account that causal attention needs half of its products. Under LoRA frozen weights get no gradient, and 6 N
becomes 4 N + 2 N_trained. Source: PaLM, arXiv 2204.02311, appendix B.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import paddle

from llm_npu import ranks
from llm_npu.config import RunConfig
from llm_npu.peak_flops import CARDS, stated

SIZE, ROUNDS = 1024, 7  # of the product that measures this device
TERA = 1e12


@dataclass(frozen=True)
class Utilization:
    """``peak``: of one device, in operations a second, as ``source`` says. ``per_token``: operations."""

    per_token: float
    peak: float
    devices: int
    source: str

    def of(self, tokens_per_s: float) -> float:
        """The share of the peak, 1 for all of it, at which the whole run reaches ``tokens_per_s``."""
        return tokens_per_s * self.per_token / (self.devices * self.peak)

    def __str__(self) -> str:
        return f"{self.peak / TERA:.4g} TFLOP/s a device, {self.source}"


def utilization(run: RunConfig, model) -> Utilization | None:
    """What ``--peak_tflops`` asks for; None without it. Collective: each process measures its device.

    Attention is counted only where every token sees its row, up to itself: with ``--packing stream``.
    """
    asked = run.training.peak_tflops
    if asked is None:
        return None
    whole_rows = run.data.packing == "stream" and not run.data.reset_attention_mask
    tflops = stated(asked)
    if tflops is None:
        dtype = "bfloat16" if run.training.bf16 else "float16" if run.training.fp16 else "float32"
        peak = float(ranks.table([measured_flops(dtype)]).mean())
        source = f"measured: {SIZE} x {SIZE} products in {dtype} on {paddle.device.get_device()}"
    else:
        peak = tflops * TERA
        source = f"{asked}, as published" if asked in CARDS else "as given"
    trained = None
    if run.model.finetuning_type == "lora":
        trained = sum(parameter.size for parameter in model.parameters() if not parameter.stop_gradient)
    per_token = flops_per_token(model.config, run.data.max_seq_length if whole_rows else 0, trained)
    return Utilization(per_token, peak, ranks.count(), source)


def flops_per_token(config, length: int, trained: int | None = None) -> float:
    """F for rows of ``length`` tokens; without its attention term for 0.

    ``trained``: how many weights are trained beside frozen ones (LoRA's), all by default.
    """
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    weights = config.hidden_size * config.vocab_size + layers * _weights_of_layer(config, heads, head_dim)
    products = 6 * weights if trained is None else 4 * (weights + trained) + 2 * trained
    return products + 12 * layers * heads * head_dim * length


def _weights_of_layer(config, heads: int, head_dim: int) -> int:
    hidden = config.hidden_size
    key_value_heads = getattr(config, "num_key_value_heads", None) or heads
    attention = 2 * hidden * head_dim * (heads + key_value_heads)
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    if not experts:
        return attention + 3 * hidden * config.intermediate_size
    size = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
    shared = getattr(config, "shared_expert_intermediate_size", None)
    router = hidden * experts + (hidden if shared else 0)
    return attention + router + 3 * hidden * (config.num_experts_per_tok * size + (shared or 0))


def measured_flops(dtype: str) -> float:
    """Operations a second of matrix products in ``dtype`` on this process's device, the best of some."""
    numbers = np.random.default_rng(0)  # not Paddle's, whose state belongs to the run
    left, right = (paddle.to_tensor(numbers.random((SIZE, SIZE), np.float32)).astype(dtype) for _ in range(2))
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        float(paddle.matmul(left, right)[0, 0].astype("float32"))  # waits for the device
        best = min(best, time.perf_counter() - begin)
    return 2 * SIZE**3 / best
