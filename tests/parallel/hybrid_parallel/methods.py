"""The ways to share a run that are tested, and what each must equal.

Every run has the same 8 samples in a step: as many in a micro batch as are left when the ranks with samples
of their own have theirs, of 2 micro batches or more.
"""

from __future__ import annotations

from dataclasses import dataclass

import run_inputs
from methods_table import Case

STEPS, SAMPLES, MICRO_BATCHES = 3, 8, 2
# Models other than a Llama, by how their configurations differ from its.
MODELS = {"tied embedding": {"tie_word_embeddings": True}, **run_inputs.OTHERS}
ADAPTED = "LoRA"  # a model with weights, of which an adapter is trained
# The same, of runs with split sequences.
SPLIT_MODELS = {
    "Qwen2": {"model_type": "qwen2", "num_key_value_heads": 4},
    "Mistral": {"model_type": "mistral"},
    ADAPTED: {},
}
# The same, of runs with experts.
EXPERT_MODELS = {
    "Mixtral": {
        "model_type": "mixtral",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 2,
    },
    "Qwen2-MoE": {
        "model_type": "qwen2_moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 64,
        "num_hidden_layers": 2,
    },
}
ROUTER_LOSS = {"output_router_logits": True, "router_aux_loss_coef": 0.5}
EXPERT_MODELS |= {f"{name} with router loss": fields | ROUTER_LOSS for name, fields in EXPERT_MODELS.items()}
CONVERSATIONS = "conversations"  # data of short documents instead of text


@dataclass(frozen=True)
class Method:
    """``flags`` of scripts/run_llama_npu.py; ``data_ranks`` of ``ranks`` processes have samples of their own.

    One that is not ``first`` runs after the others of as many processes, in processes of its own, and so do
    those of a kind that are ``split`` or have one of EXPERT_MODELS. ``model``: one of MODELS, SPLIT_MODELS
    and EXPERT_MODELS, by default a Llama. ``data``: text by default; CONVERSATIONS are packed.
    ``otherwise``: the seed of other roundings.
    """

    name: str
    ranks: int
    data_ranks: int
    flags: str
    bf16: bool = False
    first: bool = True
    model: str = ""
    micro_batches: int = MICRO_BATCHES
    otherwise: int | None = None
    split: bool = False
    data: str = ""

    @property
    def which(self) -> str:
        """The runs of one start of the program."""
        if self.model in EXPERT_MODELS:
            return f"experts{self.kind}"
        return f"split{self.kind}" if self.split else "first" if self.first else "others"

    @property
    def alone(self) -> str:
        """The runs of one process that it is compared with."""
        if self.split or self.model in EXPERT_MODELS:
            return self.which
        return "others" if self.model else "first"

    @property
    def has_groups(self) -> bool:
        """Whether fleet makes its groups. Plain data parallelism has none, also with expert parallelism."""
        return any(part in self.flags for part in ("sharding", "tensor", "pipeline", "sep_", "context"))

    @property
    def kind(self) -> str:
        """Of runs that are compared with each other."""
        return f"{self._suffix}{', bf16' * self.bf16}"

    @property
    def _suffix(self) -> str:
        return "".join(f", {part}" for part in (self.model, self.data) if part)

    @property
    def key(self) -> str:
        return f"{self.name}{self.kind}"

    @property
    def deep(self) -> bool:
        """Whether it takes a model of 8 layers."""
        return FOUR_STAGES in self.flags

    @property
    def case(self) -> Case:
        arguments = f"--nproc {self.ranks} {self.flags}".strip()
        arguments += " --stage sft --packing first_fit" * bool(self.data)
        arguments += " --finetuning_type lora" * (self.model == ADAPTED)
        if self.micro_batches != MICRO_BATCHES:
            arguments += f" --gradient_accumulation_steps {self.micro_batches}"
        name = f"{self.name}{self._suffix}"
        precision = "bfloat16" if self.bf16 else "float32"
        return Case(name, self.ranks, arguments, "dygraph", precision, on_a_card=self.bf16)

    def argv(self) -> list[str]:
        rows = SAMPLES // self.data_ranks // self.micro_batches
        batch = ["--per_device_train_batch_size", str(rows), "--per_device_eval_batch_size", "2"]
        batch += ["--gradient_accumulation_steps", str(self.micro_batches)]
        if self.data:
            batch += ["--stage", "sft", "--packing", "first_fit"]
        if self.model == ADAPTED:
            batch += ["--finetuning_type", "lora"]
        return [*self.flags.split(), *batch, "--max_steps", str(STEPS), "--bf16", str(self.bf16).lower()]


TENSOR, SEQUENCE = "--tensor_parallel_degree 2", "--tensor_parallel_degree 2 --sequence_parallel true"
STAGES = "--pipeline_parallel_degree 2"
LOSS = "--use_fused_linear_cross_entropy true"
FOUR_STAGES = "--pipeline_parallel_degree 4"
PARTS = f"{FOUR_STAGES} --virtual_pp_degree 2"  # takes 8 layers
DUALPIPEV = "--pipeline_schedule dualpipev"
V = f"{STAGES} {DUALPIPEV}"

UNFUSED = {  # name: the seed of other roundings
    "one process, not fused": None,
    "one process, rounded otherwise": 0,
    "one process, rounded otherwise again": 1,
}
SPLIT, RING = "--sep_parallel_degree 2", "--context_parallel_degree 2"
OF_SPLIT = {"split": True}
ALONE = [
    method
    for kind in (
        {},
        {"bf16": True},
        *({"first": False, "model": model} for model in MODELS),
        OF_SPLIT,
        OF_SPLIT | {"bf16": True},
        OF_SPLIT | {"data": CONVERSATIONS},
        OF_SPLIT | {"data": CONVERSATIONS, "bf16": True},
        OF_SPLIT | {"model": ADAPTED},
        *(OF_SPLIT | {"model": model} for model in ("Qwen2", "Mistral", "Gemma", "GPT")),
        *({"model": model} for model in EXPERT_MODELS),
        *({"model": model, "bf16": True} for model in ("Mixtral", "Qwen2-MoE")),
        {"model": "Mixtral", "bf16": True, "data": CONVERSATIONS},
    )
    for method in (
        Method("one process", 1, 1, "", **kind),
        *(
            Method(name, 1, 1, "--disable_fused_options true", **kind, otherwise=seed)
            for name, seed in UNFUSED.items()
        ),
    )
]
TWO = [
    Method("data parallel", 2, 2, ""),
    Method("data parallel", 2, 2, "", bf16=True, first=False),
    Method("sharding stage 1", 2, 2, "--sharding stage1"),
    Method("sharding stage 2", 2, 2, "--sharding stage2", first=False),
    Method("sharding stage 3", 2, 2, "--sharding stage3"),
    Method("tensor parallel", 2, 1, TENSOR),
    Method("tensor parallel with sequence parallel", 2, 1, SEQUENCE),
    Method("pipeline of 2 stages", 2, 1, STAGES),
    Method("sharding stage 1", 2, 2, "--sharding stage1", bf16=True, first=False),
    Method("tensor parallel with sequence parallel", 2, 1, SEQUENCE, bf16=True),
    Method("pipeline of 2 stages", 2, 1, STAGES, bf16=True, first=False),
    Method("pipeline of 2 stages", 2, 1, STAGES, first=False, model="tied embedding"),
    Method(
        "tensor parallel with sequence parallel, no logits",
        2,
        1,
        f"{SEQUENCE} {LOSS}",
        bf16=True,
        first=False,
    ),
    Method("pipeline of 2 stages, no logits", 2, 1, f"{STAGES} {LOSS}", first=False, model="tied embedding"),
    Method("tensor parallel", 2, 1, TENSOR, first=False, model="GPT"),
    Method("tensor parallel with sequence parallel", 2, 1, SEQUENCE, first=False, model="GPT"),
    Method("sharding stage 1", 2, 2, "--sharding stage1", first=False, model="GPT"),
    Method("tensor parallel", 2, 1, TENSOR, first=False, model="Gemma"),
    Method("sharding stage 1", 2, 2, "--sharding stage1", first=False, model="Gemma"),
]
OF_V = {"first": False, "micro_batches": 4}
TWO += [
    Method("DualPipeV of 2 stages", 2, 1, V, **OF_V),
    Method("DualPipeV of 2 stages", 2, 1, V, **OF_V, bf16=True),
    Method("DualPipeV of 2 stages, recompute", 2, 1, f"{V} --recompute true", **OF_V),
    Method("DualPipeV of 2 stages", 2, 1, V, **OF_V, model="tied embedding"),
    Method("DualPipeV of 2 stages, no logits", 2, 1, f"{V} {LOSS}", **OF_V, model="tied embedding"),
]
TWO += [
    Method("Ulysses", 2, 1, SPLIT, **OF_SPLIT),
    Method("Ulysses", 2, 1, SPLIT, **OF_SPLIT, bf16=True),
    Method("Ulysses, recompute", 2, 1, f"{SPLIT} --recompute true", **OF_SPLIT, bf16=True),
    Method("Ulysses, no logits", 2, 1, f"{SPLIT} {LOSS}", **OF_SPLIT),
    Method("Ulysses", 2, 1, SPLIT, **OF_SPLIT, data=CONVERSATIONS),
    Method("Ulysses", 2, 1, SPLIT, **OF_SPLIT, data=CONVERSATIONS, bf16=True),
    Method("Ulysses, joined rows", 2, 1, f"{SPLIT} --padding none", **OF_SPLIT, data=CONVERSATIONS),
    Method("Ulysses", 2, 1, SPLIT, **OF_SPLIT, model=ADAPTED),
    *(
        Method("Ulysses", 2, 1, SPLIT, **OF_SPLIT, model=model)
        for model in ("Qwen2", "Mistral", "Gemma", "GPT")
    ),
    Method("ring", 2, 1, RING, **OF_SPLIT),
    Method("ring", 2, 1, RING, **OF_SPLIT, bf16=True),
    Method("ring, recompute", 2, 1, f"{RING} --recompute true", **OF_SPLIT, bf16=True),
    Method("ring", 2, 1, RING, **OF_SPLIT, data=CONVERSATIONS),
    Method("ring", 2, 1, RING, **OF_SPLIT, data=CONVERSATIONS, bf16=True),
    Method("ring", 2, 1, RING, **OF_SPLIT, model=ADAPTED),
    Method("ring", 2, 1, RING, **OF_SPLIT, model="Qwen2"),
]
EXPERTS, SHARDED = "--expert_parallel_degree", "--sharding stage1"
TWO += [
    Method(f"expert parallel 2{name}", 2, 2, f"{EXPERTS} 2{flags}", model=model, bf16=bf16)
    for name, flags in (("", ""), (" with sharding stage 1", f" {SHARDED}"))
    for model in ("Mixtral", "Qwen2-MoE")
    for bf16 in (False, True)
]
TWO += [
    *(
        Method(f"{name}, expert parallel 2", 2, 1, f"{flags} {EXPERTS} 2", model=model, bf16=bf16, data=data)
        for name, flags, model, bf16, data in (
            ("Ulysses", SPLIT, "Mixtral with router loss", False, ""),
            ("ring", RING, "Qwen2-MoE with router loss", False, ""),
            ("Ulysses", SPLIT, "Qwen2-MoE", True, ""),
            ("ring", RING, "Mixtral", True, ""),
            ("Ulysses", SPLIT, "Mixtral", True, CONVERSATIONS),
            ("tensor 2 with sequence parallel", SEQUENCE, "Mixtral with router loss", False, ""),
            ("tensor 2 with sequence parallel", SEQUENCE, "Qwen2-MoE with router loss", False, ""),
            ("tensor 2 with sequence parallel", SEQUENCE, "Mixtral", True, ""),
            ("tensor 2 with sequence parallel", SEQUENCE, "Qwen2-MoE", True, ""),
        )
    ),
    Method("Ulysses", 2, 1, SPLIT, model="Qwen2-MoE with router loss"),
    Method("pipeline of 2 stages", 2, 1, STAGES, model="Qwen2-MoE"),
    Method("pipeline of 2 stages", 2, 1, STAGES, model="Qwen2-MoE", bf16=True),
]
FOUR = [
    Method("tensor 2 x data 2", 4, 2, TENSOR),
    Method("tensor 2 with sequence parallel x sharding stage 1 of 2", 4, 2, f"{SEQUENCE} --sharding stage1"),
    Method("tensor 2 x sharding stage 2 of 2", 4, 2, f"{TENSOR} --sharding stage2"),
    Method("tensor 2 x pipeline 2", 4, 1, f"{TENSOR} {STAGES}"),
    Method("tensor 2 x pipeline 2", 4, 1, f"{TENSOR} {STAGES}", model="tied embedding"),
    Method("pipeline 2 x sharding stage 1 of 2", 4, 2, f"{STAGES} --sharding stage1"),
    Method("pipeline 2 x data 2", 4, 2, STAGES),
    Method("sharding stage 1 of 2 x data 2", 4, 4, "--sharding stage1 --sharding_parallel_degree 2"),
    Method(
        "tensor 2 with sequence parallel x sharding stage 1 of 2",
        4,
        2,
        f"{SEQUENCE} --sharding stage1",
        bf16=True,
    ),
    Method("pipeline of 4 stages of 2 parts", 4, 1, PARTS, first=False, micro_batches=8),
    Method("pipeline of 4 stages of 2 parts", 4, 1, PARTS, bf16=True, first=False, micro_batches=8),
    Method("pipeline of 4 stages of 2 parts, all forward first", 4, 1, PARTS, first=False, micro_batches=4),
]
FOUR += [
    Method("DualPipeV of 4 stages", 4, 1, f"{FOUR_STAGES} {DUALPIPEV}", first=False, micro_batches=8),
    Method(
        *("DualPipeV of 4 stages", 4, 1, f"{FOUR_STAGES} {DUALPIPEV}"),
        bf16=True,
        first=False,
        micro_batches=8,
    ),
    Method("DualPipeV 2 x data 2", 4, 2, V, micro_batches=4),
    Method("DualPipeV 2 x sharding stage 1 of 2", 4, 2, f"{V} --sharding stage1", bf16=True, micro_batches=4),
    Method("tensor 2 x DualPipeV 2", 4, 1, f"{TENSOR} {V}", micro_batches=4),
    Method(
        "tensor 2 with sequence parallel x DualPipeV 2", 4, 1, f"{SEQUENCE} {V}", bf16=True, micro_batches=4
    ),
]
FOUR += [
    Method("Ulysses of 4", 4, 1, "--sep_parallel_degree 4", **OF_SPLIT),
    Method("Ulysses 2 x data 2", 4, 2, SPLIT, **OF_SPLIT),
    Method("ring of 4", 4, 1, "--context_parallel_degree 4", **OF_SPLIT, data=CONVERSATIONS, bf16=True),
    Method("ring 2 x Ulysses 2", 4, 1, f"{RING} {SPLIT}", **OF_SPLIT),
    Method("ring 2 x Ulysses 2", 4, 1, f"{RING} {SPLIT}", **OF_SPLIT, data=CONVERSATIONS, bf16=True),
    Method("ring 2 x sharding stage 1 of 2", 4, 2, f"{RING} --sharding stage1", **OF_SPLIT, bf16=True),
    Method("ring 2 x tensor 2 with sequence parallel", 4, 1, f"{RING} {SEQUENCE}", **OF_SPLIT),
    Method("Ulysses 2 x sharding stage 1 of 2", 4, 2, f"{SPLIT} --sharding stage1", **OF_SPLIT),
    Method("Ulysses 2 x sharding stage 1 of 2", 4, 2, f"{SPLIT} --sharding stage1", **OF_SPLIT, bf16=True),
    Method("Ulysses 2 x tensor 2", 4, 1, f"{SPLIT} {TENSOR}", **OF_SPLIT, data=CONVERSATIONS),
    Method("Ulysses 2 x tensor 2 with sequence parallel", 4, 1, f"{SPLIT} {SEQUENCE}", **OF_SPLIT),
    Method("Ulysses 2 x tensor 2 with sequence parallel", 4, 1, f"{SPLIT} {SEQUENCE}", **OF_SPLIT, bf16=True),
]
FOUR += [
    Method("expert parallel 4", 4, 4, f"{EXPERTS} 4", model="Mixtral"),
    Method("expert parallel 2 x data 2", 4, 4, f"{EXPERTS} 2", model="Qwen2-MoE"),
    Method(
        "expert parallel 2 x data 2, recompute",
        4,
        4,
        f"{EXPERTS} 2 --recompute true",
        model="Mixtral",
        bf16=True,
    ),
    Method("expert parallel 4 with sharding stage 1", 4, 4, f"{EXPERTS} 4 {SHARDED}", model="Qwen2-MoE"),
    Method(
        "expert parallel 2 x data 2 with sharding stage 1",
        4,
        4,
        f"{EXPERTS} 2 {SHARDED}",
        model="Mixtral",
        bf16=True,
    ),
    *(
        Method(
            f"{name}, experts over {experts}",
            4,
            data_ranks,
            f"{flags} {EXPERTS} {experts}",
            model=model,
            bf16=bf16,
        )
        for name, data_ranks, flags, experts, model, bf16 in (
            ("Ulysses of 4", 1, "--sep_parallel_degree 4", 2, "Qwen2-MoE", False),
            ("Ulysses 2 x data 2", 2, SPLIT, 4, "Mixtral", True),
            ("ring 2 x Ulysses 2", 1, f"{RING} {SPLIT}", 4, "Mixtral with router loss", False),
            ("Ulysses 2 x sharding stage 1 of 2", 2, f"{SPLIT} {SHARDED}", 2, "Mixtral", False),
            ("ring 2 x sharding stage 1 of 2", 2, f"{RING} {SHARDED}", 4, "Qwen2-MoE", True),
            ("tensor 2 with sequence parallel x data 2", 2, SEQUENCE, 4, "Mixtral", True),
            *(
                (
                    f"tensor 2 with sequence parallel x {name}",
                    data_ranks,
                    f"{SEQUENCE} {flags}",
                    2,
                    "Qwen2-MoE",
                    False,
                )
                for name, data_ranks, flags in (
                    ("sharding stage 1 of 2", 2, SHARDED),
                    ("pipeline 2", 1, STAGES),
                )
            ),
            ("pipeline 2 x data 2", 2, STAGES, 2, "Qwen2-MoE", False),
            ("pipeline 2 x sharding stage 1 of 2", 2, f"{STAGES} {SHARDED}", 2, "Qwen2-MoE", True),
            (
                "Ulysses 2 x tensor 2 with sequence parallel",
                *(1, f"{SPLIT} {SEQUENCE}", 4, "Qwen2-MoE with router loss", False),
            ),
            ("ring 2 x tensor 2 with sequence parallel", 1, f"{RING} {SEQUENCE}", 2, "Mixtral", True),
        )
    ),
    Method("Ulysses 2 x data 2", 4, 2, SPLIT, model="Qwen2-MoE"),
]
EIGHT = [
    Method("tensor 2 x pipeline 2 x data 2", 8, 2, f"{TENSOR} {STAGES}"),
    Method(
        "tensor 2 with sequence parallel x pipeline 2 x sharding stage 1 of 2",
        8,
        2,
        f"{SEQUENCE} {STAGES} --sharding stage1",
        bf16=True,
    ),
    Method(
        "tensor 2 x pipeline of 4 stages of 2 parts", 8, 1, f"{TENSOR} {PARTS}", first=False, micro_batches=8
    ),
    Method("ring 2 x tensor 2 x data 2", 8, 2, f"{RING} {TENSOR}", **OF_SPLIT),
]
EIGHT += [
    Method(name, 8, 1, f"{flags} {FOUR_STAGES} {DUALPIPEV}", bf16=bf16, first=False, micro_batches=8)
    for name, flags, bf16 in (
        ("tensor 2 x DualPipeV of 4 stages", TENSOR, False),
        ("tensor 2 with sequence parallel x DualPipeV of 4 stages", SEQUENCE, True),
    )
]
EIGHT += [
    Method(f"{name}, expert parallel 4", 8, 2, f"{flags} {EXPERTS} 4", model=model, bf16=bf16)
    for name, flags, model, bf16 in (
        ("ring 2 x Ulysses 2 x data 2", f"{RING} {SPLIT}", "Mixtral", False),
        (
            "ring 2 x tensor 2 with sequence parallel x sharding stage 1 of 2",
            *(f"{RING} {SEQUENCE} {SHARDED}", "Qwen2-MoE", True),
        ),
    )
]


def methods(ranks: int, which: str) -> list[Method]:
    """Those for so many processes of one start of the program, `Method.which`."""
    return [method for method in {1: ALONE, 2: TWO, 4: FOUR, 8: EIGHT}[ranks] if method.which == which]
