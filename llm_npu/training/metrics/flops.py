"""MFU, model FLOPs utilization: the fraction of a device's peak that the model's own operations reach.

    MFU = tokens/s * F / (devices * peak)

with the F of ``llm_npu.models.flops``. Source: PaLM, arXiv 2204.02311, appendix B.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import paddle

from llm_npu.config import RunConfig
from llm_npu.core import ranks
from llm_npu.core.peak_flops import PEAKS, stated
from llm_npu.models.flops import flops_per_token

SIZE, ROUNDS = 1024, 7  # of the product that measures this device
TERA = 1e12


@dataclass(frozen=True)
class Utilization:
    """``per_token``: operations. ``peak``: operations per second of one device, according to ``source``."""

    per_token: float
    peak: float
    devices: int
    source: str

    def of(self, tokens_per_s: float) -> float:
        """The fraction of the peak that ``tokens_per_s`` of the whole run amount to."""
        return tokens_per_s * self.per_token / (self.devices * self.peak)

    def __str__(self) -> str:
        return f"{self.peak / TERA:.4g} TFLOP/s a device, {self.source}"


def utilization(run: RunConfig, model) -> Utilization | None:
    """For ``--peak_tflops``; None without it. Collective: each rank measures its device.

    Attention is counted only where every token attends to its whole row before it: ``--packing stream``.
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
        source = f"{asked}, as published" if asked in PEAKS else "as given"
    trained = None
    if run.model.finetuning_type == "lora":
        trained = sum(parameter.size for parameter in model.parameters() if not parameter.stop_gradient)
    per_token = flops_per_token(model.config, run.data.max_seq_length if whole_rows else 0, trained)
    return Utilization(per_token, peak, ranks.count(), source)


def measured_flops(dtype: str) -> float:
    """Operations per second of matrix products in ``dtype`` on this rank's device, the best of ROUNDS."""
    numbers = np.random.default_rng(0)  # not Paddle's, whose state belongs to the run
    left, right = (paddle.to_tensor(numbers.random((SIZE, SIZE), np.float32)).astype(dtype) for _ in range(2))
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        float(paddle.matmul(left, right)[0, 0].astype("float32"))  # waits for the device
        best = min(best, time.perf_counter() - begin)
    return 2 * SIZE**3 / best
