"""A model and its training with ten dtype faults of different kinds; with dtype "float32" it has none.

Each is on a line of its own, which a comment names; what is computed after it is float32 again.
"""

from pathlib import Path

import numpy as np
import paddle
from paddle import nn
from paddle.distributed.fleet.utils import recompute

VOCABULARY, HIDDEN, LENGTH = 32, 16, 8
IN_THE_MODEL = ("parameter", "buffer", "python float", "numpy scalar", "position ids", "mask", "recompute")
OUTSIDE = ("optimizer state", "loss scaling", "learning rate")
FAULTS = IN_THE_MODEL + OUTSIDE


def lines() -> dict[str, int]:
    """The line of each fault in this file."""
    numbers = {}
    for number, line in enumerate(Path(__file__).read_text().splitlines(), 1):
        _, mark, name = line.partition("# fault: ")
        if mark and name in FAULTS:
            numbers[name] = number
    assert set(numbers) == set(FAULTS)
    return numbers


class Block(nn.Layer):
    """What is recomputed in the backward pass."""

    def __init__(self, dtype):
        super().__init__()
        self.inner = nn.Linear(HIDDEN, HIDDEN)
        self.wide = dtype

    def forward(self, hidden):
        half = paddle.full([1], 0.5)
        half = half.astype(self.wide)  # fault: recompute
        return self.inner(hidden) * half.astype("float32")


class Planted(nn.Layer):
    """A language model, more or less. (to_static of Paddle 3.3 hangs at ``paddle.function(...).method``.)"""

    def __init__(self, dtype="float64"):
        super().__init__()
        self.wide = dtype
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.gain = self.create_parameter([HIDDEN], dtype=dtype)  # fault: parameter
        frequencies = 1 / 10000 ** (np.arange(HIDDEN) / HIDDEN)
        self.register_buffer("frequencies", paddle.to_tensor(frequencies.astype(dtype)))  # fault: buffer
        scale = np.dtype(dtype).type(HIDDEN**-0.5)
        # to_static makes float64 of NumPy's scalars of any dtype, and keeps the dtype of its arrays.
        self.scale = scale if dtype == "float64" else np.full([1], scale)
        self.mask = np.triu(np.full([LENGTH, LENGTH], -1e9, dtype=dtype), 1)
        self.kind = float if dtype == "float64" else dtype
        self.block = Block(dtype)
        self.head = nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, ids, labels):
        hidden = self.embedding(ids) * self.gain.astype("float32")
        positions = paddle.arange(LENGTH)
        positions = positions.astype(self.wide)  # fault: position ids
        angles = positions.astype("float32").unsqueeze(-1) * self.frequencies.astype("float32")
        hidden = hidden + paddle.sin(angles)
        scores = paddle.matmul(hidden, hidden, transpose_y=True)
        scores = (scores * paddle.to_tensor(self.scale)).astype("float32")  # fault: numpy scalar
        scores = (scores + paddle.to_tensor(self.mask)).astype("float32")  # fault: mask
        hidden = paddle.matmul(nn.functional.softmax(scores), hidden)
        hidden = hidden.astype(self.kind).astype("float32")  # fault: python float
        hidden = recompute(self.block, hidden)
        return nn.functional.cross_entropy(self.head(hidden), labels)


class Averaging(paddle.optimizer.SGD):
    """SGD that keeps an average of the weights."""

    def __init__(self, wide, **options):
        super().__init__(**options)
        self.wide = wide
        parameters = [
            parameter for parameter in self._parameter_list if str(parameter.dtype).endswith("float32")
        ]
        self._accumulators["average"] = {
            parameter.name: parameter.detach().astype(wide) for parameter in parameters
        }

    def step(self):
        super().step()
        for parameter in self._parameter_list:
            average = self._accumulators["average"].get(parameter.name)
            if average is not None:
                average.lerp_(parameter.detach().astype(self.wide), 0.1)  # fault: optimizer state


class Decay(paddle.optimizer.lr.LRScheduler):
    """An exponential schedule."""

    def __init__(self, rate, wide):
        self.decay = paddle.to_tensor(np.asarray(0.9, dtype=wide))  # fault: learning rate
        super().__init__(rate)

    def get_lr(self):
        return float(self.base_lr * self.decay**self.last_epoch)


class Training:
    """The model, its optimizer and one batch."""

    def __init__(self, dtype="float64", to_static=False):
        paddle.seed(0)
        self.wide = dtype
        self.model = Planted(dtype)
        trained = [
            parameter for parameter in self.model.parameters() if str(parameter.dtype).endswith("float32")
        ]
        self.schedule = Decay(1e-4, dtype)
        self.optimizer = Averaging(dtype, learning_rate=self.schedule, parameters=trained)
        rng = np.random.default_rng(0)
        tokens = rng.integers(0, VOCABULARY, [2, LENGTH + 1])
        self.batch = {"ids": paddle.to_tensor(tokens[:, :-1]), "labels": paddle.to_tensor(tokens[:, 1:])}
        if to_static:
            self.model = paddle.jit.to_static(self.model, full_graph=True)

    def step(self):
        """The loss."""
        loss = self.model(**self.batch)
        scaled = loss * paddle.full([], 1024.0, dtype=self.wide)  # fault: loss scaling
        scaled.backward()
        self.optimizer.step()
        self.optimizer.clear_grad()
        self.schedule.step()
        return float(loss)
