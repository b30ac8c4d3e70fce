"""Check that a model stays on an Ascend card's cores. Exit code 1 if something would run on the AICPU.

    llm-npu check_dtypes llama-tiny                # a preset, or a directory with config.json
    llm-npu check_dtypes run.yaml                  # the arguments of llm-npu train
    llm-npu check_dtypes my_model.py:build --json  # a function that returns a layer and a sample

Builds the model with random weights and --layers layers in the precision of the run, checks the tensors of
the model and its optimizer, and records the kernels of one training step. A custom function takes no
arguments and returns a layer and a sample, the model's input (a dictionary of arguments, a list or a tensor).
The model's first output is its loss, and there is no optimizer.

Exit codes: 0 nothing would run on the AICPU; 1 something would; 2 bad input, with an error on stderr. --host
also counts fallbacks to the host CPU for dtypes that paddle-custom-npu lacks.
"""

import argparse
import importlib.util
from pathlib import Path

import virtual_npu
from llm_npu import config, device
from llm_npu.core import console, paths
from llm_npu.core.errors import UserError
from llm_npu.models import library
from paddle_fused import command_line, strict_json

BATCH = 2
FILES = (".yaml", ".yml", ".json")


def main(argv: list[str]) -> int:
    arguments = parse(argv)
    chosen = device.select(arguments.device)  # the device determines Paddle's plugin
    console.import_frameworks(library.installed())
    import paddle

    from llm_npu import dtypes, patches

    patches.apply()
    virtual_npu.stop_aicpu_warnings()  # the report includes them
    paddle.set_device(chosen.name)
    own = arguments.model.partition(".py:")[1] != ""
    model, sample, run = of_function(arguments.model) if own else of_run(arguments)
    report = one_step(model, sample, run, dtypes)
    leaving = [finding for finding in report.findings if arguments.host or finding.place == "aicpu"]
    if arguments.json:
        print(strict_json.dumps(report.as_dict(), indent=2))
    else:
        console.say(str(report))
    return 1 if leaving else 0


def parse(argv: list[str]) -> argparse.Namespace:
    parser = command_line.of_document("llm-npu check_dtypes", __doc__)
    parser.add_argument(
        "model",
        type=paths.expanded,
        help="a preset, a directory, a YAML or JSON file, or FILE.py:FUNCTION",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--host", action="store_true", help="also exit with code 1 if a kernel falls back to the host CPU"
    )
    parser.add_argument("--layers", type=int, default=2, help="number of layers to build (default 2)")
    parser.add_argument("--device", default="npu", help="as in llm-npu train (default npu)")
    return parser.parse_args(argv)


def of_function(name: str):
    """The model and the sample that FILE.py:FUNCTION returns."""
    file, _, function = name.rpartition(":")
    if not Path(file).is_file():
        raise UserError(f"{file} is not a file; specify FILE.py:FUNCTION")
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, function):
        raise UserError(f"{file} has no function {function}")
    built = getattr(module, function)()
    if not isinstance(built, tuple) or len(built) != 2:
        raise UserError(f"{name} must return a layer and a sample, not a {type(built).__name__}")
    return *built, None


def of_run(arguments: argparse.Namespace):
    """The model of a preset, a directory or an argument file, a batch of random tokens, and the run."""
    import paddle

    from llm_npu import surgery
    from llm_npu.inference.generate import positions
    from llm_npu.models import families, presets
    from llm_npu.training.model import config_for

    flags = ["--num_hidden_layers", str(arguments.layers), "--continue_training", "false"]
    named = Path(arguments.model).suffix in FILES and Path(arguments.model).is_file()
    which = [arguments.model] if named else ["--model_name_or_path", arguments.model]
    run = config.parse([*which, *flags, "--device", arguments.device])
    if not named:  # no length was given: use the default, or the model's maximum
        room = positions(presets.model_config(arguments.model))
        run.data.max_seq_length = min(run.data.max_seq_length, room)
    model_config = config_for(run)
    model = families.new_model(model_config)
    switches = run.fused.of_layers()
    if any(switches.values()):
        surgery.apply_fused_kernels(model, **switches)
    tokens = paddle.randint(0, model_config.vocab_size, [BATCH, run.data.max_seq_length])
    return model, {"input_ids": tokens, "labels": tokens}, run


def one_step(model, sample, run, dtypes):
    """Report on the tensors and kernels of one step; a custom model has no optimizer."""
    import paddle

    optimizer, precision = None, {"enable": False}
    if run is not None:
        optimizer = paddle.optimizer.AdamW(1e-4, parameters=model.parameters(), multi_precision=True)
        if run.training.bf16 or run.training.fp16:
            dtype = "float16" if run.training.fp16 else "bfloat16"
            precision = {"dtype": dtype, "level": run.training.fp16_opt_level}
        if precision.get("level") == "O2":
            model, optimizer = paddle.amp.decorate(model, optimizer, **precision)
    model.train()
    before = dtypes.audit(model, sample=sample if run is None else None)
    with dtypes.watch(model, action="collect") as watched:
        with paddle.amp.auto_cast(**precision):
            args, kwargs = dtypes.arguments_of(sample)
            loss = model(*args, **kwargs)
        loss = loss[0] if isinstance(loss, (list, tuple)) else loss
        loss.sum().backward()
        if optimizer is not None:
            optimizer.step()
    return (before if optimizer is None else dtypes.audit(model, optimizer)) + watched.report()
