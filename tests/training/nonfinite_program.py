"""One of two ranks: trains while a NaN arises on rank 1, with --nonfinite skip and stop.

nonfinite_program.py FOLDER ARGUMENTS...
"""

import contextlib
import io
import json
import sys
from pathlib import Path

import ranks
from places import ROOT

import virtual_npu

virtual_npu.activate()

import paddle  # noqa: E402

from llm_npu.commands import train  # noqa: E402
from llm_npu.core import ranks as processes  # noqa: E402
from llm_npu.parallel.trainer import ParallelTrainer  # noqa: E402
from llm_npu.training.trainer import PretrainTrainer  # noqa: E402

SCRIPT = ROOT / "scripts/run_llama_npu.py"
BAD_STEP, BAD_LAYER = 1, "llama.layers.1.mlp.down_proj"


@paddle.no_grad()
def spoil_own_part(gradient) -> None:
    gradient._local_value().scale_(float("nan"))


def spoil(kind: type, what: list[str]) -> None:
    """From now on, in the second step of trainers of this kind, a NaN arises on rank 1.

    Of what[0]: the "output" of a layer, or the "gradient" of its weight.
    """
    train, hear = kind.training_step, kind._on_finished_step
    hooks = []

    def training_step(self, model, inputs, step_control=0):
        if self.state.global_step == BAD_STEP and processes.number() == 1:
            layer = dict(self.model.named_sublayers())[BAD_LAYER]
            if what[0] == "output":
                hooks.append(layer.register_forward_post_hook(lambda *call: call[-1] * float("nan")))
            else:
                hooks.append(layer.weight.register_hook(spoil_own_part))
        return train(self, model, inputs, step_control)

    def listen(self, step):
        while hooks:
            hooks.pop().remove()
        hear(self, step)

    kind.training_step, kind._on_finished_step = training_step, listen


def main(folder: Path, arguments: list[str]) -> None:
    run, results, what = train.main, {}, ["output"]
    runs = {"skip": ("output", "skip"), "stop": ("output", "stop")}
    if "--enable_auto_parallel" in arguments:
        spoil(ParallelTrainer, what)
        runs = {"gradient": ("gradient", "skip"), **runs}
    else:
        spoil(PretrainTrainer, what)
    for choice, (what[0], nonfinite) in runs.items():
        out = folder / f"out-{choice}"
        output = io.StringIO()
        try:
            with contextlib.redirect_stdout(output):
                code = run([*arguments, "--nonfinite", nonfinite, "--output_dir", str(out)])
            results[choice] = {"code": code}
        except ValueError as error:
            results[choice] = {"error": str(error)}
        paddle.distributed.barrier()
        records = (out / "metrics.jsonl").read_text().splitlines()
        results[choice]["steps"] = [json.loads(line) for line in records]
        results[choice]["said"] = output.getvalue()
    ranks.write(results)


main(Path(sys.argv[1]), sys.argv[2:])
