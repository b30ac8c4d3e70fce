"""The sizes of a model that determine time and memory. Importing it imports no framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import SimpleNamespace

from llm_npu.core.cards import read
from llm_npu.core.errors import UserError
from llm_npu.models import presets, upstream_config
from llm_npu.models.checks import PARAMETER_SIZES, check_sizes
from llm_npu.models.families import FAMILIES
from llm_npu.models.family import Family
from llm_npu.models.paddleformers.vision_language import FAMILIES as VISION_LANGUAGE

DATA = Path(__file__).parent / "data"
LATENT_SIZES = ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a causal language model, under the names of its configuration.

    Attributes:
        num_experts: 0 for a dense model.
        intermediate_size: of the feed-forward layers of a dense model, or of one expert of an MoE model.
        shared_expert_intermediate_size: of the shared expert (Qwen2-MoE), or 0.
        dense_layers: how many of the first layers of an MoE model have no experts (DeepSeek-V3), but a
            feed-forward layer of ``dense_intermediate_size``.
        attention_bias: whether the query, key and value projections have biases (Qwen2).
        head_dim: None for ``hidden_size / num_attention_heads``.
        attention_parameters: the elements of a layer's attention weights if the projections are not the
            usual four (DeepSeek-V3).
        planned_only: whether the sizes come from data/models.json and the script has no such preset.
    """

    name: str
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    max_position_embeddings: int
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_dropout: float = 0.0
    sliding_window: int | None = None
    num_experts: int = 0
    experts_per_token: int = 0
    shared_expert_intermediate_size: int = 0
    dense_layers: int = 0
    dense_intermediate_size: int = 0
    head_dim: int | None = None
    attention_parameters: int = 0
    planned_only: bool = False

    def __post_init__(self):
        if not self.head_dim:
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)

    @property
    def query_size(self) -> int:
        """The number of columns of the query projection."""
        return self.num_attention_heads * self.head_dim

    @property
    def num_experts_per_tok(self) -> int:
        """``experts_per_token`` under its name in PaddleNLP's configurations."""
        return self.experts_per_token

    @property
    def key_value_size(self) -> int:
        """The number of columns of the key projection."""
        return self.num_key_value_heads * self.head_dim

    @property
    def dense(self) -> ModelShape:
        """The model as if all its layers were like the first ``dense_layers``."""
        return replace(
            self,
            num_experts=0,
            experts_per_token=0,
            shared_expert_intermediate_size=0,
            dense_layers=0,
            intermediate_size=self.dense_intermediate_size,
        )

    def dense_of(self, layers: Sequence[int], stage: int) -> int:
        """How many of the ``layers[stage]`` layers of a pipeline stage have no experts, in an MoE model."""
        return min(max(self.dense_layers - sum(layers[:stage]), 0), layers[stage])

    @property
    def layer_parameters(self) -> int:
        """The number of weights of one decoder layer; in an MoE model, of a layer with experts."""
        hidden, query_and_key = self.hidden_size, self.query_size + self.key_value_size
        attention = self.attention_parameters or 2 * hidden * query_and_key
        if self.attention_bias:
            attention += query_and_key + self.key_value_size
        family = FAMILIES.get(self.model_type)
        if family and family.biases:  # biases of the other projections and of the norms
            attention += 4 * hidden + self.intermediate_size
        matrices = 2 if family and not family.gated else 3
        experts = self.expert_parameters or matrices * hidden * self.intermediate_size
        shared = self.shared_expert_intermediate_size
        router = hidden * self.num_experts + (3 * hidden * shared + hidden if shared else 0)
        return attention + experts + router + 2 * hidden

    @property
    def expert_parameters(self) -> int:
        """The number of weights of all experts of one decoder layer, without the shared expert."""
        return self.num_experts * 3 * self.hidden_size * self.intermediate_size

    @property
    def fuses_projections(self) -> bool:
        """Whether query, key and value are one matmul, and gate and up another."""
        family = FAMILIES.get(self.model_type)
        return family.fuses_projections if family else True

    @property
    def logits_in_float32(self) -> bool:
        """Whether the forward pass returns float32 logits."""
        family = FAMILIES.get(self.model_type)
        return family.logits_in_float32 if family else True

    @property
    def parameters(self) -> int:
        """The number of weights of the model."""
        matrices = 1 if self.tie_word_embeddings else 2
        ends = matrices * self.vocab_size * self.hidden_size + self.hidden_size
        family = FAMILIES.get(self.model_type)
        if family and family.learned_positions:
            ends += self.max_position_embeddings * self.hidden_size
        if family and family.biases:
            ends += self.hidden_size
        layers = (self.num_hidden_layers - self.dense_layers) * self.layer_parameters
        return ends + layers + self.dense_layers * self.dense.layer_parameters

    def configuration(self, family: Family) -> SimpleNamespace:
        """The sizes under the names of ``family``'s config.json."""
        sizes = {field.name: getattr(self, field.name) for field in fields(self)}
        if experts := family.experts:
            sizes |= {experts.number: self.num_experts, experts.per_token: self.experts_per_token}
            sizes[experts.size] = self.intermediate_size
            if experts.shared_experts:
                count = self.shared_expert_intermediate_size // self.intermediate_size
                sizes[experts.shared_experts] = count
            if self.dense_layers:
                sizes["intermediate_size"] = self.dense_intermediate_size
        return SimpleNamespace(**sizes)

    @classmethod
    def of(cls, name_or_path: str) -> ModelShape:
        """The shape of a preset, of a directory with a config.json, or of a model in data/models.json.

        Names in data/models.json may have a publisher prefix. Raises ValueError like
        ``presets.model_config``, and for a config.json that lacks a size of the weights.
        """
        known = read("models.json", DATA)["models"]
        name = name_or_path.rpartition("/")[2].lower()  # Qwen/Qwen3-8B
        if name in known and not presets.is_preset(name_or_path) and not Path(name_or_path).is_dir():
            return cls(name=name, planned_only=True, **known[name]["sizes"])
        if (kind := upstream_config.model_type(name_or_path)) in VISION_LANGUAGE:
            raise UserError(
                f"{name_or_path} is {VISION_LANGUAGE[kind].title}, a vision-language model, which the "
                "planner does not model; measure its memory in a dry run, as "
                "VIRTUAL_NPU_DRY=1 llm-npu formers examples/ocr/count_memory.py does for PaddleOCR-VL"
            )
        stated = presets.fields_of(name_or_path, known)
        family = FAMILIES[stated["model_type"]]
        if not presets.is_preset(name_or_path):
            _check_stated(stated, family, name_or_path)
        # A file may have fields that the family ignores, for example the experts of another family.
        sizes = {name: stated.get(name, value) for name, value in family.defaults.items()}
        if sizes["num_key_value_heads"] is None:
            sizes["num_key_value_heads"] = sizes["num_attention_heads"]
        check_sizes(family, SimpleNamespace(**sizes), name_or_path)
        window = sizes.get("sliding_window")
        if window is not None and (not isinstance(window, int) or isinstance(window, bool) or window < 0):
            raise UserError(
                f"{name_or_path}: sliding_window is {window!r}, but must be a whole number or null"
            )
        if experts := family.experts:
            sizes["num_experts"] = sizes[experts.number]
            sizes["experts_per_token"] = sizes[experts.per_token]
            if experts.first_dense:
                sizes["dense_layers"] = sizes[experts.first_dense]
                sizes["dense_intermediate_size"] = sizes["intermediate_size"]
            sizes["intermediate_size"] = sizes[experts.size]
            shared = sizes[experts.shared] if experts.shared else 0
            if experts.shared_experts:
                shared = sizes[experts.shared_experts] * sizes[experts.size]
            sizes["shared_expert_intermediate_size"] = shared
        if "kv_lora_rank" in sizes:
            sizes |= latent_attention(SimpleNamespace(**sizes))
        sizes |= {
            "name": name_or_path,
            "model_type": family.model_type,
            "attention_bias": family.attention_bias,
        }
        return cls(**{field.name: sizes[field.name] for field in fields(cls) if field.name in sizes})


def sizes_of_weights(family: Family) -> list[str]:
    """The fields of a config.json that determine the number of weights."""
    experts = family.experts
    names = [*PARAMETER_SIZES, *family.expert_fields]
    if experts:
        names += filter(None, (experts.shared_experts, experts.first_dense))
        if experts.size != "intermediate_size" and not experts.first_dense:  # every layer has experts
            names.remove("intermediate_size")
    if family.defaults["num_key_value_heads"] is None:  # equals num_attention_heads
        names.remove("num_key_value_heads")
    names += [name for name in LATENT_SIZES if name in family.defaults]
    return list(dict.fromkeys(names))


def _check_stated(stated: Mapping[str, object], family: Family, folder: str) -> None:
    """Raises UserError if a config.json leaves a size of the weights to the reader's defaults."""
    if missing := [name for name in sizes_of_weights(family) if name not in stated]:
        raise UserError(
            f"{folder}/config.json has no {', '.join(missing)}, so the size of the model is unknown; "
            "add the missing fields"
        )


def latent_attention(sizes: SimpleNamespace) -> dict[str, int]:
    """The fields of a shape with DeepSeek-V3's attention (arXiv 2412.19437, section 2.1.1).

    ``head_dim`` is the mean of the head sizes of query/key and of value.
    """
    hidden, heads, rank = sizes.hidden_size, sizes.num_attention_heads, sizes.kv_lora_rank
    turned, plain, value = sizes.qk_rope_head_dim, sizes.qk_nope_head_dim, sizes.v_head_dim
    query = heads * (plain + turned)
    low = sizes.q_lora_rank
    weights = hidden * low + low * query if low else hidden * query
    weights += hidden * (rank + turned) + rank * heads * (plain + value) + heads * value * hidden
    return {"attention_parameters": weights, "head_dim": (plain + turned + value) // 2}
