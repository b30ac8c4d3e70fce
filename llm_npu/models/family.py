"""A model family as one record: classes, fields, weight layout, presets. Importing it imports no framework.

A library of models has a folder ``models/<library>/families`` with a module for each family, which defines
its ``FAMILY``. Configuration, surgery, planner, benchmarks and tests read it from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

# Of the smallest preset of a family; a card's fused rotary embedding takes the head size of 64.
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
    """The fields of the configuration that describe the mixture of experts in every layer.

    ``number`` of experts, the inner ``size`` of one, and that of the ``shared`` expert of all tokens, if any.
    """

    number: str
    size: str = "intermediate_size"
    shared: str | None = None
    per_token: str = "num_experts_per_tok"


@dataclass(frozen=True)
class Family:
    """``name``: the prefix of its classes (LlamaConfig, LlamaForCausalLM). ``title``: the name in text.

    Classes: ``models``, those that the surgery accepts; one that ends with ``Pipe`` is cut into stages.
    ``layers``: the classes that the surgery changes, {operator: {class: way}}; the module of the operator in
    ``surgery/replacements`` lists the ways.

    Fields: ``defaults``, the library's for what a config.json does not state; the planner reads no others.
    ``absent``: fields of transformers that the library does not compute and that must be empty.
    ``rope_scalings``: the kinds of ``rope_scaling`` that it computes, and the library's ``rope_scaling_type``
    for each (None: it reads ``rope_scaling`` itself). ``stated``: fields that transformers needs in a
    config.json and that the library does not write.

    Weights: ``fused_projections``, {name: names in the Hugging Face layout}: three are query, key and value,
    grouped by key/value head; two are side by side. ``projections``: gate, up and down of a feed-forward
    layer or expert. ``attention_bias``: query, key and value have biases. ``logits_in_float32``: the forward
    returns them so under mixed precision. ``exported_as``: the family in whose classes a model is exported.

    Presets: ``presets``, {name: fields that differ from ``defaults``}, the first one tiny; ``aliases``, their
    names in the library's scripts.
    """

    model_type: str
    name: str
    title: str
    models: tuple[str, ...]
    layers: Mapping[str, Mapping[str, str]]
    defaults: Mapping[str, object]
    presets: Mapping[str, Mapping[str, object]]
    aliases: Mapping[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    rope_scalings: Mapping[str, str | None] = field(default_factory=dict)
    stated: Mapping[str, object] = field(default_factory=dict)
    experts: Experts | None = None
    fused_projections: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    projections: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    attention_bias: bool = False
    logits_in_float32: bool = False
    exported_as: str | None = None

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
        return bool(self.fused_projections)

    @property
    def drops_attention(self) -> bool:
        """Whether it reads ``attention_dropout``."""
        return "attention_dropout" in self.defaults

    @property
    def windowed(self) -> bool:
        """Whether ``sliding_window`` is in force wherever it is set."""
        return "sliding_window" in self.defaults

    @property
    def expert_fields(self) -> tuple[str, ...]:
        """The fields of ``experts``, which are whole numbers of 1 or more."""
        if self.experts is None:
            return ()
        found = (self.experts.size, self.experts.shared, self.experts.number, self.experts.per_token)
        return tuple(name for name in found if name)


@dataclass(frozen=True)
class Conversion:
    """A family whose checkpoints are read as those of another family.

    ``fields(fields of its config.json)`` gives those of the other family. ``arrays(stored, heads, key/value
    heads)`` gives the stored {name: array} under the other family's names and in its layout.
    """

    model_type: str
    fields: Callable[[Mapping[str, object]], dict[str, object]]
    arrays: Callable[[Mapping, int, int], Mapping]
