"""The weights of a PaddleNLP Llama in the Hugging Face layout, in ``model.safetensors``.

PaddleNLP's ``LlamaForCausalLM`` differs from the stock layout in three ways:

    here                                      in the file
    llama.layers.0...                         model.layers.0...
    y = x W,  W [in, out]                     y = x W^T,  W [out, in]
    qkv_proj            [H, K (G + 2) D]      q_proj [K G D, H], k_proj [K D, H], v_proj [K D, H]
    gate_up_fused_proj  [H, 2 I]              gate_proj [I, H], up_proj [I, H]

with H hidden size, I intermediate size, D head size, K key/value heads and G query heads per key/value head.
The columns of ``qkv_proj`` are grouped by key/value head: its G query heads, its key, its value.
The files hold the stock layout whatever is fused: any Llama reader takes them, ``load`` takes any Llama.
PaddleNLP's ``from_pretrained`` reads them with ``convert_from_torch=True``.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import paddle
from safetensors import SafetensorError
from safetensors.paddle import load_file, save_file

FILE = "model.safetensors"

# Fields of config.json that mean the same to both readers; PaddleNLP leaves out those at its own defaults.
SHARED_FIELDS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "initializer_range",
    "tie_word_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)


def save(model, folder: str | Path) -> None:
    """Write ``model.safetensors`` and ``config.json``, in the dtype of the parameters."""
    folder = Path(folder)
    weights = {name: paddle.to_tensor(a, place=paddle.CPUPlace()) for name, a in to_stock(model).items()}
    save_file(weights, str(folder / FILE), metadata={"format": "pt"})  # pt: the layout, not the writer
    model.config.save_pretrained(str(folder))
    dtype = str(next(iter(weights.values())).dtype).removeprefix("paddle.")
    _complete_config(folder / "config.json", model.config, dtype)


def load(model, folder: str | Path) -> None:
    """Set the parameters of ``model`` from the safetensors files in ``folder``, in the parameters' own dtype.

    ValueError for files that cannot be read, and for weights that are missing, unknown or of another shape.
    """
    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder} holds no .safetensors file; pass a folder with a Llama in that format.")
    stock = {}
    for file in files:
        try:
            stock.update(load_file(str(file)))
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{file} cannot be read as safetensors: {error}") from None
    from_stock(model, stock)


def to_stock(model) -> dict[str, np.ndarray]:
    """{Hugging Face name: array} of every parameter; bfloat16 as uint16, as in Paddle's ``numpy()``."""
    stock = {}
    for name, parameter in _parameters(model).items():
        for stock_name, array in _split(name, parameter.numpy(), model.config):
            stock[stock_name] = np.ascontiguousarray(array.T if _is_linear(stock_name) else array)
    return stock


def from_stock(model, stock: dict[str, paddle.Tensor]) -> None:
    """Set the parameters of ``model`` from the tensors ``stock``, {Hugging Face name: tensor}."""
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
            tensor = stock[part].astype(parameter.dtype).numpy()
            arrays.append(tensor.T if _is_linear(part) else tensor)
        rows = {array.shape[0] for array in arrays}
        width = sum(array.shape[-1] for array in arrays)
        if rows != {parameter.shape[0]} or width != parameter.shape[-1]:
            found = " and ".join(f"{list(stock[part].shape)}" for part in _parts(name))
            raise ValueError(f"{name} is {found} in the file, which does not fit {_size(model)}.")
        parameter.set_value(_join(name, arrays, model.config))
    if unused:
        raise ValueError(f"The weights hold {sorted(unused)[0]}, which {_size(model)} does not have.")


def _parameters(model) -> dict[str, paddle.Tensor]:
    """The parameters, each once, with the prefix of the stock names."""
    found = {f"model.{name}": parameter for name, parameter in model.llama.state_dict().items()}
    return found if model.config.tie_word_embeddings else found | {"lm_head.weight": model.lm_head.weight}


def _is_linear(stock_name: str) -> bool:
    return stock_name.endswith("_proj.weight") or stock_name == "lm_head.weight"


def _parts(name: str) -> list[str]:
    if "qkv_proj" in name:
        return [name.replace("qkv_proj", part) for part in ("q_proj", "k_proj", "v_proj")]
    if "gate_up_fused_proj" in name:
        return [name.replace("gate_up_fused_proj", part) for part in ("gate_proj", "up_proj")]
    return [name]


def _split(name: str, array: np.ndarray, config) -> list[tuple[str, np.ndarray]]:
    if "qkv_proj" in name:
        groups = config.num_attention_heads // config.num_key_value_heads
        heads = array.reshape(array.shape[0], config.num_key_value_heads, groups + 2, -1)
        arrays = [heads[:, :, part].reshape(array.shape[0], -1) for part in (slice(groups), -2, -1)]
    elif "gate_up_fused_proj" in name:
        arrays = np.split(array, 2, axis=-1)
    else:
        arrays = [array]
    return list(zip(_parts(name), arrays, strict=True))


def _join(name: str, arrays: list[np.ndarray], config) -> np.ndarray:
    if "qkv_proj" in name:
        kv_heads = config.num_key_value_heads
        size = config.hidden_size // config.num_attention_heads
        arrays = [array.reshape(array.shape[0], kv_heads, -1, size) for array in arrays]
        return np.concatenate(arrays, axis=2).reshape(arrays[0].shape[0], -1)
    return np.concatenate(arrays, axis=-1)


def _size(model) -> str:
    c = model.config
    return (
        f"this model (hidden {c.hidden_size}, {c.num_hidden_layers} layers, "
        f"{c.num_attention_heads}/{c.num_key_value_heads} heads, vocabulary {c.vocab_size})"
    )


def _complete_config(file: Path, config, dtype: str) -> None:
    """Add what Hugging Face's reader needs and PaddleNLP leaves out or calls otherwise."""
    written = json.loads(file.read_text())
    written.update(
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        torch_dtype=dtype,
        hidden_act="silu",
        attention_bias=False,
        mlp_bias=False,
        **{field: getattr(config, field) for field in SHARED_FIELDS},
    )
    file.write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")
