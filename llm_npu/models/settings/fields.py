"""Fields that change the computation of a transformers class, and that the library's class may ignore.

``check`` rejects a value that requests something other than what the class computes. A family lists the
fields that its class reads in ``Family.reads``.
"""

from __future__ import annotations

from collections.abc import Mapping

from llm_npu.core.errors import UserError
from llm_npu.models.family import Family

SHOWN = 40
DROPOUTS = (
    *("attention_dropout", "attention_dropout_prob", "attention_probs_dropout_prob", "attn_pdrop"),
    *("hidden_dropout", "hidden_dropout_prob", "resid_pdrop", "residual_dropout", "embd_pdrop"),
    *("embedding_dropout", "moe_dropout_prob", "router_jitter_noise"),
)
BOOLS = (
    *("tie_word_embeddings", "attention_bias", "qkv_bias", "mlp_bias", "use_bias", "use_sliding_window"),
    *("norm_topk_prob", "output_router_logits"),
)
# {field: neutral values}; null is always neutral.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(DROPOUTS, (0,)),
    **dict.fromkeys(("mlp_bias", "use_bias", "bias", "use_sliding_window", "output_router_logits"), (False,)),
    # Weights with other storage
    **dict.fromkeys(("quantization_config", "compression_config", "pruned_heads"), ({},)),
    # Positions
    **dict.fromkeys(("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction"), (1,)),
    **dict.fromkeys(("rotary_dim", "rotary_ndims", "no_rope_layers", "position_embedding_type"), ()),
    **dict.fromkeys(("alibi", "use_long_sequence_strategies", "attn_temperature_tuning"), (False,)),
    **dict.fromkeys(("rope", "rope_interleave", "is_causal", "use_rmsnorm"), (True,)),
    # Attention and norms
    **dict.fromkeys(("sliding_window", "attention_chunk_size", "query_pre_attn_scalar", "clip_qkv"), ()),
    **dict.fromkeys(("attention_multiplier", "attention_temperature", "attention_sinks"), ()),
    **dict.fromkeys(("use_qk_norm", "qk_layernorm", "qk_norm"), (False,)),
    "scale_qk_coeff": (1,),
    **dict.fromkeys(("parallel_attn", "use_parallel_residual", "parallel_residual"), (False,)),
    **dict.fromkeys(("add_unit_offset", "rms_norm_unit_offset", "is_encoder_decoder"), (False,)),
    **dict.fromkeys(("add_cross_attention", "cross_attention_layers"), (False, [])),
    # Scales of activations and logits
    **dict.fromkeys(("logit_scale", "logits_scaling", "logits_scale", "lm_head_multiplier"), (1,)),
    **dict.fromkeys(("embedding_multiplier", "residual_multiplier", "scale_emb", "width_scale"), (1,)),
    **dict.fromkeys(("final_logit_softcapping", "attn_logit_softcapping", "scale_depth"), ()),
    "dim_model_base": (),
    # Other kinds of layers
    **dict.fromkeys(("text_config", "vision_config", "audio_config", "thinker_config"), ()),
    **dict.fromkeys(("mlp_only_layers", "n_future_tokens"), ([], 0)),
    "moe_layer_freq": (1,),
}
FULL = "full_attention"
# Fields without effect on the computation, or checked elsewhere.
KNOWN = (
    *("architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "_name_or_path"),
    *("auto_map", "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "use_cache"),
    *("hidden_act", "head_dim", "rms_norm_eps", "rope_theta", "rope_scaling", "initializer_range"),
    *("layer_types", "max_window_layers"),
    *("original_max_position_embeddings", "decoder_sparse_step", "num_local_experts", "qk_head_dim"),
    *("router_aux_loss_coef", "aux_loss_alpha", "seq_aux", "ep_size", "pretraining_tp", "fd_fallback"),
    *("return_dict", "output_attentions", "output_hidden_states", "id2label", "label2id", "num_labels"),
    *("seq_length", "paddlenlp_version", "paddleformers_version", "moe_capacity", "moe_layer_interval"),
    *("moe_layer_end_index", "num_nextn_predict_layers", "num_nextn_predict_lambda"),
    *("do_sample", "temperature", "top_k", "top_p", "repetition_penalty", "max_length", "max_new_tokens"),
)


def check(family: Family, fields: Mapping[str, object], file: object, library: str) -> None:
    """Raise UserError for a field of ``file`` that the family's class would ignore or misread."""
    for name in BOOLS:
        if not isinstance(fields.get(name, False), bool) and fields[name] is not None:
            raise UserError(f"{file} has {name} {fields[name]!r:.{SHOWN}}, but it must be true or false")
    for name in ("attention_bias", "qkv_bias"):
        wanted = fields.get(name, family.attention_bias)
        if wanted not in (None, family.attention_bias) and name not in family.reads:
            has = "always has" if family.attention_bias else "does not have"
            raise UserError(f"{file} sets {name} to {str(wanted).lower()}, but {library} {has} those biases")
    for name, neutral in {**NEUTRAL, **{name: (value,) for name, value in family.fixed.items()}}.items():
        value = fields.get(name)
        if name in DROPOUTS and value is not None:
            _check_share(file, name, value)
        if value is None or name in (*family.reads, *family.defaults):
            continue
        if not any(value == other and type(value) in _types(other) for other in neutral):
            accepted = f"accepted: {', '.join(map(_json, neutral))}" if neutral else "remove it"
            raise UserError(f"{file} sets {name} to {value!r:.{SHOWN}}, which {library} ignores; {accepted}")
    _check_windows(family, fields, file, library)
    for name, other in family.derived.items():
        value, wanted = fields.get(name), fields.get(other, family.defaults.get(other))
        if value is not None and value != wanted:
            raise UserError(
                f"{file} has {name} {value!r:.{SHOWN}}, but {library} has {other} {wanted!r:.{SHOWN}}"
            )


def unknown(family: Family, fields: Mapping[str, object]) -> list[str]:
    """The non-neutral fields that are neither read nor checked, in alphabetical order."""
    known = {*KNOWN, *NEUTRAL, *BOOLS, *family.defaults, *family.expert_fields, *family.unsupported_fields}
    known |= {*family.reads, *family.fixed, *family.derived, *family.required_by_transformers}
    return sorted(name for name, value in fields.items() if value and name not in known)


def _check_share(file: object, name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise UserError(f"{file} has {name} {value!r:.{SHOWN}}, but it must be at least 0 and below 1")


def _check_windows(family: Family, fields: Mapping[str, object], file: object, library: str) -> None:
    """Check the kinds of layers, and their window."""
    window, used = fields.get("sliding_window"), fields.get("use_sliding_window") or family.has_sliding_window
    whole = isinstance(window, int) and not isinstance(window, bool)
    if window is not None and used and not (whole and window > 0):
        raise UserError(
            f"{file} has sliding_window {window!r:.{SHOWN}}, but it must be null or a whole number greater "
            "than 0"
        )
    kinds = fields.get("layer_types")
    if kinds is None:
        return
    if not isinstance(kinds, list) or any(not isinstance(kind, str) for kind in kinds):
        raise UserError(f"{file} has layer_types {kinds!r:.{SHOWN}}, but it must be a list of kinds")
    accepted = {FULL, "sliding_attention"} if "layer_types" in family.reads and used else {FULL}
    if other := set(kinds) - accepted:
        raise UserError(
            f"{file} has layers of {min(other):.{SHOWN}}, but with these settings {library} accepts "
            f"{' and '.join(sorted(accepted))}"
        )


def _types(neutral: object) -> tuple[type, ...]:
    return (int, float) if type(neutral) in (int, float) else (type(neutral),)


def _json(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_library(family: Family, fields: Mapping[str, object]) -> dict[str, object]:
    """Add derived fields to ``fields``; null means false, as in transformers."""
    values = {name: False if value is None and name in BOOLS else value for name, value in fields.items()}
    if "head_dim" in family.defaults and values.get("head_dim") is None:
        values["head_dim"] = values["hidden_size"] // values["num_attention_heads"]
    return values | family.fixed | {name: values[other] for name, other in family.derived.items()}
