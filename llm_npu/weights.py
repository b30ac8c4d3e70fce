"""The weights of PaddleNLP's language models in the Hugging Face layout, in ``model.safetensors``.

PaddleNLP's models (here a Llama) differ from the stock layout in three ways:

    here                                      in the file
    llama.layers.0...                         model.layers.0...
    y = x W,  W [in, out]                     y = x W^T,  W [out, in]
    qkv_proj            [H, K (G + 2) D]      q_proj [K G D, H], k_proj [K D, H], v_proj [K D, H]
    gate_up_fused_proj  [H, 2 I]              gate_proj [I, H], up_proj [I, H]

with H hidden size, I intermediate size, D head size, K key/value heads and G query heads per key/value head.
The columns of ``qkv_proj`` (and its bias, where a family has one) are grouped by key/value head: its G query
heads, its key, its value. The files hold the stock layout whatever is fused: any reader of the family takes
them, ``load`` takes any checkpoint of the family. InternLM2's checkpoints load into a Llama.
PaddleNLP's ``from_pretrained`` reads the files with ``convert_from_torch=True``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import paddle

from . import internlm2, stock_config
from .stored import FILE, Stored, write

__all__ = ["FILE", "from_stock", "load", "save", "to_stock"]


def save(model, folder: str | Path) -> None:
    """Write ``model.safetensors`` and ``config.json``, in the dtype of the parameters."""
    write(to_stock(model), Path(folder))
    dtype = str(next(iter(model.parameters())).dtype).removeprefix("paddle.")
    stock_config.save(model.config, Path(folder), dtype)


def load(model, folder: str | Path) -> None:
    """Set the parameters of ``model`` from the safetensors files in ``folder``, in the parameters' own dtype.

    ValueError for files that cannot be read, and for weights that are missing, unknown or of another shape.
    """
    stored = Stored(folder)
    if stock_config.model_type(folder) == internlm2.MODEL_TYPE:
        config = model.config
        stored = internlm2.AsLlama(stored, config.num_attention_heads, config.num_key_value_heads)
    from_stock(model, stored)


def to_stock(model) -> dict[str, np.ndarray]:
    """{Hugging Face name: array} of every parameter; bfloat16 as uint16, as in Paddle's ``numpy()``."""
    stock = {}
    for name, parameter in _parameters(model).items():
        for stock_name, array in _split(name, parameter.numpy(), model.config):
            stock[stock_name] = np.ascontiguousarray(array.T if _is_linear(stock_name, array) else array)
    return stock


def from_stock(model, stock: Mapping[str, np.ndarray]) -> None:
    """Set the parameters of ``model`` from ``stock``, {Hugging Face name: array}; bfloat16 as uint16."""
    # Older files hold the rotary frequencies, which follow from the configuration.
    unused = {name for name in stock if not name.endswith("rotary_emb.inv_freq")}
    if model.config.tie_word_embeddings:
        unused.discard("lm_head.weight")
    for name, parameter in _parameters(model).items():
        arrays = []
        for part in _parts(name):
            if part not in stock:
                raise ValueError(f"The weights lack {part}; they are of another model than {_size(model)}.")
            unused.discard(part)
            array = _as_dtype(stock[part], parameter.dtype)
            arrays.append(array.T if _is_linear(part, array) else array)
        rows = {array.shape[0] for array in arrays} if arrays[0].ndim > 1 else {parameter.shape[0]}
        width = sum(array.shape[-1] for array in arrays)
        if rows != {parameter.shape[0]} or width != parameter.shape[-1]:
            found = " and ".join(f"{list(stock[part].shape)}" for part in _parts(name))
            raise ValueError(f"{name} is {found} in the file, which does not fit {_size(model)}.")
        parameter.set_value(_join(name, arrays, model.config))
    if unused:
        raise ValueError(f"The weights hold {sorted(unused)[0]}, which {_size(model)} does not have.")


def _parameters(model) -> dict[str, paddle.Tensor]:
    """The parameters, each once, with the prefix of the stock names; without those of LoRA."""
    stored = getattr(model, model.base_model_prefix).state_dict().items()
    found = {f"model.{name}": parameter for name, parameter in stored if ".lora_" not in name}
    if not model.config.tie_word_embeddings:
        return found | {"lm_head.weight": model.lm_head.weight}
    if model.lm_head.weight is not found["model.embed_tokens.weight"]:
        raise ValueError(
            f"{type(model).__name__} has tie_word_embeddings in its configuration, but a head of its own, "
            "which would be lost; set config.tie_word_embeddings = False."
        )
    return found


def _as_dtype(array: np.ndarray, dtype: paddle.dtype) -> np.ndarray:
    return paddle.to_tensor(array, place=paddle.CPUPlace()).astype(dtype).numpy()


def _is_linear(stock_name: str, array: np.ndarray) -> bool:
    """Every matrix but the embedding is that of a linear layer."""
    return array.ndim == 2 and not stock_name.endswith("embed_tokens.weight")


def _parts(name: str) -> list[str]:
    if "qkv_proj" in name:
        return [name.replace("qkv_proj", part) for part in ("q_proj", "k_proj", "v_proj")]
    if "gate_up_fused_proj" in name:
        return [name.replace("gate_up_fused_proj", part) for part in ("gate_proj", "up_proj")]
    return [name]


def _split(name: str, array: np.ndarray, config) -> list[tuple[str, np.ndarray]]:
    if "qkv_proj" in name:
        groups, rest = config.num_attention_heads // config.num_key_value_heads, array.shape[:-1]
        heads = array.reshape(*rest, config.num_key_value_heads, groups + 2, -1)
        parts = (slice(groups), slice(-2, -1), slice(-1, None))
        arrays = [heads[..., part, :].reshape(*rest, -1) for part in parts]
    elif "gate_up_fused_proj" in name:
        arrays = np.split(array, 2, axis=-1)
    else:
        arrays = [array]
    return list(zip(_parts(name), arrays, strict=True))


def _join(name: str, arrays: list[np.ndarray], config) -> np.ndarray:
    if "qkv_proj" in name:
        rest, size = arrays[0].shape[:-1], config.hidden_size // config.num_attention_heads
        heads = [array.reshape(*rest, config.num_key_value_heads, -1, size) for array in arrays]
        return np.concatenate(heads, axis=-2).reshape(*rest, -1)
    return np.concatenate(arrays, axis=-1)


def _size(model) -> str:
    c = model.config
    return (
        f"this model (hidden {c.hidden_size}, {c.num_hidden_layers} layers, "
        f"{c.num_attention_heads}/{c.num_key_value_heads} heads, vocabulary {c.vocab_size})"
    )
