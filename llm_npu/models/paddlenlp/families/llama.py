"""Llama: Llama 1 to 3.2, Code Llama, TinyLlama."""

from llm_npu.models.family import TINY_SIZES, Family, sizes

DEFAULTS = sizes(4096, 11008, 32, 32, vocab_size=32000, max_position_embeddings=2048) | {
    "num_key_value_heads": None,  # as many as attention heads
    "tie_word_embeddings": False,
}
FUSED_PROJECTIONS = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_fused_proj": ("gate_proj", "up_proj"),
}

_8B = sizes(4096, 14336, 32, 32)
_13B = sizes(5120, 13824, 40, 40)
_34B = sizes(8192, 22016, 48, 64, 8, rms_norm_eps=1e-5)
_70B = sizes(8192, 28672, 80, 64, 8)
_LLAMA_3 = {
    "vocab_size": 128256,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LLAMA_3_1 = _LLAMA_3 | {"max_position_embeddings": 131072, "rope_scaling": _SCALING}
_LLAMA_3_2 = _LLAMA_3_1 | {"rope_scaling": _SCALING | {"factor": 32.0}, "tie_word_embeddings": True}

PRESETS = {
    # 9.3 million parameters.
    "llama-tiny": TINY_SIZES,
    # Layers of the 110M model of karpathy/llama2.c (README, table of models). That one has 32000 tokens and
    # one matrix for embedding and lm_head; half the tokens and two matrices come to the same size.
    "llama-110m": sizes(768, 2048, 12, 12, vocab_size=16384, max_position_embeddings=1024, rms_norm_eps=1e-5),
    # TinyLlama, arXiv 2401.02385, table 1.
    "tinyllama-1.1b": sizes(2048, 5632, 22, 32, 4, rms_norm_eps=1e-5),
    # Llama, arXiv 2302.13971, table 2.
    "llama-7b": {"rms_norm_eps": 1e-6},
    "llama-13b": _13B | {"rms_norm_eps": 1e-6},
    # Llama 2, arXiv 2307.09288, table 1; the feed-forward widths are those of the released models.
    "llama2-7b": {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    "llama2-13b": _13B | {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    # Never released; sizes of MindSpeed-LLM's examples/mcore/llama2/pretrain_llama2_34B_ptd_16p.sh.
    "llama2-34b": _34B | {"max_position_embeddings": 4096},
    "llama2-70b": _70B | {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    # Llama 3, arXiv 2407.21783, table 3; 8192 positions before the context was extended.
    "llama3-8b": _LLAMA_3 | _8B,
    "llama3-70b": _LLAMA_3 | _70B,
    # Llama 3.1, in the same table, and Llama 3.2: the fields of the released models.
    "llama3.1-8b": _LLAMA_3_1 | _8B,
    "llama3.1-70b": _LLAMA_3_1 | _70B,
    "llama3.2-1b": _LLAMA_3_2 | sizes(2048, 8192, 16, 32),
    "llama3.2-3b": _LLAMA_3_2 | sizes(3072, 8192, 28, 24),
    # Code Llama, arXiv 2308.12950: a Llama 2 34B with longer rotary waves; fields of the released model.
    "codellama-34b": _34B | {"max_position_embeddings": 16384, "rope_theta": 1e6},
}

FAMILY = Family(
    model_type="llama",
    name="Llama",
    title="Llama",
    # With those for auto-parallel (modeling_auto, modeling_network) and for pipelines.
    models=("LlamaForCausalLM", "LlamaForCausalLM3DAuto", "LlamaForCausalLMNet", "LlamaForCausalLMPipe"),
    layers={
        "attention": {
            "LlamaAttention": "attn_func",
            "LlamaAttentionAuto": "function",
            "LlamaAttentionNet": "function",
            "LlamaModel": "decoder",
            "LlamaModelAuto": "decoder without mask",
            "GlobalOutputNet": "inputs of all layers",
            "LlamaEmbeddingPipe": "first stage",
        },
        "rms_norm": dict.fromkeys(("LlamaRMSNorm", "LlamaRMSNormAuto", "LlamaRMSNormNet"), "forward"),
        "add_rms_norm": dict.fromkeys(
            ("LlamaDecoderLayer", "LlamaDecoderLayerAuto", "LlamaDecoderLayerNet"), "forward"
        ),
        "rotary": {
            "LlamaAttention": "tokens first",
            "LlamaAttentionAuto": "tokens first",
            "LlamaAttentionNet": "tokens first",
            "LlamaModel": "decoder",
        },
        "swiglu": dict.fromkeys(("LlamaMLP", "LlamaMLPAuto", "LlamaMLPNet"), "function"),
        "linear_cross_entropy": {
            "LlamaLMHead": "parallel_matmul",
            "LlamaPretrainingCriterion": "criterion",
            "LlamaForCausalLM": "with labels",
            "LlamaForCausalLMPipe": "stages",
        },
    },
    defaults=DEFAULTS,
    unsupported_fields=("attention_bias", "mlp_bias"),
    rope_scalings={"linear": "linear", "dynamic": "dynamic_ntk", "ntk": "ntk", "llama3": None},
    required_by_transformers={"attention_bias": False, "mlp_bias": False},
    fused_projections=FUSED_PROJECTIONS,
    presets=PRESETS,
    aliases={
        "facebook/llama-7b": "llama-7b",
        "facebook/llama-13b": "llama-13b",
        "meta-llama/Llama-2-7b": "llama2-7b",
        "meta-llama/Llama-2-13b": "llama2-13b",
        "meta-llama/Llama-2-70b": "llama2-70b",
        "meta-llama/Meta-Llama-3-8B": "llama3-8b",
        "meta-llama/Meta-Llama-3-70B": "llama3-70b",
        "meta-llama/Meta-Llama-3.1-8B": "llama3.1-8b",
        "meta-llama/Meta-Llama-3.1-70B": "llama3.1-70b",
        "meta-llama/Llama-3.2-1B": "llama3.2-1b",
        "meta-llama/Llama-3.2-3B": "llama3.2-3b",
    },
)
