"""A Llama of PaddleNLP with fused operators in a plain Paddle loop: copy this file and change it.

    python examples/minimal_trainer.py                  # on a card, or without one on the virtual NPU
    python examples/minimal_trainer.py --resume         # continues from the newest checkpoint in --output_dir

It trains on bytes: the text of --text, by default the sources of Python's standard library. bf16 with float32
master weights, a cosine schedule with warmup, gradient accumulation, an evaluation loss, checkpoints and a
resume that gives the same losses to the bit.
"""

import argparse
import math
import os
import time
from pathlib import Path

from llm_npu import device

os.environ.setdefault("GLOG_minloglevel", "2")  # else Paddle logs every plugin that it loads
chosen = device.select("npu")  # before paddle is imported: it decides which device plugin Paddle loads

import numpy as np  # noqa: E402
import paddle  # noqa: E402
from paddle.distributed.fleet.utils.mix_precision_utils import (  # noqa: E402
    MixPrecisionLayer,
    MixPrecisionOptimizer,
)
from paddlenlp.transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from llm_npu.models import layout, weights  # noqa: E402
from llm_npu.surgery import apply_fused_kernels  # noqa: E402
from llm_npu.training import checkpoint  # noqa: E402
from llm_npu.training.checkpoint import random_state, states, tensors  # noqa: E402
from llm_npu.training.checkpoint.saving import Checkpoints  # noqa: E402
from paddle_fused import FusedAdamW  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
add = parser.add_argument
# Model
add("--layers", type=int, default=4)
add("--hidden_size", type=int, default=256, help="a multiple of 64, the size of a head")
add("--sequence", type=int, default=256, help="bytes of a sample")
# Optimization
add("--batch_size", type=int, default=4, help="samples of a micro batch")
add("--accumulation", type=int, default=2, help="micro batches of a step")
add("--steps", type=int, default=200)
add("--warmup", type=int, default=20, help="steps in which the learning rate rises")
add("--learning_rate", type=float, default=1e-3, help="the highest")
add("--weight_decay", type=float, default=0.1)
add("--seed", type=int, default=42)
# Input and output
add("--text", type=Path, help="a file; default: the sources of Python's standard library")
add("--eval_every", type=int, default=50, help="steps")
add("--save_every", type=int, default=100, help="steps")
add("--keep", type=int, default=2, help="checkpoints")
add("--output_dir", type=Path, default=Path("minimal"))
add("--resume", action="store_true", help="after the newest checkpoint in --output_dir, or from step 0")
run = parser.parse_args()

print(f"device {chosen.name} ({chosen.kind}): {chosen.reason}")
paddle.set_device(chosen.name)
paddle.seed(run.seed)

# -----------------------------------------------------------------------------------------------------------
# Data: the last twentieth of the bytes is for the evaluation

files = [run.text] if run.text else sorted(Path(os.__file__).parent.glob("*.py"))
text = np.frombuffer(b"\n".join(file.read_bytes() for file in files), np.uint8)
split = len(text) * 19 // 20
if len(text) - split <= run.sequence:
    parser.error(f"the text has {len(text)} bytes; give more than {20 * (run.sequence + 1)}, or --sequence")


def batch(part: np.ndarray, *number: int) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Tokens and labels of one micro batch: a pure function of the seed and ``number``.

    So a resumed run needs no position in the data, only the step.
    """
    begins = np.random.default_rng([run.seed, *number]).integers(0, len(part) - run.sequence, run.batch_size)
    rows = part[begins[:, None] + np.arange(run.sequence + 1)].astype(np.int64)
    # PaddleNLP's models do not shift labels: labels[t] is the token after tokens[t].
    return paddle.to_tensor(rows[:, :-1]), paddle.to_tensor(rows[:, 1:])


train, held_out = text[:split], text[split:]

# -----------------------------------------------------------------------------------------------------------
# Model and optimizer

config = LlamaConfig(
    vocab_size=256,
    hidden_size=run.hidden_size,
    intermediate_size=run.hidden_size * 8 // 3 // 64 * 64,
    num_hidden_layers=run.layers,
    num_attention_heads=run.hidden_size // 64,
    max_position_embeddings=run.sequence,
    use_cache=False,
)
model = LlamaForCausalLM(config)
print(f"fused: {apply_fused_kernels(model).summary()}")
print(f"{sum(parameter.size for parameter in model.parameters()):,} parameters")


def factor(step: int) -> float:
    """The share of the highest learning rate: a linear warmup, then half a cosine down to a tenth."""
    if step < run.warmup:
        return (step + 1) / run.warmup
    progress = min(1.0, (step - run.warmup) / max(1, run.steps - run.warmup))
    return 0.1 + 0.45 * (1 + math.cos(math.pi * progress))


schedule = paddle.optimizer.lr.LambdaDecay(run.learning_rate, factor)
decayed = {parameter.name for parameter in model.parameters() if parameter.ndim > 1}  # not the norms
optimizer = FusedAdamW(
    schedule,
    beta2=0.95,
    parameters=model.parameters(),
    weight_decay=run.weight_decay,
    apply_decay_param_fun=decayed.__contains__,
    grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0),
    multi_precision=True,  # float32 master weights
)
precision = {"level": "O2", "dtype": "bfloat16"}
model, optimizer = paddle.amp.decorate(model, optimizer, **precision)
# Micro batches add up in float32 (main_grad): a sum in bfloat16 loses the small ones.
MixPrecisionLayer(model, dtype="bfloat16")
optimizer = MixPrecisionOptimizer(optimizer)

# -----------------------------------------------------------------------------------------------------------
# Checkpoints: complete, with checksums, or absent. Weights are in Hugging Face's layout.

checkpoints = Checkpoints(run.output_dir, keep=run.keep)
named = layout.parameters(model)
RANDOM = states.file_of(states.rng_name(0))


def optimizer_states() -> list:
    return tensors.of_optimizer(optimizer, named, config)


def save(step: int) -> None:
    random = states.text(random_state.as_plain(random_state.random_state()))
    small = {
        "config.json": lambda folder: weights.save_config(model, folder),
        RANDOM: lambda folder: (folder / RANDOM).write_text(random),
    }
    held = {"model": tensors.of_parameters(named, config), "optimizer": optimizer_states()}
    checkpoints.save(step, held, small)
    print(f"step {step}: {checkpoint.path_of(run.output_dir, step)} is complete")


def load(folder: Path) -> int:
    """The step of the checkpoint ``folder``, whose state becomes that of this run."""
    weights.load(model, folder)
    tensors.load(folder, "optimizer", optimizer_states())  # its master weights, which bf16 has rounded
    step = checkpoint.step_of(folder)
    schedule.step(step)  # a pure function of the step
    random_states = states.read(folder, states.rng_name(0))
    random_state.set_random_state(random_state.from_plain(random_states, str(folder)))
    return step


start = 0
if run.resume and (newest := checkpoint.to_resume("auto", run.output_dir)):
    start = load(newest)
    print(f"resumed after step {start} from {newest}")
elif checkpoint.complete(run.output_dir):
    parser.error(f"{run.output_dir} has checkpoints; give --resume, or another --output_dir")

# -----------------------------------------------------------------------------------------------------------
# Training


def loss_of(part: np.ndarray, *number: int) -> paddle.Tensor:
    tokens, labels = batch(part, *number)
    with paddle.amp.auto_cast(**precision):
        return model(tokens, labels=labels)[0]


@paddle.no_grad()
def evaluation_loss(batches: int = 4) -> float:
    model.eval()
    losses = [float(loss_of(held_out, number)) for number in range(batches)]  # the same ones every time
    model.train()
    return sum(losses) / batches


model.train()
for step in range(start + 1, run.steps + 1):
    began = time.perf_counter()
    total = 0.0
    for micro in range(run.accumulation):
        loss = loss_of(train, step, micro)
        (loss / run.accumulation).backward()
        total += float(loss) / run.accumulation  # waits for the device
    rate = optimizer.get_lr()
    optimizer.step()
    optimizer.clear_grad()
    schedule.step()
    tokens = run.accumulation * run.batch_size * run.sequence
    speed = tokens / (time.perf_counter() - began)
    print(f"step {step}/{run.steps}: loss {total:.6f}  lr {rate:.2e}  {speed:,.0f} tokens/s", flush=True)
    if step % run.eval_every == 0 or step == run.steps:
        print(f"step {step}: evaluation loss {evaluation_loss():.6f}")
    if step % run.save_every == 0 or step == run.steps:
        save(step)
