"""The overhead of llm_npu.dtypes.watch and of paddle_fused.watch_acl_errors in a step without findings.

    python -m benchmarks watch [--rounds N] [--json]

Measures a step of PaddleNLP's LlamaForCausalLM in fp32 on the virtual NPU, with the sizes of `device`, in one
process. The variants are: bare; kernels watched, as on the virtual NPU; operators called from Python watched,
as on a card; and --check_acl_errors 1. The losses of all variants must be bit-identical. Then the variants
alternate. On a card, both the step and the hooks take a different time.

Goals: each dtype watch adds at most 2 % to the median, and --check_acl_errors at most 3 %. The exit status is
1 if losses differ, and 0 otherwise. A missed goal is only printed, because a busy machine can miss it.
"""

import contextlib
import time

import virtual_npu
from benchmarks import contest, machine, options, report, timing
from benchmarks.contest import Wrong

from .command import SIZE, llama

BARE, ACL_ERRORS = "bare", "acl errors"
GOALS = {"kernels": 0.02, "operators": 0.02, ACL_ERRORS: 0.03}


def contexts(model):
    """{name: the context of a step}."""
    import paddle_fused
    from llm_npu.dtypes import watch
    from llm_npu.dtypes.operators import FallbackHooks

    return {
        BARE: contextlib.nullcontext,
        "kernels": lambda: watch(model, action="error"),
        "operators": lambda: FallbackHooks(_refuse),
        ACL_ERRORS: paddle_fused.watch_acl_errors,
    }


def _refuse(kernel, call):
    raise Wrong(f"{kernel} computes in {call.dtype}: the step must give the watch nothing to report.")


def bench(rounds, size=SIZE, steps_to_verify=3):
    """Milliseconds per step of each variant, and the overheads; raises Wrong unless the losses agree."""
    virtual_npu.activate()
    import paddle

    before = paddle.get_device()
    try:
        return _compared(rounds, size, steps_to_verify)
    finally:
        paddle.set_device(before)


def _compared(rounds, size, steps_to_verify):
    trainings = {name: llama("npu", size) for name in contexts(None)}
    around = {name: contexts(training.model)[name] for name, training in trainings.items()}

    def step(name):
        """Seconds and loss."""
        with around[name]():
            began = time.perf_counter()
            loss = trainings[name].step()
            return time.perf_counter() - began, loss

    for number in range(steps_to_verify):
        losses = {name: step(name)[1] for name in around}
        if len(set(losses.values())) > 1:
            raise Wrong(f"The losses of step {number} differ: {losses}.")
    times = timing.interleaved(lambda name: step(name)[0], around, rounds)
    summaries = {name: timing.summary(seconds, scale=1e3)._asdict() for name, seconds in times.items()}
    added = {name: summaries[name]["median"] / summaries[BARE]["median"] - 1 for name in GOALS}
    return {
        "machine": machine.facts(machine.threads_in_environment()),
        "step_ms": summaries,
        "added": added,
        "goals": {name: share <= GOALS[name] for name, share in added.items()},
    }


def text(result):
    lines = [report.heading(result["machine"])]
    for name, figures in result["step_ms"].items():
        added = f"  {result['added'][name]:+.2%}" if name != BARE else ""
        lines.append(f"{name:10}{figures['median']:10.2f} ±{figures['spread']:6.2f} ms a step{added}")
    for name, met in result["goals"].items():
        lines.append(report.goal(met, f"watching {name} adds at most {GOALS[name]:.0%}"))
    return "\n".join(lines)


def main(words):
    parser = options.bare("watch", __doc__)
    parser.add_argument("--rounds", type=int, default=40, help="training steps of each (default 40)")
    return contest.run_here(parser, words, bench, text, options.need_paddlenlp)
