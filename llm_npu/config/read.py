"""Command line and argument file -> the checked value of every flag. Imports no framework."""

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
    chosen_packing,
    default_padding,
)
from .early import Early, process_count
from .flag import BOOL_OR_TEXT, Flag, flags_of
from .library_flags import library_flags
from .training import TrainingFlags
from .written import split_file, translate

# {stage: (full, LoRA)} learning rates of runs that start from trained weights.
LEARNING_RATES = {"sft": (3e-5, 3e-4), "dpo": (1e-6, 1e-5)}
LAST_WORDS = (
    "FILE contains the same names in YAML or JSON; flags override it. --no_NAME means --NAME false, for "
    "switches that can be on by default."
)


@dataclass(frozen=True)
class Arguments:
    """A parsed command line.

    Attributes:
        values: The value of every flag, checked against all others.
        early: Settings needed before Paddle is imported.
        explicit: Flags set by the user, name -> value.
        notes: One line for each translated name.
    """

    values: Namespace
    early: Early
    explicit: Mapping[str, object]
    notes: tuple[str, ...]

    def ineffective(self) -> tuple[tuple[str, str], ...]:
        """(name, why) of each explicit flag without effect in this run, in alphabetical order.

        Flags that switch something off (``--sequence_parallel 0``) are not listed.
        """
        reasons = {
            name: flags()[name].without_effect(self.values)
            for name, value in sorted(self.explicit.items())
            if not flags()[name].is_off(value)
        }
        return tuple((name, why) for name, why in reasons.items() if why)

    def build(self) -> RunConfig:
        """The dataclasses used by the trainer and this package. Imports the model library."""
        from .build import run_config

        return run_config(vars(self.values), self.explicit, self.ineffective(), self.notes)


def parse(argv: Sequence[str]) -> RunConfig:
    """``read`` followed by ``build``. Imports the model library."""
    return read(argv).build()


def read(argv: Sequence[str]) -> Arguments:
    """Parse and check ``argv`` (without the program's name).

    ``argv`` may start with a YAML or JSON file of arguments, or name one with ``--config``; flags override
    it. Raises UserError for unknown names (suggesting the nearest known name), values of the wrong type, and
    contradicting flags. ``--help`` prints the flags and raises SystemExit(0).
    """
    known = flags()
    names = {name: name for name in known}
    names |= {f"no_{flag.name}": flag.name for flag in known.values() if flag.has_negation}
    in_file, line, notes = translate(*split_file(argv), known)
    _refuse_unknown(in_file, known)
    on_line = [word[2:].partition("=")[0] for word in line if word.startswith("--")]
    on_line = [name for name in on_line if name != "help"]
    _refuse_unknown(on_line, names)

    overridden = {names[name] for name in on_line}
    kept = {name: value for name, value in in_file.items() if name not in overridden}
    notes += [_of_null(known[name]) for name, value in kept.items() if value is None and known[name].default]
    kept = {name: known[name].from_file(value) for name, value in kept.items() if value is not None}
    run, rest = _parser(known).parse_known_args(line, Namespace(**kept))
    if rest:
        raise UserError(
            f"{rest[0]!r:.300} is not the value of any flag; an argument file must come before all flags"
        )
    explicit = {*kept, *overridden}
    for name, flag in known.items():
        if flag.path and isinstance(getattr(run, name), str):
            setattr(run, name, paths.expanded(getattr(run, name)))
    known["device"].check(run.device)
    _choose_defaults(run, explicit)
    for name, flag in known.items():
        flag.check(getattr(run, name))
    explicit = {name: getattr(run, name) for name in explicit}
    run.explicit, run.processes = explicit, max(process_count(), run.nproc or 1)  # --nproc starts processes
    conflicts.check(run)
    _check_model(run)
    return Arguments(run, Early.of(argv, run), explicit, (*notes, *_random_weights(run), *_of_model(run)))


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
    for section, members in itertools.groupby(known.values(), lambda flag: flag.section):
        group = parser.add_argument_group(section)
        for flag in members:
            group.add_argument(f"--{flag.name}", **_keywords(flag))
            if flag.has_negation:
                group.add_argument(
                    f"--no_{flag.name}", dest=flag.name, action="store_false", help=argparse.SUPPRESS
                )
    return parser


def _keywords(flag: Flag) -> dict[str, object]:
    """The keyword arguments of argparse's ``add_argument`` for a flag."""
    shown = "" if flag.default in (None, "", []) else f" (default: {flag.default})"
    help = f"{other_library.help_of_flag(flag.name, flag.help)}{shown}"
    keywords = {"default": flag.default, "help": help.replace("%", "%%")}
    if flag.choices:
        keywords["metavar"] = f"{{{','.join(flag.choices)}}}"
    kind, depth = flag.item
    keywords["type"] = flag.parse
    if kind is bool and not depth:
        return {**keywords, "nargs": "?", "const": True, "metavar": "BOOL"}
    keywords.setdefault("metavar", "TEXT" if kind == BOOL_OR_TEXT else kind.__name__.upper())
    if not depth:
        optional = {} if flag.value_if_bare is None else {"nargs": "?", "const": flag.value_if_bare}
        return {**keywords, **optional}
    if depth > 1:  # the flag can be given several times
        keywords["action"] = "append"
    return {**keywords, "nargs": "+"}


def _random_weights(run: Namespace) -> list[str]:
    """A note if auto-parallel changes the random weights of the run."""
    joined = run.fuse_attention_qkv or run.fuse_attention_ffn
    starts_random = not (run.continue_training or run.resume_from_checkpoint)
    if not (run.enable_auto_parallel and joined and starts_random):
        return []
    return [
        "--enable_auto_parallel keeps the projections of attention and MLP separate, so its random weights "
        "equal those of a run with --fuse_attention_qkv false --fuse_attention_ffn false"
    ]


def _of_model(run: Namespace) -> list[str]:
    """A note on unused fields of config.json."""
    name = run.model_name_or_path
    unread = unknown_fields(name) if os.path.isdir(name) else []
    fields = "an unused field" if len(unread) == 1 else "unused fields"
    return [f"{name}/config.json has {fields}: {', '.join(unread):.300}"] if unread else []


def _of_null(flag: Flag) -> str:
    return f"--{flag.name} is null in the argument file; it keeps its default, {flag.default}"


def _refuse_unknown(names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name in known:
            continue
        nearest = command_line.nearest_name(name, (*known, "config"))
        hint = f"did you mean --{nearest}?" if nearest else "--help lists all flags"
        raise UserError(f"--{name:.80} is not an argument of this script; {hint}")


def _choose_defaults(run: Namespace, explicit: set[str]) -> None:
    """Set defaults that depend on other flags; defaults do not contradict an explicit flag."""

    def default(name: str, value: object) -> None:
        if name not in explicit:
            setattr(run, name, value)

    _choose_samples(run, default)
    if run.fp16 or run.device == "cpu":  # Paddle's CPU backend has no bf16 matmul
        default("bf16", False)
    if not (run.bf16 or run.fp16) or run.fp16_opt_level != "O2":
        default("amp_master_grad", False)
    if run.resume_from_checkpoint is False:
        run.resume_from_checkpoint = None
    elif isinstance(run.resume_from_checkpoint, str) and run.resume_from_checkpoint.lower() == "auto":
        run.resume_from_checkpoint = "auto"
    if "warmup_steps" in explicit:
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
    run.packing = chosen_packing(run.stage, run.packing)
    fused = run.use_npu_fusion_attention and not run.disable_fused_options
    # Without fused attention, the mask of one long row would be materialized.
    default("padding", default_padding(run.packing) if fused else "longest")
    default("lora_alpha", 2 * run.lora_rank)
    if run.stage in LEARNING_RATES:
        full, lora = LEARNING_RATES[run.stage]
        default("learning_rate", lora if run.finetuning_type == "lora" else full)


def _check_model(run: Namespace) -> None:
    name = run.model_name_or_path
    if not os.path.isdir(name):
        model_type(name)  # raises if the name is not a preset
    reasons = {"--finetuning_type lora": run.finetuning_type == "lora", "--stage dpo": run.stage == "dpo"}
    needs_weights = [flag for flag, holds in reasons.items() if holds]
    if needs_weights and has_weights(name) and not run.continue_training:
        raise UserError(f"{needs_weights[0]} starts from trained weights; remove --continue_training false")
    if has_weights(name):
        return
    if run.continue_training:
        needs_weights.append("--continue_training")
    pickle = None if is_preset(name) else pickles.first(name)
    refusal = f"{pickle.name} {pickles.REASON}; {pickles.WEIGHTS}" if pickle else ""
    if needs_weights:
        lacks = "is a preset, which has no weights" if is_preset(name) else "contains no .safetensors"
        raise UserError(
            f"{needs_weights[0]} needs a directory with a model's weights, but {name!r} "
            f"{': '.join(filter(None, (lacks, refusal)))}"
        )
    if pickle and "continue_training" not in run.explicit:
        raise UserError(
            f"--model_name_or_path {name}: {refusal}, or set --continue_training false to start from random "
            "weights"
        )
