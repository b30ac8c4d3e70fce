"""What llm_npu.dtypes.watch costs of a training step that gives it nothing to report.

    python scripts/bench_watch.py [--rounds N] [--json]

A step (forward, backward, AdamW) of PaddleNLP's LlamaForCausalLM in fp32 on the virtual NPU, hidden size 512,
4 layers, 512 tokens, in one process: bare; watched at the kernels, as on the virtual NPU; and watched at the
operators that Python calls, as on a card. Watched or not, the losses must be the same to the bit. Then the
three take turns. On a card a step takes other time, and so does what the hooks add to it.

Goal: each watch adds at most 2 % to the median. The exit status is 1 if losses differ, and 0 otherwise: a
missed goal is printed, since a busy machine can miss it.
"""

import contextlib
import sys

from benchmarks import machine, one_process, timing
from benchmarks.llama_training import LlamaTraining
from benchmarks.one_process import Disagreement

GOAL = 0.02
BARE = "bare"


def contexts(model):
    """{name: what a step runs in}."""
    from llm_npu.dtypes import watch
    from llm_npu.dtypes.operators import OperatorHooks

    return {
        BARE: contextlib.nullcontext,
        "kernels": lambda: watch(model, action="error"),
        "operators": lambda: OperatorHooks(_refuse),
    }


def _refuse(kernel, call):
    raise Disagreement(f"{kernel} computes in {call.dtype}: the step is to give the watch nothing to report.")


def bench(rounds, hidden=512, layers=4, length=512, steps_to_verify=3):
    """Milliseconds of a step for each, and what the watches add; Disagreement unless the losses agree."""
    trainings = {name: LlamaTraining("npu", hidden, layers, length) for name in contexts(None)}
    around = {name: contexts(training.model)[name] for name, training in trainings.items()}

    def step(name):
        with around[name]():
            return trainings[name].step()

    for number in range(steps_to_verify):
        losses = {name: step(name)[1] for name in around}
        if len(set(losses.values())) > 1:
            raise Disagreement(f"The losses of step {number} differ: {losses}.")
    times = timing.interleaved(lambda name: step(name)[0], around, rounds)
    found = {name: timing.summary(seconds, scale=1e3)._asdict() for name, seconds in times.items()}
    added = {name: found[name]["median"] / found[BARE]["median"] - 1 for name in found if name != BARE}
    return {
        "machine": machine.facts(machine.threads_in_environment()),
        "step_ms": found,
        "added": added,
        "goals": {name: share <= GOAL for name, share in added.items()},
    }


def text(result):
    lines = [one_process.heading(result["machine"])]
    for name, each in result["step_ms"].items():
        added = f"  {result['added'][name]:+.2%}" if name != BARE else ""
        lines.append(f"{name:10}{each['median']:10.2f} ±{each['spread']:6.2f} ms a step{added}")
    for name, met in result["goals"].items():
        lines.append(one_process.goal(met, f"watching {name} adds at most {GOAL:.0%}"))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(one_process.main(__doc__, bench, text, rounds=40, turns="training steps of each"))
