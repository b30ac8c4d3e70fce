"""Command line and file of arguments -> the checked value of every flag. Imports no framework."""

from __future__ import annotations

import argparse
import functools
import itertools
import os
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from llm_npu.core import paths
from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import pickles
from llm_npu.models import other_library
from llm_npu.models.families import FAMILIES
from llm_npu.models.presets import has_weights, is_preset, model_type, unknown_fields
from paddle_fused import command_line

from . import conflicts
from .arguments import (
    DataArguments,
    FusedArguments,
    ModelArguments,
    PreferenceArguments,
    RunConfig,
    default_packing,
    default_padding,
)
from .device_flag import checked
from .early import Early, process_count
from .flag import Flag, flags_of
from .library_flags import library_flags
from .training import TrainingFlags
from .written import nearest, values
from .written.aliases import translate
from .written.argument_file import split_file

# {stage: (of all weights, of LoRA's)} where the run starts from trained weights.
LEARNING_RATES = {"sft": (3e-5, 3e-4), "dpo": (1e-6, 1e-5)}
LAST_WORDS = (
    "FILE holds the same names, in YAML or JSON; flags override it. --no_NAME is --NAME false, where true is "
    "the default."
)


@dataclass(frozen=True)
class Arguments:
    """A parsed command line: every flag's value in ``values``, checked against all others.

    ``early``: what must be known before Paddle is imported. ``given``: the flags that the user wrote, name ->
    value. ``notes``: a line for each translated name.
    """

    values: Namespace
    early: Early
    given: Mapping[str, object]
    notes: tuple[str, ...]

    def ineffective(self) -> tuple[tuple[str, str], ...]:
        """(name, why) of every given flag that changes nothing in this run, in alphabetical order.

        A flag that was given as off (``--sequence_parallel 0``) is not listed.
        """
        named = {
            name: flags()[name].without_effect(self.values)
            for name, value in sorted(self.given.items())
            if not flags()[name].is_off(value)
        }
        return tuple((name, why) for name, why in named.items() if why)

    def build(self) -> RunConfig:
        """The dataclasses that the trainer and this package work with. Imports the library of models."""
        from .build import built

        return built(vars(self.values), self.early.device, self.given, self.ineffective(), self.notes)


def parse(argv: Sequence[str]) -> RunConfig:
    """``read`` and ``build`` in one. Imports the library of models."""
    return read(argv).build()


def read(argv: Sequence[str]) -> Arguments:
    """Parse and check ``argv`` (without the program's name).

    ``argv`` may start with a YAML or JSON file of the same names, or name one with ``--config``; flags
    override it. UserError with one sentence for unknown names (with the nearest known one), values of the
    wrong type and combinations that cannot work. ``--help`` prints the flags and raises SystemExit(0).
    """
    known = flags()
    names = {name: name for name in known}
    names |= {f"no_{each.name}": each.name for each in known.values() if each.default is True}
    in_file, line, notes = translate(*split_file(argv), known)
    _refuse_unknown(in_file, known)
    on_line = [flag[2:].partition("=")[0] for flag in line if flag.startswith("--")]
    on_line = [name for name in on_line if name != "help"]
    _refuse_unknown(on_line, names)

    overridden = {names[name] for name in on_line}
    kept = {name: value for name, value in in_file.items() if name not in overridden}
    notes += [_of_null(known[name]) for name, value in kept.items() if value is None and known[name].default]
    kept = {name: values.from_file(known[name], value) for name, value in kept.items() if value is not None}
    run, rest = _parser(known).parse_known_args(line, Namespace(**kept))
    if rest:
        raise UserError(
            f"{rest[0]!r:.300} belongs to no argument; a file of arguments must come before all flags"
        )
    given = {*kept, *overridden}
    for name, each in known.items():
        if each.path and getattr(run, name):
            setattr(run, name, paths.expanded(getattr(run, name)))
    device = checked(run.device)
    _choose_defaults(run, device, given)
    conflicts.check_strategies(run)
    for name, each in known.items():
        each.check(getattr(run, name))
    given = {name: getattr(run, name) for name in given}
    run.given, run.processes = given, max(process_count(), run.nproc or 1)  # nproc starts them
    conflicts.check(run, device)
    _check_model(run)
    return Arguments(run, Early.of(argv, run), given, (*notes, *_random_weights(run), *_of_model(run)))


@functools.cache
def flags() -> Mapping[str, Flag]:
    """Every flag of the training script by name."""
    return {
        **flags_of(ModelArguments, "Model"),
        **flags_of(DataArguments, "Data"),
        **flags_of(PreferenceArguments, "Preferences"),
        **flags_of(FusedArguments, "Fused operators"),
        **flags_of(TrainingFlags, "Training"),
        **library_flags(),
    }


def _parser(known: Mapping[str, Flag]) -> command_line.Parser:
    usage = "llm-npu train [FILE | --config FILE] [--name value ...]"
    parser = command_line.Parser(usage=usage, epilog=LAST_WORDS)
    for section, members in itertools.groupby(known.values(), lambda each: each.section):
        group = parser.add_argument_group(section)
        for each in members:
            group.add_argument(f"--{each.name}", **_keywords(each))
            if each.default is True:
                group.add_argument(
                    f"--no_{each.name}", dest=each.name, action="store_false", help=argparse.SUPPRESS
                )
    return parser


def _keywords(flag: Flag) -> dict[str, object]:
    """The arguments of argparse's ``add_argument`` for a flag."""
    shown = "" if flag.default in (None, "", []) else f" (default: {flag.default})"
    help = f"{other_library.help_of_flag(flag.name, flag.help)}{shown}"
    keywords = {"default": flag.default, "help": help.replace("%", "%%")}
    if flag.choices:
        keywords["metavar"] = f"{{{','.join(flag.choices)}}}"
    kind, depth = values.item_type(flag.kind)
    keywords["type"] = values.reader(kind)
    if kind is bool and not depth:
        return {**keywords, "nargs": "?", "const": True, "metavar": "BOOL"}
    keywords.setdefault("metavar", kind.__name__.upper())
    if not depth:
        optional = {} if flag.value_if_bare is None else {"nargs": "?", "const": flag.value_if_bare}
        return {**keywords, **optional}
    if depth > 1:  # the flag is given several times
        keywords["action"] = "append"
    return {**keywords, "nargs": "+"}


def _random_weights(run: Namespace) -> list[str]:
    """A note where auto-parallel's random weights differ from those of the same run without it."""
    joined = run.fuse_attention_qkv or run.fuse_attention_ffn
    made = not (run.continue_training or run.resume_from_checkpoint)
    if not (run.enable_auto_parallel and joined and made):
        return []
    return [
        "--enable_auto_parallel keeps the projections of attention and MLP separate, so its random weights "
        "are those of a run with --fuse_attention_qkv false --fuse_attention_ffn false"
    ]


def _of_model(run: Namespace) -> list[str]:
    """A note on the fields of a directory's config.json that nothing reads."""
    name = run.model_name_or_path
    found = unknown_fields(name) if os.path.isdir(name) else []
    what = "a field that nothing" if len(found) == 1 else "fields that nothing"
    return [f"{name}/config.json has {what} here reads: {', '.join(found):.300}"] if found else []


def _of_null(flag: Flag) -> str:
    return f"--{flag.name} is null in the file of arguments, so it keeps its default, {flag.default}"


def _refuse_unknown(names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name in known:
            continue
        meant = nearest.name(name, (*known, "config"))
        hint = f"did you mean --{meant}?" if meant else "--help lists all flags"
        raise UserError(f"--{name:.80} is no argument of this script; {hint}")


def _choose_defaults(run: Namespace, device: str, given: set[str]) -> None:
    """Defaults that depend on other flags: an explicit choice switches off defaults that contradict it."""

    def default(name: str, value: object) -> None:
        if name not in given:
            setattr(run, name, value)

    _choose_samples(run, default)
    if run.fp16 or device == "cpu":  # Paddle's CPU place has no bf16 matmul
        default("bf16", False)
    if not (run.bf16 or run.fp16) or run.fp16_opt_level != "O2":
        default("amp_master_grad", False)
    if str(run.resume_from_checkpoint).lower() in values.YAML_FALSE:
        run.resume_from_checkpoint = None
    if str(run.resume_from_checkpoint).lower() in values.YAML_TRUE:
        run.resume_from_checkpoint = "true"
    if "warmup_steps" in given:
        default("warmup_ratio", 0.0)
    if run.model_type in FAMILIES:
        default("model_name_or_path", FAMILIES[run.model_type].tiny)
    default("warmup_steps", int(run.warmup_ratio * max(0, run.max_steps)))
    default("min_learning_rate", 0.1 * run.learning_rate)
    default("continue_training", has_weights(run.model_name_or_path))
    if not run.do_eval:
        default("evaluation_strategy", "no")
    if run.evaluation_strategy == "no":
        default("do_eval", False)


def _choose_samples(run: Namespace, default: Callable[[str, object], None]) -> None:
    run.stage = run.stage.lower()  # PaddleFormers' files have SFT and DPO
    named = dict.fromkeys(values.YAML_TRUE, "stream" if run.stage == "pt" else "first_fit")
    named |= dict.fromkeys(values.YAML_FALSE, "none")
    packing = str(run.packing or default_packing(run.stage)).lower()
    run.packing = named.get(packing, packing)
    fused = run.use_npu_fusion_attention and not run.disable_fused_options
    # Without fused attention the mask of one long row would be written out.
    default("padding", default_padding(run.packing) if fused else "longest")
    default("lora_alpha", 2 * run.lora_rank)
    if run.stage in LEARNING_RATES:
        full, lora = LEARNING_RATES[run.stage]
        default("learning_rate", lora if run.finetuning_type == "lora" else full)


def _check_model(run: Namespace) -> None:
    name = run.model_name_or_path
    if not os.path.isdir(name):
        model_type(name)  # refuses what is no preset
    reasons = {"--finetuning_type lora": run.finetuning_type == "lora", "--stage dpo": run.stage == "dpo"}
    starts_from_weights = [flag for flag, holds in reasons.items() if holds]
    if starts_from_weights and has_weights(name) and not run.continue_training:
        raise UserError(f"{starts_from_weights[0]} starts from weights; leave --continue_training false out")
    if has_weights(name) or not (starts_from_weights or run.continue_training):
        return
    asked = starts_from_weights[0] if starts_from_weights else "--continue_training"
    lacks = "is a preset, which has no weights" if is_preset(name) else "holds no .safetensors"
    if not is_preset(name) and (pickle := pickles.first(name)):
        lacks += f": {pickle.name} {pickles.REASON}; {pickles.WEIGHTS}"
    raise UserError(f"{asked} needs a directory with a model's weights, but {name!r} {lacks}")
