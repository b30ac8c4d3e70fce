"""Does a run fit on N cards, how fast is it, and what limits it?  ``llm-npu plan``"""

from __future__ import annotations

import argparse
import dataclasses
import sys

from llm_npu.core import cards, paths, program, stopping
from llm_npu.core.errors import UserError, caused_by_the_user
from llm_npu.core.untrusted.plain_text import LAYOUT, printable
from llm_npu.models import other_library, upstream_config
from llm_npu.models.paddleformers.vision_language import PADDLEOCR_VL
from paddle_fused import command_line, strict_json

from . import answer as answers
from . import interval, table, vision
from .layout import GRANULARITIES, MASKS, OVERLAPS, PASSED_ON, SCHEDULES, SHARDING, Layout
from .shape import ModelShape
from .step_model.program import CHUNKS
from .trainer import with_paddleformers

SEARCHED = {*PASSED_ON, "recompute_granularity", "per_device_train_batch_size"} - {
    "fp16",
    "offload_optimizer",
}


_SWITCH = {"type": command_line.truth, "nargs": "?", "const": True, "metavar": "true"}


def _overlap(word: str) -> str:
    """An overlap mode; for the script's pipelined:N, N must be the modeled number of chunks."""
    name, _, chunks = word.partition(":")
    if chunks and (name, chunks) != ("pipelined", str(CHUNKS)):
        raise argparse.ArgumentTypeError(f"{word} cannot be planned; use pipelined:{CHUNKS} or another mode")
    return name


def _grid(word: str) -> tuple[int, int]:
    rows, _, columns = word.partition("x")
    return int(rows), int(columns)


_grid.__name__ = "ROWSxCOLUMNS"  # in argparse's message


def parser() -> command_line.Parser:
    command = command_line.Parser(prog="llm-npu plan", description=__doc__.partition("  ")[0])
    add = command.add_argument
    name = {"type": paths.expanded, "metavar": "PRESET_OR_DIR"}
    add("--model_name_or_path", required=True, **name, help="as in run_llama_npu.py")
    add("--card", default="910b", help="910b, 910b1 to 910b4, 910c, ... (default: %(default)s)")
    add("--cards", type=int, required=True, metavar="N", help="cards of the whole run")
    add("--max_seq_length", type=int, metavar="S", help="tokens per sample (default: 4096, or the model's)")
    add("--per_device_train_batch_size", type=int, metavar="B", help="samples per micro batch (default: 1)")
    add("--global_batch_size", type=int, metavar="G", help="samples per step (default: one micro batch each)")
    add("--tensor_parallel_degree", type=int, metavar="T")
    add("--pipeline_parallel_degree", type=int, metavar="P")
    add("--sep_parallel_degree", type=int, metavar="U", help="cards that share heads and tokens (Ulysses)")
    add("--context_parallel_degree", type=int, metavar="R", help="cards of a ring that shares tokens")
    add(
        "--expert_parallel_degree", type=int, metavar="E", help="cards that share the experts of an MoE layer"
    )
    add("--pipeline_schedule", metavar="WHAT", help=", ".join(filter(None, SCHEDULES)))
    add("--virtual_pp_degree", type=int, metavar="V", help="model chunks per pipeline stage")
    add("--sequence_parallel", **_SWITCH)
    add("--sharding", metavar="STAGE", help=", ".join(filter(None, SHARDING)))
    add("--recompute", **_SWITCH)
    add("--recompute_granularity", metavar="WHAT", help=", ".join(GRANULARITIES))
    add("--offload_optimizer", nargs="?", const="device", metavar="WHERE", help="device or host")
    add("--offload_activations", **_SWITCH)
    modes = f"{', '.join(OVERLAPS)} (default: serial; a search tries all)"
    add("--overlap", type=_overlap, metavar="MODE", help=other_library.help_of_flag("overlap", modes))
    add("--fp16", **_SWITCH, help="train in float16 instead of bfloat16")
    add("--mask", metavar="MASK", help=", ".join(MASKS) + " (default: causal)")
    add("--image_patches", type=_grid, metavar="ROWSxCOLUMNS", help="of an image of PaddleOCR-VL")
    add("--text_tokens", type=int, metavar="N", help="text tokens for each image")
    add("--freeze_config", metavar="PARTS", help=f"as in the YAML file: {' '.join(vision.FREEZES)}")
    add("--lora_rank", type=int, metavar="R", help="as in the YAML file")
    add("--search", action="store_true", help="find the fastest layout that fits; excludes degrees")
    add("--json", action="store_true", help="print JSON")
    return command


def planned(argv: list[str] | None) -> tuple[argparse.Namespace, answers.Answer]:
    """Parse the command line and compute the answer. Raises ValueError for bad input."""
    options = parser().parse_args(argv)
    if upstream_config.model_type(options.model_name_or_path) == PADDLEOCR_VL.model_type:
        return options, vision.planned(options)
    if flags := [name for name in vision.FLAGS if getattr(options, name)]:
        raise UserError(
            f"--{flags[0]} is only for {PADDLEOCR_VL.title}, but {options.model_name_or_path} has no "
            "config.json of this family; name its directory, or omit the flag"
        )
    names = {field.name for field in dataclasses.fields(Layout)}
    fields = {name: value for name, value in vars(options).items() if name in names and value is not None}
    if options.global_batch_size == 0:  # Layout's value for the default
        raise UserError("--global_batch_size is 0, but must be a whole number of 1 or more")
    if options.recompute_granularity and not options.recompute and not options.search:
        raise UserError("--recompute_granularity has no effect without --recompute; add --recompute")
    if options.search:
        for name in fields:
            if name in SEARCHED:
                raise UserError(f"--search chooses --{name} itself; omit one of the two")
        if "global_batch_size" not in fields:
            raise UserError("--search needs --global_batch_size; specify the number of samples per step")
        fields["recompute"] = options.offload_activations is True  # which needs it; the search tries both
        # A single replica accepts any number of samples.
        fields["tensor_parallel_degree"] = max(options.cards, 1)
    shape = ModelShape.of(options.model_name_or_path)
    if options.overlap:
        other_library.refuse_flag("overlap")
    fields.setdefault("max_seq_length", min(4096, shape.max_position_embeddings))
    card = cards.card(options.card, "float16" if options.fp16 else "bfloat16")
    overlaps = OVERLAPS if options.search and not options.overlap and not with_paddleformers(shape) else ()
    return options, answers.planned(shape, Layout(**fields), card, options.search, overlaps)


def as_json(answer: answers.Answer) -> dict[str, object]:
    """The output of ``--json`` in seconds, bytes, and tokens per second per card."""

    def arguments(layout: Layout) -> list[str] | None:
        return None if answer.shape.planned_only else table.arguments(answer.shape, layout)

    change = None
    if answer.change:
        change = {
            "change": answer.to_change,
            "step_time_s": answer.change.seconds,
            "peak_memory_bytes": answer.change.memory.peak_memory_bytes,
            "close_to_limit": answer.close_with(answer.change),
            "arguments": arguments(answer.change.layout),
        }
    return {
        "tokens_per_second_per_card": answer.time.tokens_per_second_per_card,
        "step_time_s": answer.time.step_time_s,
        "mfu": answer.time.mfu,
        "peak_memory_bytes": answer.memory.peak_memory_bytes,
        "breakdown": {
            "time_s": dict(answer.shares),
            "hidden_communication_s": answer.time.hidden,
            "relative_error": answer.interval.width,
            "step_time_range_s": list(interval.around(answer.time.step_time_s, answer.interval.width)),
            "memory": [
                {"stage": stage.stage, "moments": [dataclasses.asdict(moment) for moment in stage.moments]}
                for stage in answer.memory.stages
            ],
        },
        "plan": {
            "model": answer.shape.name,
            "card": answer.card.name,
            "unlike_published_runs": list(answer.interval.unlike),
            "fits": answer.fits,
            "close_to_limit": answer.close,
            "limit_bytes": answer.limit,
            "layout": dataclasses.asdict(answer.layout),
            "arguments": arguments(answer.layout),
            "cheapest_change": change,
            "notes": table.notes(answer),
        },
    }


def main(argv: list[str]) -> int:
    """Run the command; return the exit code."""
    stopping.unshield()  # no framework import needs the shield
    with caused_by_the_user():
        options, answer = planned(argv)
    text = strict_json.dumps(as_json(answer), indent=2) if options.json else table.write(answer)
    print(printable(text, keep=LAYOUT), end="")
    return 0


if __name__ == "__main__":
    stopping.listen("before the plan was printed")
    sys.exit(program.run(main, sys.argv[1:]))
