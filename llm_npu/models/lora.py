"""LoRA with the installed library: wrapping, saving, loading and merging.

    y = x W + alpha / rank * dropout(x) A B        W [in, out] frozen, A [in, rank] and B [rank, out] trained

B starts at zero, so training starts from the unchanged model. LoRA: Hu et al., arXiv 2106.09685.

A checkpoint stores A and B in two formats:

    peft_model.safetensors, .index.json, lora_config.json      PaddleNLP's ``LoRAModel``, and this project
    adapter_model.safetensors, adapter_config.json             Hugging Face's peft

In peft A is [rank, in] and B [out, rank]. Projections that are fused here are separate there; they share A,
and each has its columns of B.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import paddle
from safetensors.numpy import save_file

from llm_npu.core.errors import UserError
from llm_npu.core.tensor_file import Reader
from llm_npu.core.untrusted import pickles
from llm_npu.models import degrees, layout, stored, upstream_config
from llm_npu.models.library import adapter as upstream
from llm_npu.models.library import names
from paddle_fused import strict_json

FILE, INDEX = "peft_model.safetensors", "peft_model.safetensors.index.json"  # PaddleNLP's names
PEFT_FILE, PEFT_CONFIG = "adapter_model.safetensors", "adapter_config.json"


def wrap(model, arguments) -> upstream.LoRAModel:
    """Add LoRA to the projections named in ``ModelArguments``; all other weights are frozen.

    Experts and routers get no LoRA. A is drawn from the random number generators. Raises
    UserError for projections that the model does not have.
    """
    chosen = _chosen(model, arguments.lora_target)
    config = upstream.LoRAConfig(
        r=arguments.lora_rank,
        lora_alpha=arguments.lora_alpha,
        lora_dropout=arguments.lora_dropout,
        target_modules=[rf"(?!.*\.experts\.).*\.({'|'.join(map(re.escape, chosen))})"],
        base_model_name_or_path=arguments.model_name_or_path,
        **{names.TENSOR_PARALLEL: degrees.tensor_parallel(model.config)},
    )
    return upstream.LoRAModel(model, config)


def is_wrapped(model) -> bool:
    """Whether ``model`` was returned by ``wrap``."""
    return isinstance(model, upstream.LoRAModel)


def unwrapped(model):
    """The inner model with LoRA layers if ``model`` is wrapped; else ``model``."""
    return model.model if is_wrapped(model) else model


def save(model: upstream.LoRAModel, folder: str | Path) -> None:
    """Write A and B for PaddleNLP's ``LoRAModel.from_pretrained`` and peft, and the model's config.json."""
    folder = Path(folder)
    dtype = str(next(iter(model.parameters())).dtype).removeprefix("paddle.")
    model.lora_config.dtype = dtype  # mixed precision casts the model after wrapping
    model.lora_config.save_pretrained(str(folder))
    upstream_config.save(model.config, folder, dtype)

    arrays = {name: value.numpy() for name, value in model.get_trainable_state_dict().items()}
    save_file(arrays, folder / FILE, metadata={"format": "np"})  # bfloat16 is U16, as in PaddleNLP
    size = sum(array.nbytes for array in arrays.values())
    index = {"metadata": {"total_size": size}, "weight_map": dict.fromkeys(arrays, FILE)}
    (folder / INDEX).write_text(strict_json.dumps(index, indent=2, sort_keys=True) + "\n")

    adapter = to_peft(model)
    stored.write(adapter, folder, {PEFT_FILE: list(adapter)})
    (folder / PEFT_CONFIG).write_text(strict_json.dumps(_peft_config(model, adapter), indent=2) + "\n")


def load(model: upstream.LoRAModel, folder: str | Path) -> None:
    """Set A and B from the files of ``save`` in the parameters' dtype.

    Raises UserError for a folder without these files, for damaged files, and for files of other projections
    or of another LoRA rank.
    """
    file = Path(folder) / FILE
    if not file.is_file():
        if pickle := pickles.first(folder):
            raise UserError(f"{pickle} {pickles.REASON}; {pickles.WEIGHTS}")
        raise UserError(f"{folder} has no {FILE}; pass a checkpoint of a run with --finetuning_type lora")
    arrays = dict(Reader([file]))
    parameters = model.get_trainable_state_dict()
    for name, parameter in parameters.items():
        array = arrays.pop(name, None)
        if array is None or list(array.shape) != parameter.shape:
            is_there = "missing" if array is None else list(array.shape)
            raise UserError(f"{file}: {name} is {is_there}, but this run's is {list(parameter.shape)}")
        parameter.set_value(layout.as_dtype(array, parameter.dtype))
    if arrays:
        raise UserError(f"{file} holds {next(iter(arrays))}, which has no LoRA in this run")


def to_peft(model: upstream.LoRAModel) -> dict[str, np.ndarray]:
    """A and B under peft's names, in its layout; bfloat16 as uint16."""
    inner, tensors = unwrapped(model), {}
    for name, value in model.get_trainable_state_dict().items():
        place, _, matrix = name.rpartition(".")
        upstream = f"{place.replace(inner.base_model_prefix, 'model', 1)}.weight"
        array = value.numpy()
        if matrix == "lora_A":  # shared by all projections fused here
            parts = dict.fromkeys(layout.parts(upstream), array.T)
        else:
            parts = {}
            for block in layout.blocks(upstream, value, model.config)[1]:
                part = parts.setdefault(block.name, np.empty(block.shape, array.dtype))
                part[block.box] = block.of(array)
        for part, array in parts.items():
            tensors[f"base_model.model.{part.removesuffix('weight')}{matrix}.weight"] = array
    return tensors


def _peft_config(model: upstream.LoRAModel, adapter: dict[str, np.ndarray]) -> dict[str, object]:
    """The fields that peft's ``LoraConfig`` requires, and those that describe the training."""
    config = model.lora_config
    places = {name.removeprefix("base_model.model.").rpartition(".lora_")[0] for name in adapter}
    if not any(".experts." in name for name, _ in model.named_sublayers()):
        places = {place.rpartition(".")[2] for place in places}  # else peft would also match experts
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": config.base_model_name_or_path,
        "r": config.r,
        "lora_alpha": config.lora_alpha,
        "lora_dropout": config.lora_dropout,
        "target_modules": sorted(places),
        "bias": "none",
        "fan_in_fan_out": False,
        "modules_to_save": None,
        "inference_mode": True,
    }


@contextmanager
def merged(model: upstream.LoRAModel) -> Iterator[None]:
    """Within the context, each W is W + alpha / rank A B, computed in fp32; W is restored exactly.

    PaddleNLP's ``merge`` and ``unmerge`` round in the weights' dtype, in both directions.
    """
    layers = [layer for layer in model.sublayers() if isinstance(layer, upstream.LoRALinear)]
    before = [layer.weight.numpy() for layer in layers]
    try:
        for layer in layers:
            weight, a, b = (matrix.astype("float32") for matrix in (layer.weight, layer.lora_A, layer.lora_B))
            layer.weight.set_value((weight + a @ b * layer.scaling).astype(layer.weight.dtype))
            layer.merged = True
        yield
    finally:
        for layer, weight in zip(layers, before, strict=True):
            layer.weight.set_value(weight)
            layer.merged = False


@contextmanager
def without(model: upstream.LoRAModel) -> Iterator[None]:
    """Within the context, ``model`` computes without LoRA."""
    layers = [layer for layer in model.sublayers() if isinstance(layer, upstream.LoRALinear)]
    try:
        for layer in layers:
            layer.disable_lora = True
        yield
    finally:
        for layer in layers:
            layer.disable_lora = False


def _chosen(model, wanted: str) -> list[str]:
    """The last name components of the projections that get LoRA."""
    names = (name for name, layer in model.named_sublayers() if isinstance(layer, paddle.nn.Linear))
    known = sorted({name.rpartition(".")[2] for name in names if ".experts." not in name})
    known = [name for name in known if name.endswith("_proj")]
    if wanted == "all":
        return known
    chosen = [name.strip() for name in wanted.split(",")]
    for name in chosen:
        if name not in known:
            raise UserError(
                f"--lora_target names {name!r}, but the model has the projections {', '.join(known)}; use "
                "some of these, separated by commas, or all"
            )
    return chosen
