"""The same Llama in plain torch: scaled_dot_product_attention, fused AdamW, eager or through torch.compile.

In bfloat16 the weights and the moments are bfloat16: less memory traffic than with master weights.
"""

from __future__ import annotations

import math
import time

from benchmarks.step import AdamWSettings, LlamaSize, Training
from benchmarks.work import Unavailable

EPSILON = 1e-6
BASE = 10000.0  # of the rotary embedding
PROBE = 256  # size of the product that predicts the time of a step
PROBE_SECONDS = 10.0
LONGEST_STEP = 60.0  # seconds


class TorchLlama(Training):
    def __init__(self, compiled: bool, threads: int, dtype: str, size: dict):
        try:
            import torch
        except ImportError as error:
            raise Unavailable("torch is not installed") from error
        torch.set_num_threads(threads)
        self.torch, self.size = torch, LlamaSize(**size)
        self.version = f"torch {torch.__version__}"
        self.dtype = getattr(torch, dtype)
        self._refuse_slow_products()
        self.weights = {
            name: torch.from_numpy(array if array.ndim == 1 or name == "embedding" else array.T.copy())
            .to(self.dtype)
            .requires_grad_()
            for name, array in self.size.weights().items()
        }
        self.cos, self.sin = self._angles()
        settings = AdamWSettings()
        self.clip_norm = settings.clip_norm
        self.optimizer = torch.optim.AdamW(
            self.weights.values(),
            settings.learning_rate,
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.loss = torch.compile(self._loss, dynamic=False) if compiled else self._loss
        samples = torch.from_numpy(self.size.samples())
        self.inputs, self.labels = samples[:, :-1].contiguous(), samples[:, 1:].contiguous()

    def _refuse_slow_products(self):
        """Raise Unavailable if matmuls are slow, as in bfloat16 on processors without bfloat16 instructions.

        A slow matmul is measured repeatedly, because contenders that start at the same time slow it down.
        """
        a = self.torch.ones(PROBE, PROBE, dtype=self.dtype)
        seconds, end = math.inf, time.perf_counter() + PROBE_SECONDS
        while seconds > LONGEST_STEP and time.perf_counter() < end:
            began = time.perf_counter()
            a @ a
            rate = 2 * PROBE**3 / (time.perf_counter() - began)
            seconds = min(seconds, self.size.flops / rate)
        if seconds > LONGEST_STEP:
            rate = self.size.flops / seconds
            raise Unavailable(
                f"a step would take about {seconds:.0f} s: matmuls run at {rate / 1e9:.2g} GF/s here"
            )

    def _angles(self):
        torch, dim = self.torch, self.size.head_dim
        frequencies = BASE ** -(torch.arange(0, dim, 2, dtype=torch.float32) / dim)
        angles = torch.outer(torch.arange(self.size.length, dtype=torch.float32), frequencies)
        angles = torch.cat((angles, angles), -1)
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)

    def _loss(self, inputs, labels):
        functional, weights, size = self.torch.nn.functional, self.weights, self.size

        def norm(x, name):
            return functional.rms_norm(x, (size.hidden,), weights[name], EPSILON)

        hidden = functional.embedding(inputs, weights["embedding"])
        for number in range(size.layers):
            of = {name: weights[f"{number}.{name}"] for name in ("output", "gate", "up", "down")}
            hidden = hidden + functional.linear(
                self._attention(norm(hidden, f"{number}.attention_norm"), number), of["output"]
            )
            normed = norm(hidden, f"{number}.mlp_norm")
            gate, up = functional.linear(normed, of["gate"]), functional.linear(normed, of["up"])
            hidden = hidden + functional.linear(functional.silu(gate) * up, of["down"])
        logits = functional.linear(norm(hidden, "norm"), weights["head"])
        return functional.cross_entropy(logits.float().view(-1, size.vocabulary), labels.view(-1))

    def _attention(self, hidden, number):
        shape = (self.size.batch, self.size.length, self.size.heads, self.size.head_dim)
        query, key, value = (
            self.torch.nn.functional.linear(hidden, self.weights[f"{number}.{name}"])
            .view(shape)
            .transpose(1, 2)
            for name in ("query", "key", "value")
        )
        query, key = self._rotated(query), self._rotated(key)
        out = self.torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return out.transpose(1, 2).reshape(hidden.shape)

    def _rotated(self, x):
        first, second = x.chunk(2, -1)
        return x * self.cos + self.torch.cat((-second, first), -1) * self.sin

    def step(self):
        loss = self.loss(self.inputs, self.labels)
        loss.backward()
        self.torch.nn.utils.clip_grad_norm_(list(self.weights.values()), self.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())
