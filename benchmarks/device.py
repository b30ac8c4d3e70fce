"""The virtual NPU's overhead against the CPU place: microseconds per operator, milliseconds per Llama step.

    python -m benchmarks device [--rounds N] [--json]

Overhead = median time on the npu - median time on the CPU place. Both run the same CPU arithmetic, so the
difference is the plugin's own work: choosing the kernel, exposing the npu's tensors to it, bookkeeping.

Measured in one process: add, matmul and relu on 4x4 fp32 tensors in dygraph, and a training step (forward,
backward, clipping, AdamW) of PaddleNLP's LlamaForCausalLM in fp32 with the fused operators off, hidden size
512, 4 layers, 512 tokens. The results on both places are compared first. Then the places alternate (cpu npu
cpu npu ...), so that a slowdown of the machine affects both.

Goals: at most 3 us per operator, and at most 1.05 times the step time of the CPU place. The exit status is 1
if the results differ, and 0 otherwise. A missed goal is only printed, because a busy machine can miss it.
"""

import gc
import sys
import time
from dataclasses import asdict

import virtual_npu
from benchmarks import machine, options, report, timing
from benchmarks.contest import Wrong
from benchmarks.step import LlamaSize
from benchmarks.step.paddle_llama import PaddleLlama
from paddle_fused import command_line, strict_json

PLACES = ("cpu", "npu")
OP_GOAL_US = 3.0
STEP_GOAL_RATIO = 1.05
STEP_TOLERANCE = 1e-5  # relative difference of the losses; both places run the same fp32 kernels
SIZE = LlamaSize(hidden=512, layers=4, vocabulary=4096, length=512, heads=8, intermediate=1408)
# Many short batches, so that an interruption by another process does not affect the median.
OP_CALLS = 200
OP_ROUNDS = 300


def comparison(measure, rounds, scale):
    """Summaries of `measure(place)` for both places, alternating, with difference and ratio."""
    times = {
        place: timing.summary(seconds, scale)._asdict()
        for place, seconds in timing.interleaved(measure, PLACES, rounds).items()
    }
    npu, cpu = times["npu"]["median"], times["cpu"]["median"]
    return {**times, "overhead": npu - cpu, "ratio": npu / cpu}


def operators(paddle):
    return {"add": paddle.add, "matmul": paddle.matmul, "relu": lambda x, y: paddle.nn.functional.relu(x)}


def bench_operators(rounds, calls=OP_CALLS):
    """{operator: summary in microseconds per call}; raises Wrong unless both places are bit-identical."""
    import numpy as np
    import paddle

    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((4, 4), dtype="float32") for _ in range(2)]
    inputs = {}
    for place in PLACES:
        paddle.set_device(place)
        inputs[place] = [paddle.to_tensor(array) for array in arrays]
    result = {}
    for name, function in operators(paddle).items():
        outputs = {}

        def seconds_per_call(place, function=function, outputs=outputs):
            paddle.set_device(place)
            x, y = inputs[place]
            began = time.perf_counter()
            for _ in range(calls):
                out = function(x, y)
            if place != "cpu":
                paddle.device.synchronize()
            elapsed = time.perf_counter() - began
            outputs[place] = out.numpy()
            return elapsed / calls

        for place in PLACES:
            seconds_per_call(place)
        if not np.array_equal(outputs["cpu"], outputs["npu"]):
            raise Wrong(f"{name} of two 4x4 fp32 tensors differs between the CPU place and the npu.")
        result[name] = comparison(seconds_per_call, rounds, scale=1e6)
    return result


def llama(place, size=SIZE):
    """PaddleNLP's Llama in fp32 on one place; equally configured models start from the same weights."""
    return PaddleLlama("upstream", place, cured=True, dtype="float32", size=asdict(size))


def bench_step(rounds, size=SIZE, steps_to_verify=3):
    """Summary in milliseconds per training step; raises Wrong unless the first losses agree."""
    training = {place: llama(place, size) for place in PLACES}
    for step in range(steps_to_verify):
        cpu, npu = (training[place].step() for place in PLACES)
        if not abs(npu - cpu) <= STEP_TOLERANCE * abs(cpu):  # also true for NaN
            raise Wrong(
                f"The Llama's loss differs at step {step}: {cpu:.7f} on the CPU place, {npu:.7f} on the npu."
            )
    gc.collect()
    return comparison(lambda place: training[place].time()["seconds"], rounds, scale=1e3)


def bench(rounds, op_rounds=OP_ROUNDS, size=SIZE):
    """The whole comparison as the dictionary that --json prints; ``rounds`` is for the Llama step."""
    virtual_npu.activate()
    import paddle

    before = paddle.get_device()
    try:
        ops = bench_operators(op_rounds)
        step = bench_step(rounds, size)
    finally:
        paddle.set_device(before)
    return {
        "machine": machine.facts(machine.threads_in_environment()),
        "ops_us": ops,
        "step_ms": step,
        "goals": {
            "ops": all(both["overhead"] <= OP_GOAL_US for both in ops.values()),
            "step": step["ratio"] <= STEP_GOAL_RATIO,
        },
    }


def text(result):
    lines = [report.heading(result["machine"]), f"{'':18}{'cpu':>18}{'npu':>18}{'overhead':>12}{'ratio':>8}"]
    compared = [(f"{name} 4x4 (us)", both) for name, both in result["ops_us"].items()]
    for label, both in [*compared, ("Llama step (ms)", result["step_ms"])]:
        places = "".join(f"{both[p]['median']:10.2f} ±{both[p]['spread']:6.2f}" for p in PLACES)
        lines.append(f"{label:18}{places}{both['overhead']:12.2f}{both['ratio']:8.3f}")
    ops, step = result["goals"]["ops"], result["goals"]["step"]
    lines.append(report.goal(ops, f"at most {OP_GOAL_US:g} us overhead per operator"))
    lines.append(report.goal(step, f"at most {STEP_GOAL_RATIO:g} times the CPU place's step"))
    return "\n".join(lines)


def main(words):
    parser = command_line.of_document("python -m benchmarks device", __doc__)
    parser.add_argument("--rounds", type=int, default=15, help="training steps per place (default 15)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the text")
    arguments = parser.parse_args(words)
    options.need_paddlenlp(parser)
    try:
        result = bench(arguments.rounds)
    except Wrong as error:
        print(error, file=sys.stderr)
        return 1
    print(strict_json.dumps(result, indent=2) if arguments.json else text(result))
    return 0
