"""Flag names of other launchers. openMind's and LLaMA-Factory's files share most names with PaddleNLP's.

A flag's ``aliases`` are translated, and a line reports each. Names in ``REFUSED`` have no counterpart; the
error says what to give instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llm_npu.config.flag import Flag
from llm_npu.core.errors import UserError
from llm_npu.models.library import names

SHARDING = f"give --sharding stage1, stage2 or stage3, as in {names.TITLE}, and --nproc"
SWITCHES = "give --use_npu_fusion_attention true or false"
DATA = "give the path of the data in --input_dir"
FORMAT = "the format of the data is read from its records; leave it out"
# Their name -> what to give here.
REFUSED: Mapping[str, str] = {
    "deepspeed": SHARDING,
    "fsdp": SHARDING,
    "fsdp_config": SHARDING,
    "flash_attn": SWITCHES,
    "attn_implementation": SWITCHES,
    "enable_liger_kernel": "the fused operators are on by default; --use_fused_rms_norm, ... switch each",
    "use_v1_kernels": "the fused operators are on by default; --disable_fused_options switches them off",
    "torch_dtype": "give --bf16 or --fp16",
    "template": "give --chat_template, or leave it out for the tokenizer's own",
    "neat_packing": "give --packing first_fit",
    "dataset_dir": "give the path of the data in --input_dir",
    "val_size": "give the weights of training, validation and test data in --split, such as 949,50,1",
    "max_samples": "give --max_steps",
    "overwrite_cache": "remove the folder that --data_cache names",
    "preprocessing_num_workers": "the tokenizer uses all cores; leave it out",
    "plot_loss": "the loss curve is always drawn into loss.png in --output_dir; leave it out",
    "save_only_model": "a checkpoint always holds what resuming needs; leave it out",
    "trust_remote_code": f"models are classes of {names.TITLE}, and weights bring no code; leave it out",
    "ddp_timeout": "only torch.distributed reads it; leave it out",
    "framework": "the framework is Paddle; leave it out",
    "lora": "give --finetuning_type lora",
    "fine_tuning": "give --finetuning_type full or lora",
    "dataset_name_or_path": DATA,
    "train_dataset_path": DATA,
    "eval_dataset_path": "give the shares of training, validation and test data in --split",
    "train_dataset_type": FORMAT,
    "eval_dataset_type": FORMAT,
    "compute_type": "give --bf16 or --fp16",
    "src_length": "give --max_seq_length, which counts prompt and answer",
    "max_prompt_len": "give --max_seq_length, which counts prompt and answer",
    "zero_padding": "give --packing first_fit",
}


def translate(
    in_file: Mapping[str, object], line: Sequence[str], known: Mapping[str, Flag]
) -> tuple[dict[str, object], list[str], list[str]]:
    """(arguments of the file, flags of the command line, notes), under this script's names.

    ``notes`` has a line for each translated name. UserError for a refused name, and for a file or a command
    line that gives a flag under two names.
    """
    aliases = {alias: flag.name for flag in known.values() for alias in flag.aliases}
    notes = []
    for given, where in (
        (list(in_file), "the file of arguments"),
        ([_name(flag, aliases) for flag in line if flag.startswith("--")], "the command line"),
    ):
        found: dict[str, str] = {}  # this script's name -> the one that it is given under
        for name in given:
            if name in REFUSED:
                raise UserError(f"--{name} is no argument of this script: {REFUSED[name]}")
            ours = aliases.get(name, name)
            other = found.setdefault(ours, name)
            if other != name:
                raise UserError(f"{where} gives --{ours} under two names, {other} and {name}; give one")
            if ours != name:
                notes.append(f"--{name} is read as --{ours}")
    renamed = {aliases.get(name, name): value for name, value in in_file.items()}
    return renamed, [_renamed(flag, aliases) for flag in line], list(dict.fromkeys(notes))


def _name(flag: str, aliases: Mapping[str, str]) -> str:
    """The name in ``--name=value``, without the ``no_`` of a switch that has an alias."""
    name = flag[2:].partition("=")[0]
    switch = name.removeprefix("no_")
    return switch if switch in (*aliases, *aliases.values()) else name


def _renamed(flag: str, aliases: Mapping[str, str]) -> str:
    name = _name(flag, aliases) if flag.startswith("--") else ""
    return flag.replace(name, aliases[name], 1) if name in aliases else flag
