"""Converts InternLM2 checkpoints to Llama checkpoints, and back.

InternLM2 is a Llama with other names, and query, key and value projections in one matrix (released
modeling_internlm2.py: "b q (h gs d) -> b q h gs d" with gs = G + 2):

    InternLM2                              Llama
    model.tok_embeddings                   model.embed_tokens
    output                                 lm_head
    attention_norm, ffn_norm               input_layernorm, post_attention_layernorm
    attention.wqkv   [K (G + 2) D, H]      self_attn.q_proj [K G D, H], k_proj [K D, H], v_proj [K D, H]
    attention.wo                           self_attn.o_proj
    feed_forward.w1, w3, w2                mlp.gate_proj, up_proj, down_proj

with H hidden size, D head size, K key/value heads and G query heads per key/value head. The rows of ``wqkv``
are grouped by key/value head: its G query heads, its key, its value.

Arrays are read on access, so a checkpoint is never completely in memory.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from llm_npu.core.atomic import publish, unfinished
from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json
from llm_npu.models.family import Conversion
from paddle_fused import strict_json

if TYPE_CHECKING:  # reading arguments needs no numpy
    import numpy as np

MODEL_TYPE = "internlm2"
CONFIG_FILE = "config.json"
FUSED = "attention.wqkv"
PARTS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")

# InternLM2 name suffix -> Llama name suffix.
NAMES = {
    "tok_embeddings.weight": "embed_tokens.weight",
    "output.weight": "lm_head.weight",
    "attention_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "attention.wo.weight": "self_attn.o_proj.weight",
    "feed_forward.w1.weight": "mlp.gate_proj.weight",
    "feed_forward.w3.weight": "mlp.up_proj.weight",
    "feed_forward.w2.weight": "mlp.down_proj.weight",
}
LLAMA_NAMES = {llama: own for own, llama in NAMES.items()}
LLAMA_ONLY = ("attention_bias", "mlp_bias", "head_dim")  # fields that InternLM2's configuration does not have
WEIGHT_FILES = (".safetensors", ".safetensors.index.json", ".bin", ".pdparams")


class _View(Mapping):
    """The arrays of ``stored`` with the names and layout of the other kind of checkpoint.

    ``stored``: {name: array}. ``num_heads`` and ``num_key_value_heads`` as in config.json.
    """

    def __init__(self, stored: Mapping[str, np.ndarray], num_heads: int, num_key_value_heads: int):
        self.stored, self.heads, self.kv_heads = stored, num_heads, num_key_value_heads
        self.sources = {new: name for name in stored for new in self.names_from(name)}

    def names_from(self, name: str) -> list[str]:
        """The names in this view for the parts of ``stored[name]``."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)


class AsLlama(_View):
    """An InternLM2 checkpoint viewed as Llama. Raises UserError for invalid rows of ``wqkv``."""

    def names_from(self, name):
        if FUSED in name:
            return [name.replace(FUSED, part) for part in PARTS]
        return [_renamed(name, NAMES)]

    def __getitem__(self, name):
        source = self.sources[name]
        array = self.stored[source]
        if FUSED not in source:
            return array
        groups, rest = self.heads // self.kv_heads, array.shape[1:]
        if array.shape[0] % (self.kv_heads * (groups + 2)):
            raise UserError(
                f"{source} is {list(array.shape)}, but its rows are not a multiple of {self.kv_heads} "
                f"key/value heads with {groups} queries, a key and a value; the file is for another model"
            )
        rows = (slice(groups), slice(-2, -1), slice(-1, None))[self.names_from(source).index(name)]
        heads = array.reshape(self.kv_heads, groups + 2, -1, *rest)
        return heads[:, rows].reshape(-1, *rest)


class AsInternLM2(_View):
    """A Llama checkpoint viewed as InternLM2. Raises UserError for a layer with a missing projection."""

    def names_from(self, name):
        query, key, value = PARTS
        if key in name or value in name:
            return []  # part of wqkv, which takes the place of the queries
        return [name.replace(query, FUSED) if query in name else _renamed(name, LLAMA_NAMES)]

    def __getitem__(self, name):
        import numpy as np

        source = self.sources[name]
        if FUSED not in name:
            return self.stored[source]
        parts = [name.replace(FUSED, part) for part in PARTS]
        if lacking := [part for part in parts if part not in self.stored]:
            raise UserError(f"the Llama checkpoint lacks {lacking[0]}; it is incomplete")
        arrays = [self.stored[part] for part in parts]
        size, rest = arrays[0].shape[0] // self.heads, arrays[0].shape[1:]
        heads = [array.reshape(self.kv_heads, -1, size, *rest) for array in arrays]
        return np.concatenate(heads, axis=1).reshape(-1, *rest)


def to_llama(folder: str | Path, target: str | Path) -> None:
    """Convert the InternLM2 checkpoint in ``folder`` to a Llama checkpoint in the new folder ``target``.

    Weights keep their dtype, bits and files; other files (the tokenizer) are copied. ``target`` appears
    atomically. Raises UserError for a folder without an InternLM2 checkpoint, and if ``target`` exists.
    """
    folder = Path(folder)
    fields = _read_config(folder, MODEL_TYPE)
    _convert(folder, Path(target), fields, llama_config(fields), AsLlama)


def from_llama(folder: str | Path, target: str | Path) -> None:
    """Convert the Llama checkpoint in ``folder`` to an InternLM2 checkpoint, as ``to_llama`` does.

    Hugging Face's transformers reads the result with InternLM2's released modeling files.
    """
    folder = Path(folder)
    fields = _read_config(folder, "llama")
    _convert(folder, Path(target), fields, internlm2_config(fields), AsInternLM2)


def llama_config(fields: Mapping[str, object]) -> dict[str, object]:
    """Convert InternLM2's config.json fields to Llama's. Raises UserError for a model with biases."""
    if fields.get("bias"):
        raise UserError("this InternLM2 has bias true, but PaddleNLP's Llama does not support these biases")
    kept = {name: value for name, value in fields.items() if name not in ("auto_map", "bias")}
    return kept | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}


def internlm2_config(fields: Mapping[str, object]) -> dict[str, object]:
    """Convert Llama's config.json fields to InternLM2's. Raises UserError for a model with biases."""
    for name in ("attention_bias", "mlp_bias"):
        if fields.get(name):
            raise UserError(f"this Llama has biases ({name} true), which this conversion does not support")
    kept = {name: value for name, value in fields.items() if name not in LLAMA_ONLY}
    return kept | {"model_type": MODEL_TYPE, "architectures": ["InternLM2ForCausalLM"], "bias": False}


def _renamed(name: str, names: Mapping[str, str]) -> str:
    old = next((old for old in names if name == old or name.endswith(f".{old}")), None)
    return name if old is None else name.removesuffix(old) + names[old]


def _read_config(folder: Path, model_type: str) -> dict[str, object]:
    file = folder / CONFIG_FILE
    try:
        fields = plain_json.mapping(file)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error}") from None
    stated = fields.get("model_type")
    if stated != model_type:
        raise UserError(f"{file} has model_type {stated!r}; accepted here: {model_type!r}")
    return fields


def _convert(folder: Path, target: Path, fields: dict, converted: dict, kind: type[_View]) -> None:
    from llm_npu.models.stored import Stored, write  # they import paddle

    if target.exists():
        raise UserError(f"{target} exists already; specify a new folder")
    stored = Stored(folder)
    heads = fields.get("num_attention_heads")
    kv_heads = fields.get("num_key_value_heads") or heads
    if not all(type(count) is int and count > 0 for count in (heads, kv_heads)) or heads % kv_heads:
        raise UserError(
            f"{folder / CONFIG_FILE} has {heads!r:.20} heads, and {kv_heads!r:.20} for keys and values"
        )
    view = kind(stored, heads, kv_heads)
    files = {
        file: [new for name in names for new in view.names_from(name)] for file, names in stored.files.items()
    }
    with unfinished(target) as new:
        for file in folder.iterdir():
            if file.is_file() and not file.name.endswith(WEIGHT_FILES):
                shutil.copyfile(file, new / file.name)
        write(view, new, files)
        (new / CONFIG_FILE).write_text(strict_json.dumps(converted, indent=2, sort_keys=True) + "\n")
        publish(new, target)


CONVERSION = Conversion(MODEL_TYPE, fields=llama_config, arrays=AsLlama)
