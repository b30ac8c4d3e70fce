"""ERNIE-4.5, dense: rotary embedding of interleaved pairs."""

from llm_npu.models.family import TINY_SIZES, Family, sizes

from .shared import JOINED_PROJECTIONS, ROPE_SCALINGS, layers

INTERLEAVED = "interleaved table of tokens"
# Of both families: more positions, and rotary waves of another length than PaddleFormers' own defaults.
COMMON = {
    "vocab_size": 103424,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
}
TINY = TINY_SIZES | {"num_key_value_heads": 2, "head_dim": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0}

FAMILY = Family(
    model_type="ernie4_5",
    name="Ernie4_5",
    title="ERNIE-4.5",
    models=("Ernie4_5ForCausalLM", "Ernie4_5ForCausalLMPipe"),
    layers=layers("Ernie4_5Attention", "Ernie4_5Model", INTERLEAVED),
    defaults=COMMON | sizes(1024, 3072, 18, 16, 2, head_dim=128),
    reads=("use_bias", "mlp_bias", "hidden_dropout_prob"),
    rope_scalings=ROPE_SCALINGS,
    reads_rope_parameters=True,
    fused_projections=JOINED_PROJECTIONS,
    projections_on_request=False,
    presets={
        "ernie4.5-tiny": TINY,
        # The fields of the released model.
        "ernie4.5-0.3b": COMMON | sizes(1024, 3072, 18, 16, 2),
    },
    aliases={"baidu/ERNIE-4.5-0.3B-PT": "ernie4.5-0.3b"},
)
