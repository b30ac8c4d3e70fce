"""Selects the checkpoint to resume from, and checks which settings differ between the two runs.

A checkpoint contains the settings of the run that wrote it in ``run.json``:

    {"fixed": {"seed": 42, "split": "949,50,1", "data": "9f86...", ...}, "schedule": {"max_steps": 200, ...},
     "mesh": {"processes": 4, "tensor": 2, "data": 2}}

``fixed`` settings determine the next sample and the meaning of the optimizer state, so they must be equal.
The ``schedule`` and the optimizer's settings may change, since users extend runs and lower weight decay; the
new run's values apply, as in PaddleNLP. The ``mesh`` may change as well: the number of ranks and the parallel
degrees.
"""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

from llm_npu.config import ModelArguments, RunConfig
from llm_npu.config.flag import written as flag_text
from llm_npu.config.formats import PROFILE_FOLDER
from llm_npu.core import machines
from llm_npu.core.console import say
from llm_npu.core.errors import ErrorOfAllRanks, UserError
from llm_npu.core.ranks import Ranks, mesh
from llm_npu.core.untrusted import plain_json
from llm_npu.core.untrusted.plain_text import printable
from llm_npu.data.indexed import parts, with_suffix
from llm_npu.data.text import chat_template
from llm_npu.data.text.corpus import Corpus
from llm_npu.data.text.tokenizer import fingerprint
from llm_npu.launch import folder_lock, own_file
from llm_npu.models import weights
from llm_npu.models.checks import PARAMETER_SIZES
from llm_npu.models.library import names
from llm_npu.training import checkpoint, metrics
from llm_npu.training.checkpoint import gathering, states
from llm_npu.training.checkpoint.disks import Disks
from llm_npu.training.checkpoint.training import MERGED
from llm_npu.training.upstream_trainer import TrainerState

# The fields of config.json that determine the shapes and the order of the parameters.
SHAPING_FIELDS = ("model_type", *PARAMETER_SIZES, "tie_word_embeddings")
FIXED = (
    "seed",
    "bf16",
    "fp16",
    "fp16_opt_level",
)
LORA = ("lora_rank", "lora_alpha", "lora_dropout", "lora_target")
SCHEDULE = (
    "max_steps",
    "warmup_steps",
    "warmup_ratio",
    "decay_steps",
    "learning_rate",
    "min_learning_rate",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
    "amp_master_grad",
    "overlap",
    "moe_expert_capacity_factor",
)

# A run's files and folders in its output folder, except checkpoints.
FILES = (folder_lock.NAME, *metrics.FILES)
FOLDERS = ("log", MERGED, PROFILE_FOLDER)


def hold_folder(arguments) -> Disks:
    """Acquire the lock of the output folder on each disk. Raises UserError if another run holds it."""
    output_dir, ranks = Path(arguments.output_dir), Ranks.of_run()
    disks = Disks.of(output_dir, ranks)
    with ranks.raise_on_all_ranks():
        if disks.first:
            folder_lock.hold(output_dir)
    if disks.several and ranks.first:
        say(f"note     {output_dir} is on {len(disks.all)} disks; each disk stores part of every checkpoint")
    return disks


def requested(arguments, config, writes: bool = True) -> Path | None:
    """The verified checkpoint of ``--resume_from_checkpoint``, or None to start at step 0.

    Nothing is written, except that machines with separate disks gather the checkpoint.

    Raises:
        UserError: The machines have different flags; there is no checkpoint; it is damaged, or its model does
            not match ``config`` (``LlamaConfig``, ...); this run ``writes`` and another run holds the output
            folder; the checkpoints would mix with those of an earlier run; or the output folder cannot be
            used.
    """
    output_dir = Path(arguments.output_dir)
    folder, ranks = None, Ranks.of_run()
    _check_same_flag(ranks.gather(arguments.resume_from_checkpoint))
    with ranks.raise_on_all_ranks():
        _check_folder(output_dir)
    disks = Disks.to_read(output_dir, ranks)
    with ranks.raise_on_all_ranks():
        if writes and disks.first:
            folder_lock.refuse_if_taken(output_dir)
    if arguments.resume_from_checkpoint is not None:
        report = say if ranks.first else lambda line: None
        folder = gathering.to_resume(arguments.resume_from_checkpoint, output_dir, disks, report)
        if folder is not None:  # None with "auto" before the first checkpoint
            _check_same_model(folder, arguments, config)
            check_state(folder)
    # On a shared disk the first rank decides: other ranks may see an older state.
    earlier = next(filter(None, ranks.gather(checkpoint.complete(output_dir) if disks.first else [])), [])
    if earlier and not continues(folder, output_dir) and not arguments.overwrite_output_dir:
        raise UserError(
            f"{output_dir} contains {earlier[-1].name} of an earlier run; "
            "add --resume_from_checkpoint to continue it, --overwrite_output_dir to replace it, "
            "or use another --output_dir"
        )
    return folder


def continues(folder: str | Path | None, output_dir: str | Path) -> bool:
    """Whether resuming from the checkpoint ``folder`` continues the run in ``output_dir``."""
    return folder is not None and Path(folder).resolve().parent == Path(output_dir).resolve()


def settings(run: RunConfig, source: Corpus | Path, tokenizer) -> dict[str, dict]:
    """The content of ``run.json``; ``source`` is the result of ``llm_npu.data.pipeline.find``."""
    arguments = run.training
    fixed = {name: getattr(arguments, name) for name in FIXED}
    fixed["samples per step"] = (
        arguments.per_device_train_batch_size
        * arguments.gradient_accumulation_steps
        * arguments.dataset_world_size
    )
    fixed |= {name: getattr(run.data, name) for name in ("stage", "packing", "reset_attention_mask")}
    fixed |= {"max_seq_length": run.data.max_seq_length, "split": run.data.split}
    fixed |= {"data": _data(source), "tokenizer": fingerprint(tokenizer)}
    fixed |= {"chat_template": _hash(str(chat_template.source_of(tokenizer)).encode())}
    fixed |= {"finetuning_type": run.model.finetuning_type} | _adapted(run.model)
    if run.data.stage == "dpo":
        fixed["dpo_loss"] = run.preference.dpo_loss
        fixed["reference weights"] = weights.digest(run.model.model_name_or_path)
    # Fused operators give the same results up to rounding.
    schedule = {name: getattr(arguments, name) for name in SCHEDULE} | run.fused.switches()
    schedule |= {name: getattr(run.model, name) for name in ("fuse_attention_qkv", "fuse_attention_ffn")}
    if run.data.stage == "dpo":
        schedule |= {name: getattr(run.preference, name) for name in ("dpo_beta", "dpo_label_smoothing")}
    schedule["lr_scheduler_type"] = arguments.lr_scheduler_type.value
    of_experts = {"experts": run.expert_ranks} if run.expert_ranks > 1 else {}
    return {"fixed": fixed, "schedule": schedule, "mesh": mesh() | of_experts}


def beginning(folder: Path | None, arguments) -> list[str]:
    """A line about the first step of a run with ``--resume_from_checkpoint``."""
    if folder is not None:
        return [f"resuming from {folder}"]
    if arguments.resume_from_checkpoint is None:
        return []
    return [f"no checkpoint in {arguments.output_dir} yet: starting at step 0"]


def changes(folder: Path, settings: dict[str, dict]) -> list[str]:
    """A line for each schedule argument that changed since the checkpoint ``folder`` was written.

    Raises UserError if a fixed setting differs.
    """
    written = states.read_run(folder)
    for name, value in settings["fixed"].items():
        written_value = written["fixed"].get(name)
        if written_value != value:
            raise UserError(
                f"{folder} was written with {name} {_cut(written_value)}, but this run has {value}; "
                "resume with the same arguments and data"
            )
    before = written["schedule"]
    changed = [
        f"--{name} is {value}; the previous run had {_cut(before[name])}"
        for name, value in settings["schedule"].items()
        if name in before and before[name] != value  # earlier versions may have written fewer settings
    ]
    if written["mesh"] != settings["mesh"]:
        changed.append(
            f"this run has {_describe_mesh(settings['mesh'])}; the previous run had "
            f"{_cut(_describe_mesh(written['mesh']))}. Losses match up to rounding; dropout masks are redrawn"
        )
    return changed


def _cut(value: object) -> str:
    """Shorten a value from a checkpoint file for a message."""
    return printable(value, longest=100)


def _describe_mesh(mesh: dict[str, int]) -> str:
    """{"processes": 4, "tensor": 2} -> "4 processes (tensor 2)"."""
    degrees = ", ".join(f"{name} {size}" for name, size in mesh.items() if name != "processes")
    return (
        f"{mesh.get('processes', 1)} process" + ("es" if mesh else "") + (f" ({degrees})" if degrees else "")
    )


def _data(source: Corpus | Path) -> str:
    """A hash of the data set; for a .bin, which can be very large, of its index and size."""
    if isinstance(source, Corpus):
        return source.fingerprint()
    digest = hashlib.sha256()
    for pair in filter(None, parts(source)):
        digest.update(with_suffix(pair, ".idx").read_bytes())
        digest.update(f"{pair.name} {with_suffix(pair, '.bin').stat().st_size}".encode())
    return digest.hexdigest()


def _adapted(model: ModelArguments) -> dict[str, object]:
    """The settings that LoRA's A and B depend on, including a hash of the base weights."""
    if model.finetuning_type != "lora":
        return {}
    settings = {name: getattr(model, name) for name in LORA}
    return settings | {"base weights": weights.digest(model.model_name_or_path)}


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _check_same_flag(of_ranks: list[bool | str | None]) -> None:
    """Raise UserError unless all ranks have the same flag, which decides the collectives that follow."""
    if len(set(of_ranks)) == 1:
        return
    machines_of: dict[str, list[str]] = {}
    for machine in machines.read().all:
        word = of_ranks[machine.ranks[0]]
        machines_of.setdefault("not given" if word is None else flag_text(word), []).append(str(machine))
    values = [
        f"{value} on {names[0]}" + f" and {len(names) - 1} more" * (len(names) > 1)
        for value, names in machines_of.items()
    ]
    raise ErrorOfAllRanks(
        f"--resume_from_checkpoint differs between the machines: {', '.join(values)}; use the same value on "
        "all."
    )


def _check_folder(output_dir: Path) -> None:
    """Raise UserError unless ``output_dir`` is or can become a folder, and the run's files are not links."""
    for path in (output_dir, *output_dir.absolute().parents):
        if path.exists():
            if not path.is_dir():
                raise UserError(f"--output_dir is {output_dir}, but {path} is a file; specify a folder")
            break
    for name in FILES:
        own_file.check(output_dir / name)
    for name in FOLDERS:
        own_file.check_folder(output_dir / name)


def _check_same_model(folder: Path, arguments, config) -> None:
    """Check the model: the optimizer state needs parameters of the same shapes, order and dtype."""
    try:
        written = plain_json.mapping(folder / "config.json")
    except FileNotFoundError:
        raise UserError(
            f"{folder} has no config.json with the model's sizes; resume from a checkpoint that has it"
        ) from None
    low = "bfloat16" if arguments.bf16 else "float16" if arguments.fp16 else "float32"
    required = {field: getattr(config, field) for field in SHAPING_FIELDS}
    required["torch_dtype"] = low if arguments.fp16_opt_level == "O2" else "float32"
    for field, value in required.items():
        if written.get(field, False) != value:
            raise UserError(
                f"{folder} was written with {field} {_cut(written.get(field))}, but this run has {value}; "
                "resume with the same arguments"
            )


def check_state(folder: Path) -> None:
    """Check ``trainer_state.json``, which the upstream trainer does not validate."""
    file = folder / "trainer_state.json"
    if not file.is_file():
        raise UserError(f"{folder} has no {file.name}, which contains the step of the run")
    state = plain_json.mapping(file)
    step = state.get("global_step")
    known = {field.name: field for field in dataclasses.fields(TrainerState)}
    if unknown := state.keys() - known.keys():
        raise UserError(
            f"{file} contains {sorted(unknown)[0]!r:.40}, which is not a field of {names.TITLE}'s trainer "
            "state"
        )
    if type(step) is not int or step < 0 or step != checkpoint.marked_step(folder):
        raise UserError(f"{file} has global_step {step!r:.40}, which is not the checkpoint's step")
    if state.get("best_model_checkpoint") is not None:
        raise UserError(f"{file} has a best_model_checkpoint, which this project never writes")
    if not isinstance(state.get("log_history", []), list):
        raise UserError(f"{file}: log_history must be a list")
