"""User-written names and values: YAML or JSON argument files, and flag names of other launchers.

A scalar in a file is true, false, null or a number only if it is written as in JSON, so that the value keeps
its type and its text. YAML would read ``2026_11_27`` as 20261127 and ``3.10`` as 3.1; these stay text, which
``Flag.from_file`` parses as the type of the flag's field.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

import yaml

from llm_npu.core import paths
from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json
from llm_npu.models.library import names

from .flag import Flag, Value, written

SUFFIXES = (".yaml", ".yml", ".json")
LARGEST = 64 << 10  # bytes; PyYAML takes seconds for this much
DEEPEST = 16
NULLS = ("", "~", "null", "Null", "NULL")
# A tagged scalar stays text, which is parsed as the flag's type.
SCALARS = tuple(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "timestamp"))
COLLECTIONS = ("tag:yaml.org,2002:seq", "tag:yaml.org,2002:map")
SHARDING = f"set --sharding stage1, stage2 or stage3, as in {names.TITLE}, and --nproc"
SWITCHES = "set --use_npu_fusion_attention true or false"
DATA = "set --input_dir to the path of the data"
FORMAT = "the format of the data is read from its records; remove it"
# Flag of another launcher -> what to use here.
REFUSED: Mapping[str, str] = {
    "deepspeed": SHARDING,
    "fsdp": SHARDING,
    "fsdp_config": SHARDING,
    "flash_attn": SWITCHES,
    "attn_implementation": SWITCHES,
    "enable_liger_kernel": "the fused operators are on by default; --use_fused_rms_norm, ... switch each",
    "use_v1_kernels": "the fused operators are on by default; --disable_fused_options switches them off",
    "torch_dtype": "set --bf16 or --fp16",
    "template": "set --chat_template, or remove it for the tokenizer's own",
    "neat_packing": "set --packing first_fit",
    "dataset_dir": "set --input_dir to the path of the data",
    "val_size": "set --split to the weights of training, validation and test data, such as 949,50,1",
    "max_samples": "set --max_steps",
    "overwrite_cache": "delete the folder in --data_cache",
    "preprocessing_num_workers": "the tokenizer uses all cores; remove it",
    "plot_loss": "the loss curve is always drawn into loss.png in --output_dir; remove it",
    "save_only_model": "checkpoints can always be resumed from; remove it",
    "trust_remote_code": f"models come from {names.TITLE}, and a model folder's code never runs; remove it",
    "ddp_timeout": "only torch.distributed reads it; remove it",
    "framework": "the framework is Paddle; remove it",
    "lora": "set --finetuning_type lora",
    "fine_tuning": "set --finetuning_type full or lora",
    "dataset_name_or_path": DATA,
    "train_dataset_path": DATA,
    "eval_dataset_path": "set --split to the shares of training, validation and test data",
    "train_dataset_type": FORMAT,
    "eval_dataset_type": FORMAT,
    "compute_type": "set --bf16 or --fp16",
    "src_length": "set --max_seq_length, which includes prompt and answer",
    "max_prompt_len": "set --max_seq_length, which includes prompt and answer",
    "zero_padding": "set --packing first_fit",
}


def split_file(argv: Sequence[str]) -> tuple[dict[str, Value], list[str]]:
    """Split off the argument file in ``argv``: (arguments in the file, flags); ({}, argv) without a file.

    The file comes before all flags or after ``--config``; flags override it either way. Raises UserError for
    two files, and for a file that cannot be read, is not valid YAML or JSON, repeats an argument, or is not a
    mapping of names to plain values and lists of plain values.
    """
    files, flags = [], list(argv)
    if flags and not flags[0].startswith("-"):
        files.append(flags.pop(0))
    while (position := next((i for i, flag in enumerate(flags) if _names_file(flag)), None)) is not None:
        _, equals, file = flags.pop(position).partition("=")
        if not equals:
            file = flags.pop(position) if position < len(flags) else ""
        if not file:
            raise UserError("--config: expected an argument file")
        files.append(file)
    if len(files) > 1:
        raise UserError(f"{' and '.join(files)} are two argument files; use one")
    return (read_file(files[0]) if files else {}), flags


def _names_file(flag: str) -> bool:
    return flag.partition("=")[0] == "--config"


def read_file(name: str) -> dict[str, Value]:
    """Read an argument file; None means the default. Raises UserError as ``split_file``."""
    path = paths.path_argument(name)
    if path.suffix not in SUFFIXES:
        raise UserError(
            f"{name!r} is neither a flag (--name value) nor an argument file ({', '.join(SUFFIXES)})"
        )
    try:
        text = plain_json.text_of(path, LARGEST)
    except (OSError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"the argument file {name!r:.200} cannot be read: {error}") from error
    try:
        content = _json(text, name) if path.suffix == ".json" else _yaml(text, name)
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        raise UserError(
            f"{name} is not valid {path.suffix[1:].upper()}: {' '.join(str(error).split()):.400}"
        ) from error
    if content is None:  # an empty YAML file
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{name} must map argument names to values, but is a {type(content).__name__}")
    for key, value in content.items():
        if isinstance(value, dict):
            raise UserError(f"{name}: {key} is a mapping; put arguments at the top level, without groups")
        if not _is_plain(value, depth=2):  # skip_data_intervals is a list of pairs
            raise UserError(f"{name}: {key} must be a plain value, or a list of them without null")
    return content


def _unique(pairs: list[tuple[object, object]], name: str) -> dict[str, object]:
    arguments = {}
    for key, value in pairs:
        if not isinstance(key, str):
            raise UserError(f"{name}: {key!r:.40} is not an argument name")
        if key in arguments:
            raise UserError(f"{name} sets {key:.80} twice")
        arguments[key] = value
    return arguments


def _json(text: str, name: str) -> object:
    return plain_json.loads(text, pairs=lambda pairs: _unique(pairs, name), number=_typed)


def _typed(text: str) -> bool | int | float | str | None:
    """Parse a scalar in JSON syntax; return any other text unchanged."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if written(value) == text else text


def _yaml(text: str, name: str) -> object:
    """Parse the document in ``text``. Also raises yaml.YAMLError for aliases and deep nesting."""
    try:
        events = (event for event in yaml.parse(text, Loader=yaml.SafeLoader))
        content, documents = None, 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise yaml.YAMLError("it has several documents")
                content = _node(next(events), events, name, 0)
        return content
    except UserError:
        raise
    except (ValueError, OverflowError) as error:  # PyYAML does not validate the numbers in \U and %YAML
        raise yaml.YAMLError(str(error)) from None


def _node(event: yaml.Event, events: Iterator[yaml.Event], name: str, depth: int) -> object:
    """The node that begins with ``event``, followed by ``events``."""
    if isinstance(event, yaml.AliasEvent):
        raise yaml.YAMLError(f"it has an alias (*{event.anchor:.40}); write the value instead")
    scalar = isinstance(event, yaml.ScalarEvent)
    if event.tag not in (None, "!", *(SCALARS if scalar else COLLECTIONS)):
        raise yaml.YAMLError(f"the tag {event.tag:.80} has no meaning here")
    if scalar:
        plain = event.implicit[0] or event.tag == "tag:yaml.org,2002:null"
        if plain and event.value in NULLS:
            return None
        return _typed(event.value) if event.implicit[0] else event.value
    if depth == DEEPEST:
        raise yaml.YAMLError("it is nested too deeply")
    nodes = []
    while not isinstance(event := next(events), yaml.CollectionEndEvent):
        nodes.append(_node(event, events, name, depth + 1))
    if isinstance(event, yaml.SequenceEndEvent):
        return nodes
    return _unique(list(zip(nodes[::2], nodes[1::2], strict=True)), name)


def _is_plain(value: object, depth: int) -> bool:
    if isinstance(value, list):
        return depth > 0 and all(item is not None and _is_plain(item, depth - 1) for item in value)
    return not isinstance(value, dict)


def translate(
    in_file: Mapping[str, Value], line: Sequence[str], known: Mapping[str, Flag]
) -> tuple[dict[str, Value], list[str], list[str]]:
    """Replace other launchers' names: (arguments of the file, flags of the command line, notes).

    ``notes`` has one line for each translated name. Raises UserError for a name in ``REFUSED``, and if the
    file or the command line gives a flag under two names.
    """
    aliases = {alias: flag.name for flag in known.values() for alias in flag.aliases}
    notes = []
    for written_names, where in (
        (list(in_file), "the argument file"),
        ([_name(word, aliases) for word in line if word.startswith("--")], "the command line"),
    ):
        name_of: dict[str, str] = {}  # flag -> the name that the user wrote
        for name in written_names:
            if name in REFUSED:
                raise UserError(f"--{name} is not an argument of this script: {REFUSED[name]}")
            flag = aliases.get(name, name)
            other = name_of.setdefault(flag, name)
            if other != name:
                raise UserError(f"{where} sets --{flag} under two names, {other} and {name}; use one")
            if flag != name:
                notes.append(f"--{name} is read as --{flag}")
    renamed = {aliases.get(name, name): value for name, value in in_file.items()}
    return renamed, [_renamed(word, aliases) for word in line], list(dict.fromkeys(notes))


def _name(word: str, aliases: Mapping[str, str]) -> str:
    """The name in ``--name=value``, without the ``no_`` of a switch that has an alias."""
    name = word[2:].partition("=")[0]
    switch = name.removeprefix("no_")
    return switch if switch in (*aliases, *aliases.values()) else name


def _renamed(word: str, aliases: Mapping[str, str]) -> str:
    name = _name(word, aliases) if word.startswith("--") else ""
    return word.replace(name, aliases[name], 1) if name in aliases else word
