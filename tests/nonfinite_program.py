"""One of two ranks: trains while a NaN arises on rank 1, with --nonfinite skip and stop.

nonfinite_program.py FOLDER ARGUMENTS...
"""

import contextlib
import importlib.util
import io
import json
import sys
from pathlib import Path

import ranks

from paddle_fused import virtual_npu

virtual_npu.activate()

import paddle  # noqa: E402

from llm_npu import ranks as processes  # noqa: E402
from llm_npu import trainer  # noqa: E402

SCRIPT = Path(__file__).resolve().parents[1] / "scripts/run_llama_npu.py"
BAD_STEP, BAD_LAYER = 1, "llama.layers.1.mlp.down_proj"


def script():
    spec = importlib.util.spec_from_file_location("run_llama_npu", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def spoil() -> None:
    """From now on a layer of rank 1 makes NaN in the second step."""
    train, hear = trainer.PretrainTrainer.training_step, trainer.PretrainTrainer._listen
    hooks = []

    def training_step(self, model, inputs, step_control=0):
        if self.state.global_step == BAD_STEP and processes.number() == 1:
            layer = dict(self.model.named_sublayers())[BAD_LAYER]
            hooks.append(layer.register_forward_post_hook(lambda *call: call[-1] * float("nan")))
        return train(self, model, inputs, step_control)

    def listen(self, step):
        while hooks:
            hooks.pop().remove()
        hear(self, step)

    trainer.PretrainTrainer.training_step, trainer.PretrainTrainer._listen = training_step, listen


def main(folder: Path, arguments: list[str]) -> None:
    run, found = script(), {}
    spoil()
    for number, choice in enumerate(("skip", "stop")):
        out = folder / f"out-{number}"
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                code = run([*arguments, "--nonfinite", choice, "--output_dir", str(out)])
            found[choice] = {"code": code}
        except ValueError as error:
            found[choice] = {"error": str(error)}
        paddle.distributed.barrier()
        records = (out / "metrics.jsonl").read_text().splitlines()
        found[choice]["steps"] = [json.loads(line) for line in records]
        found[choice]["said"] = said.getvalue()
    ranks.write(found)


main(Path(sys.argv[1]), sys.argv[2:])
