"""Converts GPT-2 checkpoints of transformers to PaddleNLP's GPT; GPT models are stored as GPT-2.

    transformers, after "transformer."     PaddleNLP
    wte, wpe                               embeddings.word_embeddings, embeddings.position_embeddings
    h.0.ln_1, ln_2                         decoder.layers.0.norm1, norm2
    h.0.attn.c_attn    [H, 3 H]            decoder.layers.0.self_attn.q_proj, k_proj, v_proj    [H, H] each
    h.0.attn.c_proj                        decoder.layers.0.self_attn.out_proj
    h.0.mlp.c_fc, c_proj                   decoder.layers.0.linear1, linear2
    ln_f                                   decoder.norm

with H hidden size. No matrix is transposed. The head is the embedding.
Importing it imports no framework.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from llm_npu.core.errors import UserError
from llm_npu.models.family import Conversion, UpstreamLayout

if TYPE_CHECKING:  # reading arguments needs no numpy
    import numpy as np

MODEL_TYPE, PREFIX = "gpt2", "transformer."
NAMES = {
    "embeddings.word_embeddings": "wte",
    "embeddings.position_embeddings": "wpe",
    "norm1": "ln_1",
    "norm2": "ln_2",
    "self_attn.out_proj": "attn.c_proj",
    "linear1": "mlp.c_fc",
    "linear2": "mlp.c_proj",
    "decoder.norm": "ln_f",
}
PARTS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
FIELDS = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "activation_function": "hidden_act",
}
DROPOUTS = ("embd_pdrop", "resid_pdrop", "attn_pdrop")
OWN_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
DEFAULTS = {
    "vocab_size": 50257,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "activation_function": "gelu_new",
    **dict.fromkeys(DROPOUTS, 0.1),
}
# {field: values that PaddleNLP's GPT supports}.
COMPUTED = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "tie_word_embeddings": (True,),
}
# Fields that do not affect the logits.
DROPPED = re.compile(r"summary_.*|task_specific_params|n_ctx|gradient_checkpointing|reorder_and_upcast_attn")
BUFFERS = re.compile(r".*\.attn\.(masked_)?bias")


def upstream_name(name: str) -> tuple[str, int, int]:
    """``UpstreamLayout.name`` for the parameter ``name``, which has the prefix ``model.``."""
    path, _, kind = name.removeprefix("model.").rpartition(".")
    layer = re.fullmatch(r"decoder\.layers\.(\d+)\.(.*)", path)
    inner, place = (layer[2], f"h.{layer[1]}.") if layer else (path, "")
    if inner in PARTS:
        return f"{PREFIX}{place}attn.c_attn.{kind}", PARTS.index(inner), len(PARTS)
    return f"{PREFIX}{place}{NAMES[inner]}.{kind}", 0, 1


def gpt_fields(fields: Mapping[str, object]) -> dict[str, object]:
    """Convert transformers' config.json fields to PaddleNLP's.

    Raises UserError for values that PaddleNLP's GPT does not support.
    """
    stated = {**DEFAULTS, **{name: value for name, value in fields.items() if value is not None}}
    for name, accepted in COMPUTED.items():
        if name in stated and stated[name] not in accepted:
            raise UserError(
                f"this GPT-2 has {name} {stated[name]!r:.40}, but PaddleNLP's GPT supports only "
                f"{' or '.join(map(str, accepted))}"
            )
    if any(name not in stated for name in OWN_DROPOUTS):
        if len({str(stated[name]) for name in DROPOUTS}) > 1:
            dropouts = ", ".join(f"{name} {stated[name]!r:.40}" for name in DROPOUTS)
            raise UserError(f"this GPT-2 has {dropouts}, but PaddleNLP's GPT has one dropout; use one value")
        stated |= dict.fromkeys(OWN_DROPOUTS, stated["embd_pdrop"])
    hidden = stated["n_embd"]
    if "n_inner" not in stated and isinstance(hidden, int):
        stated["n_inner"] = 4 * hidden
    kept = {FIELDS.get(name, name): value for name, value in stated.items() if not DROPPED.fullmatch(name)}
    for name in (*DROPOUTS, *COMPUTED, *FIELDS):
        kept.pop(name, None)
    return kept | {"model_type": "gpt", "architectures": ["GPTForCausalLM"]}


def gpt2_fields(config) -> dict[str, object]:
    """Convert a ``GPTConfig`` to transformers' config.json fields.

    transformers has a single dropout after attention and feed-forward layers; PaddleNLP's two dropouts are
    stored in addition.
    """
    stated = {name: getattr(config, own) for name, own in FIELDS.items() if own != "hidden_act"}
    hidden, attention = (getattr(config, name) for name in OWN_DROPOUTS)
    return {
        **stated,
        "architectures": ["GPT2LMHeadModel"],
        "model_type": MODEL_TYPE,
        "activation_function": "gelu_new",
        "embd_pdrop": hidden,
        "resid_pdrop": hidden,
        "attn_pdrop": attention,
        **dict(zip(OWN_DROPOUTS, (hidden, attention), strict=True)),
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        **{
            name: getattr(config, name)
            for name in ("vocab_size", "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id")
        },
    }


class _Prefixed(Mapping):
    """The arrays of ``stored`` without masks, adding the prefix that bare model files lack."""

    def __init__(self, stored: Mapping[str, np.ndarray], *_heads: int):
        self.stored = stored
        self.sources = {
            name if name.startswith((PREFIX, "lm_head.")) else f"{PREFIX}{name}": name
            for name in stored
            if not BUFFERS.fullmatch(name)
        }

    def __getitem__(self, name: str) -> np.ndarray:
        return self.stored[self.sources[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)


CONVERSION = Conversion(MODEL_TYPE, gpt_fields, _Prefixed)
LAYOUT = UpstreamLayout("model.embeddings.word_embeddings.weight", upstream_name, gpt2_fields)
