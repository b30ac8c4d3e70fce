"""Names of other launchers: those that mean an argument of this script, and those that have another way here.

openMind's and LLaMA-Factory's files of arguments share most names with PaddleNLP's. Some are translated, with
a line that says so; some are refused, with what to give instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# Theirs -> the argument of this script that takes the same values.
TRANSLATED: Mapping[str, str] = {
    "model_id": "model_name_or_path",
    "dataset": "input_dir",
    "cutoff_len": "max_seq_length",
    "max_length": "max_seq_length",
    "eval_strategy": "evaluation_strategy",
    "gradient_checkpointing": "recompute",
    "lora_target_modules": "lora_target",
    "use_flash_attention": "use_npu_fusion_attention",
}

SHARDING = "give --sharding stage1, stage2 or stage3, PaddleNLP's own, and --nproc"
SWITCHES = "give --use_npu_fusion_attention true or false"
# Theirs -> what to do here.
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
    "preprocessing_num_workers": "the tokenizer takes all cores; leave it out",
    "plot_loss": "the loss curve is always drawn, to loss.png in --output_dir; leave it out",
    "save_only_model": "a checkpoint holds everything that is needed to resume; leave it out",
    "trust_remote_code": "models are PaddleNLP's classes, and no code is loaded with weights; leave it out",
    "ddp_timeout": "it belongs to torch.distributed; leave it out",
    "framework": "the framework is Paddle; leave it out",
}


def translate(
    in_file: Mapping[str, object], flags: Sequence[str]
) -> tuple[dict[str, object], list[str], list[str]]:
    """The arguments of a file and the flags under this script's names, and a line for each translated name.

    ValueError for a refused name, and for a file or a command line with both names of one argument.
    """
    notes = []
    for names, where in (
        (list(in_file), "the file of arguments"),
        ([_name(flag) for flag in flags if flag.startswith("--")], "the command line"),
    ):
        found: dict[str, str] = {}  # this script's name -> the one that it is given under
        for name in names:
            if name in REFUSED:
                raise ValueError(f"--{name} is no argument of this script: {REFUSED[name]}")
            known = TRANSLATED.get(name, name)
            other = found.setdefault(known, name)
            if other != name:
                raise ValueError(f"{where} gives --{known} under two names, {other} and {name}; give one")
            if known != name:
                notes.append(f"--{name} is read as --{known}")
    renamed = {TRANSLATED.get(name, name): value for name, value in in_file.items()}
    return renamed, [_renamed(flag) for flag in flags], list(dict.fromkeys(notes))


def _name(flag: str) -> str:
    """The name in a flag; of a switch that is set off by no_, too, if it has two names."""
    name = flag[2:].partition("=")[0]
    switch = name.removeprefix("no_")
    return switch if switch in (*TRANSLATED, *TRANSLATED.values()) else name


def _renamed(flag: str) -> str:
    name = _name(flag) if flag.startswith("--") else ""
    return flag.replace(name, TRANSLATED[name], 1) if name in TRANSLATED else flag
