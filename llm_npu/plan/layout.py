"""The layout of a run over cards, under the names of the script's arguments. Imports no framework."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import ClassVar

from llm_npu.config import DataArguments, ModelArguments, check_model, schedules
from llm_npu.config import flags as script_flags
from llm_npu.config.flag import written
from llm_npu.config.library_flags import library_flags
from llm_npu.config.parallel_checks import SPLIT_SEQUENCES, check_expert_parallel, check_split_sequences
from llm_npu.core.errors import UserError
from llm_npu.models import logits
from llm_npu.models.families import FAMILIES
from llm_npu.models.family import Family

from .shape import ModelShape

SHARDING = ("", "stage1", "stage2", "stage3")
# Recompute granularities. With PaddleFormers the script has no flag for them and recomputes whole layers.
_GRANULARITY = library_flags().get("recompute_granularity")
GRANULARITIES = _GRANULARITY.choices if _GRANULARITY else ("full",)
SCHEDULES = ("", *script_flags()["pipeline_schedule"].choices)
DEFAULTS = {name: flag.default for name, flag in script_flags().items()}
OFFLOADS = ("", "device", "host")
OVERLAPS = ("serial", "pipelined", "mc2")
MASKS = ("causal", "documents")
# Their product is a replica.
DEGREES = ("tensor_parallel_degree", "pipeline_parallel_degree", *SPLIT_SEQUENCES)
# Fields that the script has under the same name and with the same meaning.
PASSED_ON = (
    *(*DEGREES, "expert_parallel_degree", "pipeline_schedule", "virtual_pp_degree"),
    *("sequence_parallel", "sharding", "recompute", "fp16", "offload_optimizer"),
)
# Larger numbers are treated as typing errors: 8 times the cards of the largest published training run
# (Llama 3 405B on 16,384 cards, arXiv 2407.21783), and 1000 times its samples per step.
MOST = {"cards": 1 << 17, "per_device_train_batch_size": 1 << 21, "global_batch_size": 1 << 21}
COUNTS = (*MOST, *DEGREES, "expert_parallel_degree", "virtual_pp_degree", "max_seq_length")


@dataclass(frozen=True)
class Layout:
    """A run with all fused operators on tensor x pipeline x sequence x data-parallel ``cards``.

    Invalid values raise ValueError.

    Attributes:
        sep_parallel_degree, context_parallel_degree: the degrees of Ulysses and of the ring; their product is
        the number of cards that share a sequence. expert_parallel_degree: the cards with different samples
        that share the experts of every MoE layer. pipeline_schedule: the order of micro batches, or "" for
        1F1B or, with chunks, interleaved. sharding: the stage of sharding over all data-parallel replicas, or
        "" for none. per_device_train_batch_size: samples per micro batch. global_batch_size: samples per
        optimizer step on all cards; 0 for one micro batch per replica. overlap: how tensor-parallel layers
        overlap communication with compute. offload_optimizer: where an optimizer with states in host memory
        updates; "" for states on the card. offload_activations: whether the inputs of all recomputed layers
        are in host memory. mask: the attention mask: "causal", or "documents" for the documents of packed
        samples. fp16: whether it trains in float16 instead of bfloat16.
    """

    CHOICES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "sharding": SHARDING,
        "pipeline_schedule": SCHEDULES,
        "recompute_granularity": GRANULARITIES,
        "overlap": OVERLAPS,
        "offload_optimizer": OFFLOADS,
        "mask": MASKS,
    }

    cards: int
    tensor_parallel_degree: int = 1
    pipeline_parallel_degree: int = 1
    sep_parallel_degree: int = 1
    context_parallel_degree: int = 1
    expert_parallel_degree: int = 1
    pipeline_schedule: str = ""
    virtual_pp_degree: int = 1
    sharding: str = ""
    sequence_parallel: bool = False
    recompute: bool = False
    recompute_granularity: str = "full"
    max_seq_length: int = 4096
    per_device_train_batch_size: int = 1
    global_batch_size: int = 0
    overlap: str = "serial"
    offload_optimizer: str = ""
    offload_activations: bool = False
    mask: str = "causal"
    fp16: bool = False

    def __post_init__(self):
        degree = self.replica
        for name, most in MOST.items():
            if isinstance(value := getattr(self, name), int) and value > most:
                raise UserError(f"--{name} is {value}, but the planner accepts at most {most}; reduce it")
        if not self.global_batch_size and degree > 0:
            rows = max(self.cards // degree, 1) * self.per_device_train_batch_size
            object.__setattr__(self, "global_batch_size", rows)
        for name in COUNTS:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UserError(f"--{name} is {value!r}, but must be a whole number of 1 or more")
        for name, choices in self.CHOICES.items():
            if getattr(self, name) not in choices:
                accepted = ", ".join(filter(None, choices))
                raise UserError(f"--{name} is {getattr(self, name)!r}, but must be one of {accepted}")
        if self.cards % degree:
            flags = [f"--{name} {value}" for name in DEGREES if (value := getattr(self, name)) > 1]
            raise UserError(
                f"{' times '.join(flags)} is {degree}, which does not divide --cards {self.cards}; choose "
                "degrees whose product does"
            )
        rows = self.data_parallel_degree * self.per_device_train_batch_size
        if self.global_batch_size % rows:
            samples = self.per_device_train_batch_size
            rows_each = f" with --per_device_train_batch_size {samples}" if samples > 1 else ""
            raise UserError(
                f"--global_batch_size is {self.global_batch_size}, but {self.data_parallel_degree} "
                f"data-parallel replicas{rows_each} take {rows} at a time; choose a multiple of {rows}"
            )
        for name, refused in {"pipeline": ("stage2", "stage3"), "tensor": ("stage3",)}.items():
            if getattr(self, degree := f"{name}_parallel_degree") > 1 and self.sharding in refused:
                raise UserError(
                    f"--sharding {self.sharding} cannot be combined with --{degree}; use stage1, or omit one "
                    "of the two"
                )
        if self.sequence_parallel and self.tensor_parallel_degree == 1:
            raise UserError("--sequence_parallel needs tensor-parallel layers; set --tensor_parallel_degree")
        name = "offload_optimizer" if self.offload_optimizer else "offload_activations"
        if (self.offload_optimizer or self.offload_activations) and self.sharding in ("stage2", "stage3"):
            raise UserError(f"--{name} does not support --sharding {self.sharding}; use stage1")
        if self.offload_activations and not (self.recompute and self.recompute_granularity == "full"):
            raise UserError("--offload_activations keeps the inputs of recomputed layers; set --recompute")
        stages, micro_batches = self.pipeline_parallel_degree, self.micro_batches
        if self.virtual_pp_degree > 1 and stages == 1:
            raise UserError("--virtual_pp_degree needs a pipeline; set --pipeline_parallel_degree 3 or more")
        # Of interleaved pipelines, the planner models only those with complete groups of micro batches.
        if self.chunks > 1 and not self.in_v and (micro_batches % stages or micro_batches < 2 * stages):
            raise UserError(
                f"--virtual_pp_degree needs micro batches in groups of {stages}, the number of stages, and "
                f"at least two groups; a step has {micro_batches}; choose another --global_batch_size, or "
                "omit --virtual_pp_degree"
            )

    @property
    def replica(self) -> int:
        """The cards of one replica of the model."""
        return self.tensor_parallel_degree * self.pipeline_parallel_degree * self.sequence_degree

    @property
    def sequence_degree(self) -> int:
        """The cards that share the tokens of a sequence, without sequence parallelism."""
        return self.sep_parallel_degree * self.context_parallel_degree

    @property
    def in_v(self) -> bool:
        """Whether the schedule is DualPipeV: two chunks per stage, and the first stage computes the loss."""
        return self.pipeline_schedule == schedules.DUALPIPEV and self.pipeline_parallel_degree > 1

    @property
    def chunks(self) -> int:
        """The chunks of layers of a pipeline stage."""
        return schedules.CHUNKS if self.in_v else self.virtual_pp_degree

    @property
    def loss_stage(self) -> int:
        """The stage with the last chunk."""
        return 0 if self.in_v else self.pipeline_parallel_degree - 1

    @property
    def data_parallel_degree(self) -> int:
        return self.cards // self.replica

    @property
    def replicas(self) -> int:
        """The number of cards with the same weights, which synchronize their gradients."""
        return self.data_parallel_degree * self.sequence_degree

    @property
    def micro_batches(self) -> int:
        """Micro batches of one replica per optimizer step: ``--gradient_accumulation_steps``."""
        return self.global_batch_size // (self.data_parallel_degree * self.per_device_train_batch_size)

    @property
    def tokens_per_rank(self) -> int:
        """Tokens of a micro batch on one card, before sequence parallelism."""
        return self.per_device_train_batch_size * self.max_seq_length // self.sequence_degree

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch_size * self.max_seq_length

    @property
    def sharding_degree(self) -> int:
        """The number of cards that share sharded states."""
        return self.data_parallel_degree if self.sharding else 1

    @property
    def of_layers(self) -> Layout:
        """The layout reduced to what affects decoder layers; a cache key that many layouts share."""
        return replace(
            self,
            cards=self.tensor_parallel_degree * self.sequence_degree,
            pipeline_parallel_degree=1,
            pipeline_schedule="",
            virtual_pp_degree=1,
            sharding="",
            global_batch_size=0,
        )

    def has_logits(self, shape: ModelShape) -> bool:
        """Whether the loss reads whole logits; the trainer computes large logits in chunks."""
        return not logits.are_large(self.tokens_per_rank, shape.vocab_size // self.tensor_parallel_degree)

    def stage_layers(self, shape: ModelShape) -> tuple[int, ...]:
        """The number of decoder layers of every pipeline stage.

        Stages are equal if their number divides the number of layers. Otherwise PaddleNLP distributes
        embedding, layers, last norm and head evenly, and the later stages get the remainder.
        """
        layers, stages = shape.num_hidden_layers, self.pipeline_parallel_degree
        if layers % stages == 0:
            return (layers // stages,) * stages
        items, left = divmod(layers + 3, stages)
        sizes = [items + (stage >= stages - left) for stage in range(stages)]
        sizes[0] -= 1
        sizes[-1] -= 2
        return tuple(sizes)

    def recompute_layers(self, shape: ModelShape, stage: int) -> int:
        """The number of layers of ``stage`` that are recomputed."""
        return self.stage_layers(shape)[stage] if self.recompute else 0

    def check(self, shape: ModelShape, family: Family | None = None) -> None:
        """Raises ValueError if the planner does not model ``shape``, or the trainer lacks this layout for it.

        Args:
            family: the model's family; by default the installed library's record.
        """
        family = family or FAMILIES[shape.model_type]
        if not family.gated:
            raise UserError(
                f"{shape.name} is a {family.title}, which the planner does not model; accepted: models with "
                "gated feed-forward layers, such as a Llama"
            )
        stages = self.pipeline_parallel_degree
        if stages > 1 and self.mask == "documents":
            raise UserError(
                f"--mask documents cannot be combined with --pipeline_parallel_degree {stages}: a pipeline "
                "passes no masks from stage to stage; omit one of the two"
            )
        flags = DEFAULTS | vars(self)
        flags |= {"overlap": self.overlap != "serial", "processes": self.cards}
        flags["gradient_accumulation_steps"] = self.micro_batches
        # As in the script, with the ranks of the ring; the constructor has checked offload and sharding.
        checked = dict.fromkeys(("offload_activations", "no_recompute_layers"))
        checked |= {"sep_parallel_degree": self.sequence_degree, "sharding": []}
        data = DataArguments(
            max_seq_length=self.max_seq_length, reset_attention_mask=self.mask == "documents"
        )
        run = SimpleNamespace(
            training=SimpleNamespace(**flags | checked),
            data=data,
            model=ModelArguments(model_name_or_path=shape.name),
            ring=self.context_parallel_degree,
            expert_ranks=self.expert_parallel_degree,
        )
        degrees = {name: degree for name in DEGREES if (degree := getattr(self, name)) > 1}
        if self.sequence_degree > 1:
            check_split_sequences(Namespace(**flags), degrees)
        if self.expert_parallel_degree > 1:
            check_expert_parallel(Namespace(**flags), degrees)
        schedules.check(Namespace(**flags), stages)
        check_model(run, shape.configuration(family), family)
        if min(self.stage_layers(shape)) < 1:
            raise UserError(
                f"--pipeline_parallel_degree is {self.pipeline_parallel_degree}, but the "
                f"{shape.num_hidden_layers} layers of {shape.name} leave a stage without a layer; choose a "
                f"degree that divides {shape.num_hidden_layers}"
            )

    def arguments(self, shape: ModelShape) -> list[str]:
        """The command-line arguments of ``scripts/run_llama_npu.py`` for this run of ``shape``."""
        flags = {
            "model_name_or_path": shape.name,
            "max_seq_length": self.max_seq_length,
            "per_device_train_batch_size": self.per_device_train_batch_size,
            "gradient_accumulation_steps": self.micro_batches,
        }
        for name in PASSED_ON:
            if (value := getattr(self, name)) != getattr(Layout, name):
                flags[name] = written(value)
        if self.recompute and len(GRANULARITIES) > 1:
            flags["recompute_granularity"] = self.recompute_granularity
        if self.offload_activations:
            flags["offload_activations"] = "all"
        if self.mask == "documents":
            flags["reset_attention_mask"] = "true"
        if self.overlap != "serial" and self.tensor_parallel_degree > 1:
            flags["overlap"] = "pipelined:4" if self.overlap == "pipelined" else self.overlap
        return [text for name, value in flags.items() for text in (f"--{name}", str(value))]
