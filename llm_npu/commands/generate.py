r"""Continue prompts with a language model from a local checkpoint of this project or Hugging Face.

    llm-npu generate output/checkpoint-100 --prompt "def __init__(self"
    llm-npu generate CHECKPOINT --chat --prompt "2 + 2?"        # formatted by the chat template
    llm-npu generate CHECKPOINT --batch prompts.txt --decode sampling --top_p 0.9
    llm-npu generate CHECKPOINT --prompt "Once upon" --unfused --device cpu
    llm-npu generate CHECKPOINT --prompt "Once upon" --nproc 4 --tensor_parallel_degree 2 \
        --pipeline_parallel_degree 2                                      # a model that needs four cards

Prefill and decoding are timed separately; the first batch also includes one-time setup. Exit codes: 0 done; 2
bad input, with an error on stderr; 130 after Ctrl-C. If a rank of --nproc is lost, the others exit within
seconds, with the lost rank's exit code.
"""

import argparse
from pathlib import Path

from llm_npu import device
from llm_npu.commands import ranks
from llm_npu.core import console, paths
from llm_npu.core.errors import UserError, caused_by_the_user
from llm_npu.core.untrusted import plain_json
from llm_npu.inference.mesh import Mesh
from llm_npu.inference.options import OPTIONS, Option
from llm_npu.models import library
from paddle_fused import command_line

DECODES = ("greedy", "sampling", "beam")


def main(argv: list[str]) -> int:
    arguments = parse(argv)
    prompts = arguments.prompt or lines_of(arguments.batch)
    if any("\ud800" <= letter <= "\udfff" for prompt in prompts for letter in prompt):
        raise UserError("a prompt is not valid Unicode; use text in the terminal's encoding")
    mesh = mesh_of(arguments)
    return ranks.run(
        "generate",
        argv,
        arguments.device,
        arguments.nproc,
        lambda chosen: generate(arguments, prompts, chosen, mesh),
    )


def mesh_of(arguments: argparse.Namespace) -> Mesh:
    """The ranks that split the model. Raises UserError for degrees that do not fit processes or model."""
    mesh = Mesh(
        arguments.tensor_parallel_degree,
        arguments.pipeline_parallel_degree,
        auto=arguments.enable_auto_parallel,
        to_static=arguments.to_static,
    )
    ranks.check_processes(mesh, arguments.nproc)
    mesh.check(arguments.checkpoint)
    return mesh


def generate(arguments: argparse.Namespace, prompts: list[str], chosen: device.Device, mesh: Mesh) -> int:
    """Generate on this rank; only rank 0 prints."""
    ranks.import_and_join(chosen, mesh)
    import paddle

    from llm_npu import surgery
    from llm_npu.data.text import chat_template, tokenizer
    from llm_npu.inference.generate import continuations

    with caused_by_the_user():  # damaged or missing files
        tokens = tokenizer.load_tokenizer(
            arguments.checkpoint if arguments.tokenizer is None else arguments.tokenizer
        )
        for note in tokens.notes:
            console.say(note)
        model = mesh.load_model(arguments.checkpoint, arguments.dtype)
    if arguments.unfused:
        console.say("fused operators: none (--unfused)")
    else:
        console.say(f"fused operators: {surgery.apply_fused_kernels(model).summary()}")
    paddle.seed(arguments.seed)
    done = []
    for first in range(0, len(prompts), arguments.batch_size):
        batch = prompts[first : first + arguments.batch_size]
        rows = [chat_template.question(tokens, prompt) for prompt in batch] if arguments.chat else batch
        texts, generated = continuations(
            model, tokens, rows, arguments.max_new_tokens, arguments.decode, **options_of(arguments)
        )
        done.append(generated)
        for prompt, text in zip(batch, texts, strict=True):
            console.say(f"{prompt}\n{text}" if arguments.chat else f"{prompt}{text}")
    prefill = speed(done, "prompt_tokens", "prefill_seconds")
    console.say(f"prefill {prefill}, decode {speed(done, 'decoded_tokens', 'decode_seconds')}")
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    parser = command_line.of_document("llm-npu generate", __doc__)
    parser.add_argument(
        "checkpoint", type=paths.expanded, help="folder with config.json, safetensors files, tokenizer"
    )
    prompts = parser.add_mutually_exclusive_group(required=True)
    prompts.add_argument("--prompt", action="append", help="text to continue; can be repeated")
    prompts.add_argument("--batch", type=paths.path_argument, help="text file with a prompt in each line")
    parser.add_argument("--chat", action="store_true", help="prompts are messages to the assistant")
    parser.add_argument("--batch_size", type=ranks.positive, default=8, help="prompts per batch (default: 8)")
    parser.add_argument("--device", default="npu", help=device.ACCEPTED)
    parser.add_argument(
        "--nproc",
        type=ranks.positive,
        default=1,
        help="number of ranks to split the model over, one per device",
    )
    parser.add_argument("--tensor_parallel_degree", type=ranks.positive, default=1, help="ranks per layer")
    parser.add_argument(
        "--pipeline_parallel_degree", type=ranks.positive, default=1, help="number of pipeline stages"
    )
    parser.add_argument(
        "--enable_auto_parallel",
        action="store_true",
        help="split the single-device model by auto-parallel's annotations",
    )
    parser.add_argument(
        "--to_static",
        action="store_true",
        help="with --enable_auto_parallel: run static programs, without a cache",
    )
    parser.add_argument("--dtype", help="float32, bfloat16 or float16 (default: as stored; on cpu float32)")
    parser.add_argument(
        "--tokenizer", type=paths.expanded, help="folder of the tokenizer (default: the checkpoint)"
    )
    parser.add_argument("--max_new_tokens", type=ranks.positive, default=32)
    parser.add_argument("--decode", choices=DECODES, default="greedy")
    parser.add_argument(
        "--unfused",
        action="store_true",
        help=f"use the layers of {library.names.TITLE} without fused operators",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of sampling (default: 0)")
    for name, option in STRATEGIES.items():
        parser.add_argument(f"--{name}", type=option.kind, help=f"of {option.decode}")
    arguments = parser.parse_args(argv)
    for name, option in STRATEGIES.items():
        if getattr(arguments, name) is not None and option.decode != arguments.decode:
            parser.error(
                f"--{name} has no effect with --decode {arguments.decode}; it is for {option.decode}"
            )
    for name, option in {**STRATEGIES, "seed": SEED}.items():
        value = getattr(arguments, name)
        if value is not None and option.rejects(value):
            parser.error(f"--{name} is {value}; accepted: {option.accepted}")
    return arguments


# Options for a single --decode strategy.
STRATEGIES = {name: option for name, option in OPTIONS.items() if option.decode}
SEED = Option(int, "0 to 2**63 - 1", lambda value: 0 <= value < 1 << 63)


def options_of(arguments: argparse.Namespace) -> dict:
    options = {name: getattr(arguments, name) for name in STRATEGIES}
    return {name: value for name, value in options.items() if value is not None}


def lines_of(file: Path) -> list[str]:
    prompts = [line for line in plain_json.text_of(file).split("\n") if line.strip()]
    if not prompts:
        raise UserError(f"{file} contains no prompts; write one per line")
    return prompts


def speed(done: list, tokens: str, seconds: str) -> str:
    """``12 tokens in 0.5 s (24 tokens/s)`` over all batches."""
    count, time = (sum(getattr(batch, name) for batch in done) for name in (tokens, seconds))
    return f"{count} tokens in {time:.3f} s ({count / time:,.1f} tokens/s)"
