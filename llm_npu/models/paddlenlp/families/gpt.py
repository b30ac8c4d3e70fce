"""GPT: GPT-2 and GPT-3. LayerNorm, GELU, dropout and learned positions."""

from llm_npu.models.family import TINY_SIZES, Family, sizes
from llm_npu.models.paddlenlp import gpt2


def _size(hidden: int, layers: int, heads: int, **other) -> dict:
    return sizes(hidden, 4 * hidden, layers, heads, **other)


_GPT_2 = {"vocab_size": 50257, "max_position_embeddings": 1024}
# 50257 tokens and padding, so that degrees of tensor parallelism divide them, as in PaddleNLP's scripts.
_GPT_3 = {"vocab_size": 50304, "max_position_embeddings": 2048}

FAMILY = Family(
    model_type="gpt",
    name="GPT",
    title="GPT",
    package="gpt",
    models=("GPTForCausalLM",),
    layers={
        "attention": {"MultiHeadAttention": "core attention", "GPTModel": "learned positions"},
        "dropout_add_layer_norm": {
            "GPTDecoderLayer": "layer",
            "GPTEmbeddings": "embeddings",
            "GPTLayerNorm": "norm",
            "TransformerDecoder": "layers",
        },
        "linear_cross_entropy": {
            "GPTLMHead": "parallel_matmul",
            "GPTPretrainingCriterion": "criterion",
            "GPTForCausalLM": "with labels",
        },
    },
    defaults=_size(768, 12, 12, vocab_size=50304, max_position_embeddings=512)
    | {
        "num_key_value_heads": None,
        "tie_word_embeddings": True,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
    },
    fixed={
        "tie_word_embeddings": True,
        "hidden_activation": "gelu",
        "normalize_before": True,
        "layer_norm_eps": 1e-5,
        "ignore_index": -100,  # the class ignores labels of token 0 by default
    },
    activations=("gelu", "gelu_new", "gelu_pytorch_tanh"),  # computed by tanh, whatever the name
    gated=False,
    attention_bias=True,
    biases=True,
    learned_positions=True,
    stored_as=gpt2.LAYOUT,
    generates_in_stages=False,
    presets={
        "gpt-tiny": TINY_SIZES | {"intermediate_size": 1024},
        # GPT-2, the fields of the released models.
        "gpt2": _GPT_2 | _size(768, 12, 12),
        "gpt2-medium": _GPT_2 | _size(1024, 24, 16),
        "gpt2-large": _GPT_2 | _size(1280, 36, 20),
        "gpt2-xl": _GPT_2 | _size(1600, 48, 25),
        # GPT-3, arXiv 2005.14165, table 2.1; heads of 128, where its 1.3B has 16 heads and its 13B 40.
        "gpt3-1.3b": _GPT_3 | _size(2048, 24, 16),
        "gpt3-6.7b": _GPT_3 | _size(4096, 32, 32),
        "gpt3-13b": _GPT_3 | _size(5120, 40, 40),
        "gpt3-175b": _GPT_3 | _size(12288, 96, 96),
    },
    aliases={
        "gpt2-en": "gpt2",
        "gpt2-medium-en": "gpt2-medium",
        "gpt2-large-en": "gpt2-large",
        "gpt2-xl-en": "gpt2-xl",
        "gpt3-1.3B-en": "gpt3-1.3b",
        "gpt3-6.7B-en": "gpt3-6.7b",
        "gpt3-13B-en": "gpt3-13b",
        "gpt3-175B-en": "gpt3-175b",
    },
)
