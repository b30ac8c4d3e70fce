"""A model family as one record: classes, fields, weight layout, presets. Importing it imports no framework.

The records of a library are in ``models/<library>/families.py``. Configuration, surgery, planner, benchmarks
and tests read them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

# How a class computes an operator or prepares its inputs; see surgery/replacements/<operator>.py.
AttentionVariant = Literal[
    "attn_func",  # its forward calls self.attn_func
    "function",  # its forward calls scaled_dot_product_attention of its module
    "F",  # with use_flash_attention it calls F.scaled_dot_product_attention
    "decoder",  # makes the mask of all layers
    "causal decoder",  # the same, always causal; its cache has heads before tokens
    "decoder without mask",  # passes None to layers that are causal
    "inputs of all layers",  # makes positions and mask for all layers
    "first stage",  # the same, in the first stage of a pipeline
    "interface",  # its forward looks attention up in ALL_ATTENTION_FUNCTIONS of its module
    "latent",  # its forward calls self.attn_func, with queries wider than values (DeepSeek-V3)
    "makes masks",  # makes the masks of all layers with its module's create_causal_mask_and_row_indices
    "core attention",  # its forward calls self._core_attention, or with use_flash_attention another method
    "learned positions",  # makes the mask and the learned positions of all layers (GPT)
    "vision interface",  # as "interface", between the patches of an image
    "vision documents",  # the same, with the ends of images or windows as cu_seqlens
    "vision encoder",  # makes the mask and the rotary tables of all vision layers
    "patch embedding",  # embeds patches, with learned positions of another image size
    "projector",  # merges blocks of neighboring patches into tokens of the text
    "image tokens",  # a model that puts the features of images at their tokens
    "image features",  # the same, for the inner model of Qwen2.5-VL and Qwen3-VL
    "makes masks, deepstack",  # also adds features of images to the hidden states of its first layers
    "patch products",  # embeds patches by a convolution that covers each of them once
    "windows of patches",  # a vision tower whose layers attend within windows
    "grid of positions",  # a vision tower with learned positions of another image size
]
RotaryVariant = Literal[
    "tokens first",  # attention with tables [1, P, 1, D] and queries [B, S, N, D]
    "heads first",  # attention with tables [P, D] and queries [B, N, S, D]
    "decoder",  # creates default positions 0, 1, 2, ...; passes given positions through
    "table of tokens",  # attention with a row for each token, [B, S, D], and queries [B, N, S, D]
    "interleaved table of tokens",  # the same for pairs (x[2 i], x[2 i + 1])
    "part of a head",  # such pairs in a part of each head, [B, S, N, D], and one key for all heads
    "multimodal",  # as "table of tokens", but its forward calls apply_multimodal_rotary_pos_emb
    "three axes",  # makes tables [3, B, S, D]: time, height and width, each for a section of D
    "vision",  # vision attention with float32 tables [S, D / 2] or [S, D], and queries [.., S, N, D]
]
NormVariant = Literal[
    "forward",  # its forward is the operator
    "first of a tuple",  # the same, on a stage's inputs: a tensor, or a tuple that begins with it
    "one more",  # multiplies by 1 + weight (Gemma)
]
ResidualVariant = Literal[
    "forward",  # its forward adds the residual twice and returns the second sum
    "forward, then more",  # the same, but further computes its result from the second sum
    "attn and post_process",  # these methods add the residual; the second sum is the result
]
SwigluVariant = Literal[
    "function",  # its forward calls swiglu of its module
    "act_fn",  # its forward calls self.act_fn, which is swiglu if fuse_swiglu
    "forward",  # its forward multiplies self.act_fn of one projection by another
]
GegluVariant = Literal["forward"]  # its forward multiplies F.gelu of one projection by another
DropoutNormVariant = Literal[
    "embeddings",  # dropout of the layers' input
    "layer",  # dropout, addition and LayerNorm between its attention and its feed-forward layer
    "layers",  # calls the layers, and the LayerNorm after the last
    "norm",  # LayerNorm
]
MoeVariant = Literal[
    "router",  # gate is a linear layer, and the K probabilities sum to 1 (Mixtral)
    "softmax router",  # gate is a linear layer in float32 (Qwen3-MoE)
    "sigmoid router",  # gate returns indices and weights; moe(tokens, indices, weights) runs the experts
    "router with statistics",  # gate returns logits, the block their loss; shared experts (ERNIE-4.5-MoE)
    "gate and shared expert",  # gate is PaddleNLP's, with an auxiliary loss; has a shared expert
]
LinearCrossEntropyVariant = Literal[
    "parallel_matmul",  # a head whose forward calls parallel_matmul of its module
    "general head",  # a head whose forward calls calc_lm_head_logits of its module
    "first of a tuple",  # the same, on a stage's inputs
    "criterion",  # the mean of loss_func(logits, labels)
    "general criterion",  # the same, for several training stages
    "with labels",  # a model that calls head and criterion if it gets labels
    "stages",  # a model in pipeline stages; the last stage has the head
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
    """The fields of a preset from the columns of a published table; ``other``: further fields by name."""
    fields = {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }
    return fields | ({"num_key_value_heads": key_value_heads} if key_value_heads else {}) | other


@dataclass(frozen=True)
class Experts:
    """Names of the configuration's fields for the experts of an MoE layer.

    Attributes:
        number: Number of experts.
        size: Inner size of an expert.
        shared: Inner size of the shared expert that gets all tokens, if any.
        shared_experts: Number of shared experts, as wide as the others.
        first_dense: Number of leading layers with ``intermediate_size`` and without experts.
        tensor_parallel: What tensor parallelism divides: the ``size`` of every expert, their ``number``, or
            nothing, so that every process has all experts. None: tensor parallelism is rejected.
    """

    number: str
    size: str = "intermediate_size"
    shared: str | None = None
    shared_experts: str | None = None
    first_dense: str | None = None
    per_token: str = "num_experts_per_tok"
    tensor_parallel: Literal["size", "number", "nothing"] | None = None


@dataclass(frozen=True)
class UpstreamLayout:
    """The storage layout of a family whose parameters have different names in files.

    Attributes:
        embedding: The embedding parameter, with the prefix ``model.``. name: ``name(parameter)`` returns the
        stored tensor, and the index and number of the parameters that it concatenates. No matrix is
        transposed. fields: ``fields(config)`` returns the fields of config.json.
    """

    embedding: str
    name: Callable[[str], tuple[str, int, int]]
    fields: Callable[[object], dict[str, object]]


@dataclass(frozen=True)
class FusableFamily:
    """The classes of a model family that surgery knows.

    Attributes:
        model_type: The library's name of the family, and of the package ``transformers.<model_type>`` with
            its own classes.
        title: The name in text.
        models: Model classes that surgery accepts; a class that ends with ``Pipe`` is split into pipeline
            stages.
        layers: Classes that surgery changes, {operator: {class: one of VARIANTS[operator]}}.
        parts: Classes of the parts that a profile distinguishes, {class: part}.
    """

    model_type: str
    title: str
    models: tuple[str, ...]
    layers: Mapping[str, Mapping[str, str]]
    parts: Mapping[str, str] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True)
class Family(FusableFamily):
    """A family that this project trains. ``Attributes`` are grouped into names, fields, weights and presets.

    Attributes:
        name: The prefix of its classes (LlamaConfig, LlamaForCausalLM).

        defaults: Defaults of fields that a config.json omits: transformers' defaults where the library
            differs, and all fields that the planner reads.
        unsupported_fields: Fields of transformers that the library ignores, so they must be empty.
        reads: Fields of ``settings.fields`` that the class uses.
        fixed: Fields for which the class supports a single value.
        derived: Fields that equal another field.
        rope_scalings: Supported kinds of ``rope_scaling``, with the library's ``rope_scaling_type`` for each
            (None: the library reads ``rope_scaling`` itself, or ``rope_parameters`` with
            ``reads_rope_parameters``).
        activations: Accepted values of ``hidden_act``.
        needs_rope_scaling: Whether the class requires a ``rope_scaling``.
        required_by_transformers: Fields of config.json that transformers requires and the library omits.

        fused_projections: {name: names in the Hugging Face layout}. Three names are query, key and value,
        grouped by key/value head; two are concatenated. projections_on_request: Whether the configuration
        chooses between fused and separate projections;
            False: they are always fused.
        projections: Gate, up and down projection of a feed-forward layer or expert.
        gated: Whether a feed-forward layer has three matrices, one of them for the gate.
        attention_bias: Whether query, key and value have biases.
        biases: Whether all linear layers and norms have biases.
        learned_positions: Whether there is a learned vector for each position.
        stored_as: The storage layout, if it differs from the parameters'.
        logits_in_float32: Whether the forward returns float32 logits under mixed precision.
        exported_as: The family whose classes export the model.
        sequence_parallel: Whether its layers support sequence parallelism.
        splits_sequences: Whether its sequences can be split over ranks (``--sep_parallel_degree``).
        distributes_experts: Whether its experts can be distributed over ranks (``--expert_parallel_degree``).
        generates_in_stages: Whether generation supports pipeline stages: the first layer takes embeddings
            unchanged.

        presets: {name: fields that differ from the library's defaults}; the first preset is tiny.
        aliases: Names of the presets in the library's scripts.
    """

    name: str
    defaults: Mapping[str, object]
    presets: Mapping[str, Mapping[str, object]]
    aliases: Mapping[str, str] = field(default_factory=dict)
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
    stored_as: UpstreamLayout | None = None
    logits_in_float32: bool = False
    exported_as: str | None = None
    sequence_parallel: bool = True
    splits_sequences: bool = False
    distributes_experts: bool = False
    generates_in_stages: bool = True

    @property
    def tiny(self) -> str:
        """The smallest preset."""
        return next(iter(self.presets))

    @property
    def pipeline(self) -> bool:
        """Whether the family has a pipeline-parallel model class."""
        return any(name.endswith("Pipe") for name in self.models)

    @property
    def fuses_projections(self) -> bool:
        """Whether the model reads ``fuse_attention_qkv`` and ``fuse_attention_ffn``."""
        return bool(self.fused_projections) and self.projections_on_request

    @property
    def has_attention_dropout(self) -> bool:
        """Whether the model reads ``attention_dropout``."""
        return "attention_dropout" in self.defaults

    @property
    def has_hidden_dropout(self) -> bool:
        """Whether the model reads ``hidden_dropout_prob`` and ``attention_probs_dropout_prob``."""
        return "hidden_dropout_prob" in self.defaults

    @property
    def has_sliding_window(self) -> bool:
        """Whether ``sliding_window`` takes effect whenever it is set."""
        return "sliding_window" in self.defaults

    @property
    def expert_fields(self) -> tuple[str, ...]:
        """The fields named in ``experts``, which must be whole numbers of at least 1."""
        if self.experts is None:
            return ()
        fields = (self.experts.size, self.experts.shared, self.experts.number, self.experts.per_token)
        return tuple(name for name in fields if name)


@dataclass(frozen=True)
class Conversion:
    """A family whose checkpoints are converted to another family.

    Attributes:
        fields: ``fields(fields of its config.json)`` returns the fields of the other family.
        arrays: ``arrays(stored, heads, key/value heads)`` returns the stored {name: array} with the names and
            layout of the other family.
    """

    model_type: str
    fields: Callable[[Mapping[str, object]], dict[str, object]]
    arrays: Callable[[Mapping, int, int], Mapping]
