"""PaddleNLP's LoRA: small matrices beside frozen projections, their checkpoints, and the merged model.

    y = x W + alpha / rank * dropout(x) A B        W [in, out] frozen, A [in, rank] and B [rank, out] trained

B starts at zero, so that training begins with the model as it is. LoRA: Hu et al., arXiv 2106.09685.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import paddle
from paddlenlp.peft import LoRAConfig, LoRAModel
from paddlenlp.peft.lora import LoRALinear

from llm_npu import chat_template, stock_config, weights
from llm_npu.atomic import replace, unfinished
from llm_npu.config import ModelArguments

FILE = "lora_model_state.pdparams"  # PaddleNLP's name
MERGED = "merged"  # the folder of the merged model in a run's output folder


def wrap(model, arguments: ModelArguments) -> LoRAModel:
    """``model`` with LoRA beside the projections that ``arguments`` name; everything else is frozen.

    The experts of mixtures and their routers are left as they are. A depends on the state of the random
    number generators. ValueError for projections that the model does not have.
    """
    chosen = _chosen(model, arguments.lora_target)
    config = LoRAConfig(
        r=arguments.lora_rank,
        lora_alpha=arguments.lora_alpha,
        lora_dropout=arguments.lora_dropout,
        target_modules=[rf"(?!.*\.experts\.).*\.({'|'.join(map(re.escape, chosen))})"],
        base_model_name_or_path=arguments.model_name_or_path,
        tensor_parallel_degree=model.config.tensor_parallel_degree,
    )
    return LoRAModel(model, config)


def unwrapped(model):
    """The model itself, with its LoRA layers, if ``model`` is wrapped; else ``model``."""
    return model.model if isinstance(model, LoRAModel) else model


def save(model: LoRAModel, folder: str | Path) -> None:
    """Write A and B as PaddleNLP's ``LoRAModel.from_pretrained`` reads them, and the model's config.json."""
    folder = Path(folder)
    dtype = str(next(iter(model.parameters())).dtype).removeprefix("paddle.")
    model.lora_config.dtype = dtype  # mixed precision casts after the model was wrapped
    model.save_pretrained(str(folder), save_model_config=False)
    stock_config.save(model.config, folder, dtype)


def load(model: LoRAModel, folder: str | Path) -> None:
    """Set A and B from what ``save`` wrote, in the parameters' own dtype.

    ValueError for a folder without them, and for those of other projections or of another rank.
    """
    file = Path(folder) / FILE
    if not file.is_file():
        raise ValueError(f"{folder} holds no {FILE}; pass a checkpoint of a run with --finetuning_type lora.")
    stored = paddle.load(str(file))
    for name, parameter in model.get_trainable_state_dict().items():
        tensor = stored.pop(name, None)
        if tensor is None or tensor.shape != parameter.shape:
            found = "missing" if tensor is None else list(tensor.shape)
            raise ValueError(f"{file}: {name} is {found}, but this run's is {list(parameter.shape)}.")
        parameter.set_value(tensor.astype(parameter.dtype))
    if stored:
        raise ValueError(f"{file} holds {next(iter(stored))}, which has no LoRA in this run.")


@contextmanager
def merged(model: LoRAModel) -> Iterator[None]:
    """Inside, each W holds W + alpha / rank A B, computed in fp32 and rounded once; then every bit is back.

    PaddleNLP's ``merge`` and ``unmerge`` round in the weights' dtype, both ways.
    """
    layers = [layer for layer in model.sublayers() if isinstance(layer, LoRALinear)]
    before = [layer.weight.numpy() for layer in layers]
    try:
        for layer in layers:
            weight, a, b = (each.astype("float32") for each in (layer.weight, layer.lora_A, layer.lora_B))
            layer.weight.set_value((weight + a @ b * layer.scaling).astype(layer.weight.dtype))
            layer.merged = True
        yield
    finally:
        for layer, weight in zip(layers, before, strict=True):
            layer.weight.set_value(weight)
            layer.merged = False


def export(model: LoRAModel, tokenizer, folder: Path) -> None:
    """Write the merged model and its tokenizer in the Hugging Face layout; ``folder`` appears whole."""
    with unfinished(folder) as new:
        with paddle.no_grad(), merged(model):
            weights.save(unwrapped(model), new)
        chat_template.save(tokenizer, new)
        replace(new, folder)


def _chosen(model, wanted: str) -> list[str]:
    """The last parts of the names of the projections that get LoRA."""
    names = (name for name, layer in model.named_sublayers() if isinstance(layer, paddle.nn.Linear))
    known = sorted({name.rpartition(".")[2] for name in names if ".experts." not in name})
    known = [name for name in known if name.endswith("_proj")]
    if wanted == "all":
        return known
    chosen = [name.strip() for name in wanted.split(",")]
    for name in chosen:
        if name not in known:
            raise ValueError(
                f"--lora_target names {name!r}, but the model has the projections {', '.join(known)}; give "
                "some of them, separated by commas, or all"
            )
    return chosen
