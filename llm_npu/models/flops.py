"""FLOPs of a model per token. Importing it imports no framework.

    F = 6 N + 12 L H Q T       FLOPs per token, forward and backward

with N weights that multiply a token (without the embedding table; of an MoE layer, only the experts a token
is routed to), L layers, H heads of size Q, and T tokens in a row. Recomputed operations do not count, and
causal attention counts as full. With LoRA, frozen weights get no gradient, and 6 N becomes 4 N + 2 N_trained.
Source: PaLM, arXiv 2204.02311, appendix B.
"""

from __future__ import annotations

from .families import FAMILIES


def flops_per_token(config, length: int, trained: int | None = None) -> float:
    """F for rows of ``length`` tokens; with 0, the attention term is omitted.

    ``trained``: the number of trained weights with LoRA; by default all weights are trained.
    """
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    weights = config.hidden_size * config.vocab_size + layers * _weights_of_layer(config, heads, head_dim)
    products = 6 * weights if trained is None else 4 * (weights + trained) + 2 * trained
    return products + 12 * layers * heads * head_dim * length


def _weights_of_layer(config, heads: int, head_dim: int) -> int:
    hidden = config.hidden_size
    key_value_heads = getattr(config, "num_key_value_heads", None) or heads
    attention = getattr(config, "attention_parameters", 0)  # set in the planner's shapes
    attention = attention or 2 * hidden * head_dim * (heads + key_value_heads)
    if (moe_sizes := _moe_sizes(config)) is None:
        family = FAMILIES.get(config.model_type)
        matrices = 3 if family is None or family.gated else 2
        return attention + matrices * hidden * config.intermediate_size
    experts, size, shared = moe_sizes
    router = hidden * experts + (hidden if shared else 0)
    return attention + router + 3 * hidden * (config.num_experts_per_tok * size + shared)


def _moe_sizes(config) -> tuple[int, int, int] | None:
    """(number of experts, expert size, shared expert size); None for a dense model."""
    for family in FAMILIES.values():
        if family.experts and (number := getattr(config, family.experts.number, None)):
            size = getattr(config, family.experts.size, None) or config.intermediate_size
            return number, size, getattr(config, family.experts.shared or "", None) or 0
    return None
