"""GPT-2 on sequences of different lengths: padded, padded to the longest, and without padding.

    python -m benchmarks.varlen.gpt2
    python -m benchmarks.varlen.gpt2 --width 256 --depth 6

A batch of sequences with lengths uniform below --longest is trained on the virtual NPU in float32: a GPT
of PaddleNLP with GPT-2's dropout, by SGD. Eager and captured (paddle.jit.to_static), upstream and with
fused operators.
"""

import sys
import time

import numpy as np

from benchmarks import machine, options, report, timing
from paddle_fused import command_line

HEAD_SIZE = 64
STRATEGIES = ("padding", "longest", "unpadded")
BASELINE = ("padding", "upstream", "eager")
AGREE = 1e-4  # relative difference of losses in float32


def main(words):
    arguments = parse(words)
    import virtual_npu

    virtual_npu.activate()
    import paddle

    paddle.set_device("npu")
    lengths = np.random.default_rng(0).integers(1, arguments.longest, arguments.batch)
    steps = {key: Step(*key, lengths, arguments) for key in contenders()}
    losses = {key: step.loss_without_dropout() for key, step in steps.items()}
    expected = losses[BASELINE]
    for key, loss in losses.items():
        if not abs(loss - expected) <= AGREE * expected:
            print(f"{' '.join(key)}: the loss is {loss:.7f}, expected {expected:.7f}", file=sys.stderr)
            return 1
    times = timing.interleaved(lambda key: steps[key].seconds(), steps, arguments.rounds)
    print(f"{arguments.batch} sequences of 1 to {arguments.longest - 1} tokens, {int(lengths.sum())} in all;")
    size = f"width {arguments.width}, {arguments.depth} layers"
    print(f"{size}, {machine.cores()} cores, paddle {paddle.__version__}")
    show(times)
    return 0


def contenders():
    """(strategy, layers, way). Upstream attention does not support documents, so it is only padded."""
    yield from ((strategy, "upstream", "eager") for strategy in STRATEGIES[:2])
    yield from ((strategy, "fused", way) for way in ("eager", "captured") for strategy in STRATEGIES)


class Step:
    """A training step of one contender; all have the same weights and sequences."""

    def __init__(self, strategy, layers, way, lengths, arguments):
        import paddle

        from llm_npu.data.collate import Collator
        from llm_npu.models import families, presets
        from llm_npu.surgery import apply_fused_kernels

        self.paddle = paddle
        config = presets.model_config(
            "gpt2",
            vocab_size=arguments.vocabulary,
            hidden_size=arguments.width,
            intermediate_size=4 * arguments.width,
            num_hidden_layers=arguments.depth,
            num_attention_heads=arguments.width // HEAD_SIZE,
        )
        paddle.seed(0)
        self.model = families.new_model(config)
        if layers == "fused":
            apply_fused_kernels(self.model, strict=True)
        draw = np.random.default_rng(1)
        rows = [draw.integers(1, arguments.vocabulary, length + 1) for length in lengths]
        samples = [{"input_ids": row[:-1], "labels": row[1:]} for row in rows]
        padding = {"padding": "max_length", "longest": "longest", "unpadded": "none"}[strategy]
        length = arguments.longest if strategy == "padding" else None
        mask = "object" if layers == "fused" else "dense"
        batch = Collator(padding, length, mask=mask)(samples)
        self.batch = {
            name: paddle.to_tensor(value) if isinstance(value, np.ndarray) else value
            for name, value in batch.items()
        }
        self.optimizer = paddle.optimizer.SGD(1e-3, parameters=self.model.parameters())
        self.forward = self.model
        if way == "captured":
            self.forward = paddle.jit.to_static(self.model, full_graph=True)

    def loss_without_dropout(self) -> float:
        self.model.eval()
        with self.paddle.no_grad():
            loss = float(self.forward(**self.batch)[0])
        self.model.train()
        return loss

    def seconds(self) -> float:
        begin = time.perf_counter()
        loss, _ = self.forward(**self.batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.clear_grad()
        float(loss)  # synchronizes with the device
        return time.perf_counter() - begin


def show(times):
    medians = {key: timing.summary(seconds) for key, seconds in times.items()}
    table = report.blank("training", ("strategy", "layers", "way"), ("ms ± spread", "times as fast"))
    for key, of in medians.items():
        ratio = f"{medians[BASELINE].median / of.median:.2f}"
        table.add_row(*key, " ± ".join(map(report.milliseconds, of)), ratio)
    report.show(table)


def parse(words):
    parser = options.bare("varlen.gpt2", __doc__)
    for name, default, what in (
        ("batch", 8, "sequences"),
        ("longest", 512, "upper limit of the uniform lengths"),
        ("width", 256, "a multiple of 64, the head size"),
        ("depth", 4, "layers"),
        ("vocabulary", 1024, "tokens"),
        ("rounds", 5, "rounds per contender"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{what} (default {default})")
    arguments = parser.parse_args(words)
    if arguments.width % HEAD_SIZE or min(vars(arguments).values()) < 1:
        parser.error("all sizes are 1 or more, and --width is a multiple of 64")
    if arguments.longest > 1024 or arguments.longest < 2:
        parser.error("--longest is from 2 to 1024, the positions of a GPT-2")
    return arguments


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
