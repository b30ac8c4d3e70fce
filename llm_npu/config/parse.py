"""Command line and file -> RunConfig."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
import itertools
from collections.abc import Callable, Iterable, Sequence

from llm_npu.models.paddlenlp.presets import TINY, has_weights, is_preset

from .argument_file import as_flags, split_file
from .arguments import DataArguments, ModelArguments, RunConfig, default_packing, default_padding
from .device_flag import paddle_name
from .early import Early
from .fused import FusedArguments
from .other_names import translate
from .parallel_checks import check_parallel, process_count
from .value_checks import CHOICES, check_values

OWN_CHECKPOINTS = ("unified_checkpoint", "save_sharded_model", "load_sharded_model", "force_reshard_pp")
COMMA_SEPARATED = ("split",)  # one string on the command line; a list of its parts, too, in a file


def parse(argv: Sequence[str]) -> RunConfig:
    """The run that ``argv`` (without the program's name) asks for. Imports paddlenlp.

    ``argv`` may start with a YAML or JSON file of the same names, or name one with ``--config``; flags
    override it. ValueError with one sentence for unknown names (with the nearest known one), values of the
    wrong type and combinations that cannot work. ``--help`` prints the arguments and raises SystemExit(0).
    """
    device = Early.read(argv).device
    from .training import Parser, PretrainArguments

    kinds = (ModelArguments, FusedArguments, DataArguments, PretrainArguments)
    known = _names(kinds)
    in_file, flags, notes = translate(*split_file(argv))
    flags = _newest_checkpoint(flags)
    _refuse_unknown(in_file, set(known.values()))
    on_line = [flag[2:].partition("=")[0] for flag in flags if flag.startswith("--")]
    _refuse_unknown((name for name in on_line if name != "help"), known)

    given = {known[name] for name in (*in_file, *on_line) if name != "help"}
    overridden = {known[name] for name in on_line if name != "help"}
    parser = Parser(kinds)
    lists = parser.lists()
    kept = {
        name: _from_file(name, value, name in lists)
        for name, value in in_file.items()
        if known[name] not in overridden
    }
    namespace, rest = parser.parse_known_args([*as_flags(kept), *flags])
    if rest:
        raise ValueError(
            f"{rest[0]!r} belongs to no argument; a file of arguments must come before all flags"
        )

    values = vars(namespace)
    _choose_defaults(values, device, given)
    check_values(values, device)
    check_parallel(values, process_count())
    _check_weights(values)
    written = {name: values[name] for name in given}
    if values["tensor_parallel_degree"] <= 1 or process_count() == 1:
        values["sequence_parallel"] = False  # without effect too: the layers would ask for a group
    values["device"] = paddle_name(device)
    for name in OWN_CHECKPOINTS:  # without effect too: PaddleNLP would look for its files on resume
        values[name] = False
    values["dataloader_num_workers"] = 0  # without effect too
    values["distributed_dataloader"] = False
    model, fused, data, training = (_build(kind, values) for kind in kinds)
    return RunConfig(
        model=model,
        fused=fused,
        data=data,
        training=training,
        device=device,
        given=written,
        notes=(*notes, *_random_weights(values)),
    )


def _random_weights(values: dict) -> list[str]:
    """That they are others than those of the same run without auto-parallel, where that is so."""
    joined = values["fuse_attention_qkv"] or values["fuse_attention_ffn"]
    made = not (values["continue_training"] or values["resume_from_checkpoint"])
    if not (values["enable_auto_parallel"] and joined and made):
        return []
    return [
        "--enable_auto_parallel keeps the projections of attention and MLP apart, so its random weights are "
        "those of a run with --fuse_attention_qkv false --fuse_attention_ffn false"
    ]


def _from_file(name: str, value: object, is_list: bool) -> object:
    """The value of an argument of a file as the command line has it; ValueError for a list out of place."""
    if value is False and "no" in CHOICES.get(name, ()):  # YAML reads the word no as false
        return "no"
    if isinstance(value, list) and not is_list:
        if name not in COMMA_SEPARATED:
            raise ValueError(f"{name} takes one value, but the file of arguments gives the list {value}")
        return ",".join(map(str, value))
    return value


def _newest_checkpoint(flags: list[str]) -> list[str]:
    """``--resume_from_checkpoint`` without a folder is the newest checkpoint: its value ``true``."""
    bare = [
        flag == "--resume_from_checkpoint" and (following is None or following.startswith("--"))
        for flag, following in itertools.zip_longest(flags, flags[1:])
    ]
    return [f"{flag}=true" if alone else flag for flag, alone in zip(flags, bare, strict=True)]


def _names(kinds: Iterable[type]) -> dict[str, str]:
    """Every accepted name -> the field it sets; a field that is true by default has a ``no_`` name too."""
    fields = [field for kind in kinds for field in dataclasses.fields(kind) if field.init]
    names = {field.name: field.name for field in fields}
    return names | {f"no_{field.name}": field.name for field in fields if field.default is True}


def _refuse_unknown(names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name in known:
            continue
        nearest = difflib.get_close_matches(name.replace("-", "_"), (*known, "config"), n=1, cutoff=0.5)
        hint = f"did you mean --{nearest[0]}?" if nearest else "--help lists all arguments"
        raise ValueError(f"--{name} is no argument of this script; {hint}")


def _choose_defaults(values: dict, device: str, given: set[str]) -> None:
    """Defaults that depend on what was given: an explicit choice turns off the defaults against it."""

    def default(name: str, value: object) -> None:
        if name not in given:
            values[name] = value

    _choose_samples(values, default)
    if values["fp16"] or device == "cpu":  # Paddle's CPU place has no bf16 matmul
        default("bf16", False)
    if not (values["bf16"] or values["fp16"]):
        default("amp_master_grad", False)
    if values["fp16_opt_level"] != "O2":
        default("amp_master_grad", False)
    if str(values["resume_from_checkpoint"]).lower() == "false":
        values["resume_from_checkpoint"] = None
    if "warmup_steps" in given:
        default("warmup_ratio", 0.0)
    if values["model_type"] in TINY:
        default("model_name_or_path", TINY[values["model_type"]])
    default("warmup_steps", int(values["warmup_ratio"] * max(0, values["max_steps"])))
    default("min_learning_rate", 0.1 * values["learning_rate"])
    default("continue_training", has_weights(values["model_name_or_path"]))
    if not values["do_eval"]:
        default("evaluation_strategy", "no")
    if values["evaluation_strategy"] == "no":
        default("do_eval", False)


def _choose_samples(values: dict, default: Callable[[str, object], None]) -> None:
    conversations = values["stage"] == "sft"
    named = {"true": "first_fit" if conversations else "stream", "false": "none"}
    packing = str(values["packing"] or default_packing(values["stage"])).lower()
    values["packing"] = named.get(packing, packing)
    fused = values["use_npu_fusion_attention"] and not values["disable_fused_options"]
    # Without fused attention the mask of one long row would be written out.
    default("padding", default_padding(values["packing"]) if fused else "longest")
    default("lora_alpha", 2 * values["lora_rank"])
    if conversations:  # the weights are trained ones
        default("learning_rate", 3e-4 if values["finetuning_type"] == "lora" else 3e-5)


def _check_weights(values: dict) -> None:
    name = values["model_name_or_path"]
    lora = values["finetuning_type"] == "lora"
    if lora and has_weights(name) and not values["continue_training"]:
        raise ValueError("--finetuning_type lora starts from weights; leave --continue_training false out")
    if has_weights(name) or not (lora or values["continue_training"]):
        return
    asked = "--finetuning_type lora" if lora else "--continue_training"
    lacks = "is a preset, which has no weights" if is_preset(name) else "holds no .safetensors"
    raise ValueError(f"{asked} needs a directory with a model's weights, but {name!r} {lacks}")


def _build(kind: type, values: dict) -> object:
    arguments = {field.name: values[field.name] for field in dataclasses.fields(kind) if field.init}
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # Paddle lists its flags when it sets up groups
            return kind(**arguments)
    except AssertionError as error:  # PaddleNLP asserts some of its users' choices
        raise ValueError(str(error) or "PaddleNLP refuses this combination of arguments") from error
