"""A model family as one record: classes, fields, weight layout, presets. Importing it imports no framework.

A library of models has a folder ``models/<library>/families`` with one module per family, which defines
``FAMILY``. Configuration, surgery, planner, benchmarks and tests read it there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

# How a class computes an operator, or prepares its inputs; surgery/replacements/<operator>.py handles each.
AttentionVariant = Literal[
    "attn_func",  # its forward calls self.attn_func
    "function",  # its forward calls scaled_dot_product_attention of its module
    "F",  # with use_flash_attention it calls F.scaled_dot_product_attention
    "decoder",  # makes the mask of all layers
    "causal decoder",  # the same, causal whatever mask it is given; its cache has heads before tokens
    "decoder without mask",  # passes None to layers that are causal
    "inputs of all layers",  # makes positions and mask for all layers
    "first stage",  # the same, in the first stage of a pipeline
    "interface",  # its forward looks attention up in ALL_ATTENTION_FUNCTIONS of its module
    "latent",  # its forward calls self.attn_func, with queries wider than values (DeepSeek-V3)
    "makes masks",  # makes the masks of all layers by create_causal_mask_and_row_indices of its module
    "core attention",  # its forward calls self._core_attention, or with use_flash_attention another method
    "learned positions",  # makes the mask and the learned positions of all layers (GPT)
]
RotaryVariant = Literal[
    "tokens first",  # attention with tables [1, P, 1, D] and queries [B, S, N, D]
    "heads first",  # attention with tables [P, D] and queries [B, N, S, D]
    "decoder",  # makes positions 0, 1, 2, ... where none are given, and passes others on
    "table of tokens",  # attention with a row for each token, [B, S, D], and queries [B, N, S, D]
    "interleaved table of tokens",  # the same for pairs (x[2 i], x[2 i + 1])
    "part of a head",  # such pairs in a part of each head, [B, S, N, D], and one key for all heads
]
NormVariant = Literal[
    "forward",  # its forward is the operator
    "first of a tuple",  # the same, on a stage's inputs: a tensor, or a tuple that begins with it
    "one more",  # multiplies by 1 + weight (Gemma)
]
ResidualVariant = Literal[
    "forward",  # its forward adds the residual twice, and the second sum is its result
    "forward, then more",  # the same, but its result is made from the second sum
    "attn and post_process",  # these methods of it add the residual, and the second sum is its result
]
SwigluVariant = Literal[
    "function",  # its forward calls swiglu of its module
    "act_fn",  # its forward calls self.act_fn, which is swiglu if fuse_swiglu
    "forward",  # its forward multiplies self.act_fn of one projection by another
]
GegluVariant = Literal["forward"]  # its forward multiplies F.gelu of one projection by another
DropoutNormVariant = Literal[
    "embeddings",  # dropout of what the layers get
    "layer",  # dropout, addition and LayerNorm between its attention and its feed-forward layer
    "layers",  # calls the layers, and the LayerNorm after the last
    "norm",  # LayerNorm
]
MoeVariant = Literal[
    "router",  # gate is a linear layer, and the K probabilities add up to 1 (Mixtral)
    "softmax router",  # gate is a linear layer in float32 (Qwen3-MoE)
    "sigmoid router",  # gate gives indices and weights, and moe(tokens, indices, weights) the routed experts
    "router with statistics",  # gate gives logits, and the block their loss; shared experts (ERNIE-4.5-MoE)
    "gate and shared expert",  # gate is PaddleNLP's, with an auxiliary loss, beside an expert of all tokens
]
LinearCrossEntropyVariant = Literal[
    "parallel_matmul",  # a head whose forward calls parallel_matmul of its module
    "general head",  # a head whose forward calls calc_lm_head_logits of its module
    "first of a tuple",  # the same, on a stage's inputs
    "criterion",  # the mean of what loss_func makes of logits and labels
    "general criterion",  # the same, for several kinds of training
    "with labels",  # a model that calls both where it is given labels
    "stages",  # a model in stages, the last of which has the head
]
VARIANTS: Mapping[str, object] = {
    "attention": AttentionVariant,
    "rotary": RotaryVariant,
    "rms_norm": NormVariant,
    "add_rms_norm": ResidualVariant,
    "swiglu": SwigluVariant,
    "geglu": GegluVariant,
    "moe": MoeVariant,
    "linear_cross_entropy": LinearCrossEntropyVariant,
    "dropout_add_layer_norm": DropoutNormVariant,
}

# The smallest preset of a family. A card's fused rotary embedding accepts its head size of 64.
TINY_SIZES: Mapping[str, object] = {
    "vocab_size": 8192,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
}


def sizes(hidden: int, intermediate: int, layers: int, heads: int, key_value_heads: int = 0, **other) -> dict:
    """The fields of a preset, from the columns of a published table; ``other`` fields by their own names."""
    fields = {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }
    return fields | ({"num_key_value_heads": key_value_heads} if key_value_heads else {}) | other


@dataclass(frozen=True)
class Experts:
    """The fields of the configuration that describe the mixture of experts of a layer.

    ``number`` of experts, the inner ``size`` of one, and that of the ``shared`` expert of all tokens, if any,
    or the number of ``shared_experts``, as wide as the others. ``first_dense``: the number of first layers
    that have ``intermediate_size`` and no experts.
    ``tensor_parallel``: what it divides, the ``size`` of every expert, their ``number``, or nothing, so that
    every process has all experts; None: it is refused.
    """

    number: str
    size: str = "intermediate_size"
    shared: str | None = None
    shared_experts: str | None = None
    first_dense: str | None = None
    per_token: str = "num_experts_per_tok"
    tensor_parallel: Literal["size", "number", "nothing"] | None = None


@dataclass(frozen=True)
class StockLayout:
    """How a family is stored whose names in the files are not those of its parameters.

    ``embedding``: the parameter, with the prefix ``model.``. ``name(parameter)``: the stored tensor, the
    parameter's number among those side by side in it, and how many there are; no matrix is transposed.
    ``fields(config)``: those of config.json.
    """

    embedding: str
    name: Callable[[str], tuple[str, int, int]]
    fields: Callable[[object], dict[str, object]]


@dataclass(frozen=True)
class Family:
    """``name``: the prefix of its classes (LlamaConfig, LlamaForCausalLM). ``title``: the name in text.

    Classes: ``models``, those that the surgery accepts; one that ends with ``Pipe`` is cut into stages.
    ``layers``: the classes that the surgery changes, {operator: {class: one of VARIANTS[operator]}}.
    ``package``: the library's package of these classes, where other packages have classes of the same names.

    Fields: ``defaults``, of fields that a config.json omits: transformers' defaults where the library has
    others, and those of all fields that the planner reads.
    ``unsupported_fields``: fields of transformers that the library ignores, so they must be empty.
    ``reads``: fields of ``settings.fields`` that its class computes with. ``fixed``: fields of which it
    computes one value only. ``derived``: fields that equal another one.
    ``rope_scalings``: the supported kinds of ``rope_scaling``, and the library's ``rope_scaling_type`` for
    each (None: it reads ``rope_scaling`` itself, or ``rope_parameters`` with ``reads_rope_parameters``).
    ``activations``: the accepted values of ``hidden_act``.
    ``needs_rope_scaling``: the class cannot be built without. ``required_by_transformers``: fields of a
    config.json that transformers requires and the library does not write.

    Weights: ``fused_projections``, {name: names in the Hugging Face layout}: three are query, key and value,
    grouped by key/value head; two are side by side. ``projections_on_request``: the configuration chooses
    between them and separate ones; False: they are always fused. ``projections``: gate, up and down of a
    feed-forward layer or expert. ``gated``: it has three matrices, with one of them for the gate.
    ``attention_bias``: query, key and value have biases; ``biases``: all linear layers and norms have.
    ``learned_positions``: a vector for each position. ``stored_as``: a layout of its own.
    ``logits_in_float32``: under mixed precision the forward returns float32 logits. ``exported_as``: the
    family whose classes export the model. ``sequence_parallel``: its layers can share the tokens of a row.
    ``generates_in_stages``: its first layer takes the embeddings as they are.

    Presets: ``presets``, {name: fields that differ from the library's defaults}, the first one tiny;
    ``aliases``, their names in the library's scripts.
    """

    model_type: str
    name: str
    title: str
    models: tuple[str, ...]
    layers: Mapping[str, Mapping[str, str]]
    defaults: Mapping[str, object]
    presets: Mapping[str, Mapping[str, object]]
    aliases: Mapping[str, str] = field(default_factory=dict)
    package: str = ""
    unsupported_fields: tuple[str, ...] = ()
    activations: tuple[str, ...] = ("silu",)
    reads: tuple[str, ...] = ()
    fixed: Mapping[str, object] = field(default_factory=dict)
    derived: Mapping[str, str] = field(default_factory=dict)
    rope_scalings: Mapping[str, str | None] = field(default_factory=dict)
    reads_rope_parameters: bool = False
    needs_rope_scaling: bool = False
    required_by_transformers: Mapping[str, object] = field(default_factory=dict)
    experts: Experts | None = None
    fused_projections: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    projections_on_request: bool = True
    projections: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    gated: bool = True
    attention_bias: bool = False
    biases: bool = False
    learned_positions: bool = False
    stored_as: StockLayout | None = None
    logits_in_float32: bool = False
    exported_as: str | None = None
    sequence_parallel: bool = True
    generates_in_stages: bool = True

    @property
    def tiny(self) -> str:
        """The smallest preset."""
        return next(iter(self.presets))

    @property
    def pipeline(self) -> bool:
        """Whether there is a class of its model that is cut into stages."""
        return any(name.endswith("Pipe") for name in self.models)

    @property
    def fuses_projections(self) -> bool:
        """Whether it reads ``fuse_attention_qkv`` and ``fuse_attention_ffn``."""
        return bool(self.fused_projections) and self.projections_on_request

    @property
    def has_attention_dropout(self) -> bool:
        """Whether it reads ``attention_dropout``."""
        return "attention_dropout" in self.defaults

    @property
    def has_hidden_dropout(self) -> bool:
        """Whether it reads ``hidden_dropout_prob`` and ``attention_probs_dropout_prob``."""
        return "hidden_dropout_prob" in self.defaults

    @property
    def has_sliding_window(self) -> bool:
        """Whether ``sliding_window`` is in force wherever it is set."""
        return "sliding_window" in self.defaults

    @property
    def expert_fields(self) -> tuple[str, ...]:
        """The fields of ``experts``, which are whole numbers of 1 or more."""
        if self.experts is None:
            return ()
        fields = (self.experts.size, self.experts.shared, self.experts.number, self.experts.per_token)
        return tuple(name for name in fields if name)


@dataclass(frozen=True)
class Conversion:
    """A family whose checkpoints are read as those of another family.

    ``fields(fields of its config.json)`` gives those of the other family. ``arrays(stored, heads, key/value
    heads)`` gives the stored {name: array} under the other family's names and in its layout.
    """

    model_type: str
    fields: Callable[[Mapping[str, object]], dict[str, object]]
    arrays: Callable[[Mapping, int, int], Mapping]
