"""The flags of the model, the data and the fused operators, and ``RunConfig``, which adds those of training.

The names are those of PaddleNLP's pre-training script and of openMind, whose files of arguments work here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from llm_npu.models import logits, other_library
from llm_npu.models.families import FAMILIES, titles_of
from llm_npu.models.library import names

from . import no_effect
from .flag import NoEffect, flag
from .formats import split_weights
from .training import TrainingFlags

FAMILIES_WITH_FUSED_PROJECTIONS = titles_of(lambda family: family.fuses_projections)


@dataclass
class ModelArguments:
    """The model to train, and which of its projections are fused into one matmul."""

    model_type: str | None = flag(
        None,
        "Model family. By default that of --model_name_or_path; given alone, it selects the family's tiny "
        "preset.",
        choices=tuple(FAMILIES),
        hint=other_library.hint,
    )
    model_name_or_path: str = flag(
        "llama-tiny",
        "A preset, whose weights are random, or a local directory with config.json.",
        aliases=("model_id",),
        path=True,
    )
    tokenizer_name_or_path: str | None = flag(
        None,
        "A local directory with tokenizer.json or tokenizer.model. By default PREFIX-tokenizer beside "
        "PREFIX.bin and PREFIX.idx, else the model's directory. For a preset and text, a byte-level BPE "
        "is trained on the text and cached.",
        path=True,
    )
    fuse_attention_qkv: bool = flag(
        True,
        f"One matmul for query, key and value instead of three ({FAMILIES_WITH_FUSED_PROJECTIONS}).",
        no_effect=no_effect.SEPARATE_PROJECTIONS,
    )
    fuse_attention_ffn: bool = flag(
        True,
        f"One matmul for the gate and up projections instead of two ({FAMILIES_WITH_FUSED_PROJECTIONS}).",
        no_effect=no_effect.SEPARATE_PROJECTIONS,
    )
    continue_training: bool = flag(
        False,
        "Start from the weights in --model_name_or_path. By default true for a directory with weights, false "
        "for a preset or a directory with config.json only.",
    )
    num_hidden_layers: int | None = flag(
        None, "Number of layers; by default as in the model's configuration.", at_least=1
    )
    use_fast_layer_norm: bool = flag(
        False, f"Switch of {names.TITLE} for its CUDA layer norm.", no_effect=no_effect.CUDA
    )
    hidden_dropout_prob: float | None = flag(
        None,
        "Dropout of embeddings and feed-forward layers (GPT); by default as in the model's configuration.",
        at_least=0,
        below=1,
        no_effect=no_effect.NO_HIDDEN_DROPOUT,
    )
    attention_probs_dropout_prob: float | None = flag(
        None,
        "Dropout of attention: its probabilities and its output (GPT); by default as in the model's "
        "configuration.",
        at_least=0,
        below=1,
        no_effect=no_effect.NO_HIDDEN_DROPOUT,
    )
    finetuning_type: str = flag(
        "full", f"full trains all weights; lora trains the LoRA of {names.TITLE}.", choices=("full", "lora")
    )
    lora_rank: int = flag(8, "Rank of LoRA's matrices A and B.", at_least=1, no_effect=no_effect.NOT_LORA)
    lora_alpha: int | None = flag(
        None,
        "LoRA adds alpha / rank * A B; by default 2 * lora_rank.",
        at_least=1,
        no_effect=no_effect.NOT_LORA,
    )
    lora_dropout: float = flag(
        0.0, "Dropout of A's input.", at_least=0, below=1, no_effect=no_effect.NOT_LORA
    )
    lora_target: str = flag(
        "all",
        "all, or the names of the projections that get LoRA, such as qkv_proj,o_proj.",
        no_effect=no_effect.NOT_LORA,
        aliases=("lora_target_modules",),
        comma_separated=True,
    )


@dataclass
class DataArguments:
    """Which text is trained on, and how it is cut into samples."""

    input_dir: str | None = flag(
        None,
        "A file or folder of .txt, .py, .md or .jsonl, or a Megatron .bin + .idx pair (its prefix, or its "
        "folder). By default the source text of Python's standard library.",
        aliases=("dataset",),
        path=True,
    )
    split: str = flag(
        "949,50,1",
        "Weights of the training, validation and test documents.",
        check_format=split_weights,
        comma_separated=True,
    )
    max_seq_length: int = flag(256, "Tokens per sample.", at_least=1, aliases=("cutoff_len", "max_length"))
    data_impl: str = flag("mmap", "Layout of .bin + .idx files.", choices=("mmap",))
    skip_warmup: bool = flag(
        True,
        "PaddleNLP's switch for reading memory-mapped files once before training.",
        no_effect=NoEffect("memory-mapped files are read on demand"),
    )
    data_cache: str | None = flag(
        None,
        "Folder for trained tokenizers and tokenised text (default: $LLM_NPU_CACHE, else llm_npu in the "
        "user's cache folder).",
        path=True,
    )
    stage: str = flag(
        "pt",
        "pt trains on text; sft on the answers of conversations in .jsonl, one per line; dpo on preference "
        "pairs in .jsonl (DPO, with PaddleFormers).",
        choices=("pt", "sft", "dpo"),
    )
    packing: bool | str | None = flag(
        None,
        "What a sample holds. stream: the next max_seq_length tokens of the text. first_fit and "
        "length_grouped: whole documents, conversations or pairs, none of which attends to another. none "
        "(false): one of them. true means stream with --stage pt, else first_fit. By default stream with pt, "
        "else none.",
        choices=("none", "stream", "first_fit", "length_grouped"),
    )
    padding: str | None = flag(
        None,
        "none: a batch is one row without padding. longest: pad to the longest sample. max_length: pad to "
        "max_seq_length. By default none with --packing first_fit and length_grouped, else longest.",
        choices=("none", "longest", "max_length"),
        no_effect=NoEffect("samples of --packing stream are all full", lambda run: run.packing == "stream"),
    )
    reset_attention_mask: bool = flag(
        False,
        "With --packing stream, documents do not attend to each other, and positions restart with each.",
        no_effect=NoEffect(
            "only with --packing stream do documents attend to each other",
            lambda run: run.packing != "stream",
        ),
    )
    chat_template: str | None = flag(
        None,
        "A Jinja template, or PaddleNLP's chat_template.json. By default the tokenizer's own, else turns "
        "marked User: and Assistant: .",
        no_effect=NoEffect("--stage is neither sft nor dpo", lambda run: run.stage == "pt"),
        path=True,
    )
    share_folder: bool = flag(
        False,
        "PaddleNLP's switch for a data folder that several machines share.",
        no_effect=NoEffect("no index files are built, so no machine waits for another"),
    )

    def __post_init__(self):
        self.packing = chosen_packing(self.stage, self.packing)
        if self.packing == "stream":  # its samples are all full
            self.padding = "longest"
        self.padding = self.padding or default_padding(self.packing)


def chosen_packing(stage: str, packing: bool | str | None) -> str:
    """``--packing`` by name, where it is a name, true, false or not given."""
    if packing is None:
        return "stream" if stage == "pt" else "none"
    if packing is True:
        return "stream" if stage == "pt" else "first_fit"
    return packing or "none"


def default_padding(packing: str) -> str:
    """``--padding`` where it is not given."""
    return "none" if packing in ("first_fit", "length_grouped") else "longest"


@dataclass
class PreferenceArguments:
    """The loss of ``--stage dpo`` (Rafailov et al., arXiv 2305.18290). Of a pair, with h = the log-ratio of
    policy and reference for the chosen answer minus that for the rejected one, b ``dpo_beta`` and
    e ``dpo_label_smoothing``:

    sigmoid   -(1 - e) log sigmoid(b h) - e log sigmoid(-b h)
    hinge     max(0, 1 - b h)
    ipo       (h - 1 / (2 b))^2, log-ratios per token
    """

    dpo_loss: str = flag(
        "sigmoid",
        "Loss of --stage dpo: DPO's own, SLiC's hinge or IPO.",
        choices=("sigmoid", "hinge", "ipo"),
        no_effect=no_effect.NOT_DPO,
        aliases=("loss_type", "pref_loss"),
    )
    dpo_beta: float = flag(
        0.1,
        "DPO's beta: the larger, the closer the policy stays to the reference.",
        at_least=0.001,
        no_effect=no_effect.NOT_DPO,
        aliases=("beta", "pref_beta"),
    )
    dpo_label_smoothing: float = flag(
        0.0,
        "Share of pairs whose preference is taken to be wrong (conservative DPO).",
        at_least=0,
        below=0.5,
        no_effect=(
            no_effect.NOT_DPO,
            NoEffect("--dpo_loss is not sigmoid", lambda run: run.dpo_loss != "sigmoid"),
        ),
        aliases=("label_smoothing",),
    )


@dataclass
class FusedArguments:
    """Which fused operators ``llm_npu.surgery`` puts into the model.

    Where ``use_fused_linear_cross_entropy`` is None, ``llm_npu.training.model.choose_loss`` decides. The
    libraries have switches of the same names for their own fused paths, which always stay off.
    """

    disable_fused_options: bool = flag(
        False, f"Keep the layers of {names.TITLE}; the switches below have no effect."
    )
    use_npu_fusion_attention: bool = flag(
        True,
        f"Attention by paddle_fused.flash_attention. The path of {names.TITLE} stays off.",
        no_effect=no_effect.NOT_FUSED,
        aliases=("use_flash_attention",),
    )
    use_fused_rms_norm: bool = flag(
        True,
        f"RMSNorm by paddle_fused.rms_norm. The path of {names.TITLE} stays off.",
        no_effect=no_effect.NOT_FUSED,
    )
    use_fused_rope: bool = flag(
        True,
        "Rotary embedding by paddle_fused.apply_rotary, with positions and a key/value cache. "
        f"The path of {names.TITLE} stays off.",
        no_effect=no_effect.NOT_FUSED,
    )
    use_fused_swiglu: bool = flag(
        True, "SwiGLU of the feed-forward layers by paddle_fused.swiglu.", no_effect=no_effect.NOT_FUSED
    )
    use_fused_moe: bool = flag(
        True,
        f"Experts of {titles_of(lambda family: family.experts)} by paddle_fused's operators.",
        no_effect=(no_effect.NOT_FUSED, no_effect.NO_EXPERTS),
    )
    use_fused_adamw: bool = flag(
        True,
        "The optimizer's step by paddle_fused.FusedAdamW instead of paddle.optimizer.AdamW.",
        no_effect=no_effect.NOT_FUSED,
    )
    use_fused_dropout_add_layer_norm: bool = flag(
        True,
        "Dropout, addition and LayerNorm of GPT by paddle_fused.dropout_add_layer_norm.",
        no_effect=(no_effect.NOT_FUSED, no_effect.NO_LAYER_NORM),
    )
    use_fused_geglu: bool = flag(
        True,
        "GeGLU of Gemma's feed-forward layers by paddle_fused.geglu.",
        no_effect=(no_effect.NOT_FUSED, no_effect.NO_GEGLU),
    )
    use_fused_add_rms_norm: bool | None = flag(
        None,
        "Residual sums and the norms that read them by paddle_fused.add_rms_norm. By default true where one "
        "kernel computes both: on the CPU, not on a card, whose plugin has none.",
        no_effect=no_effect.NOT_FUSED,
    )
    use_fused_linear_cross_entropy: bool | None = flag(
        None,
        "Head and loss by paddle_fused.linear_cross_entropy, without the logits. By default where the logits "
        f"of a micro batch in float32 would take more than {logits.RULE} of the device's memory "
        f"({logits.CARD >> 30} GiB, or VIRTUAL_NPU_MEMORY_GB). The Triton path of {names.TITLE} stays off.",
        no_effect=(
            no_effect.NOT_FUSED,
            no_effect.DPO_READS_LOGITS,
            NoEffect("--enable_auto_parallel always computes it so", lambda run: run.enable_auto_parallel),
        ),
    )

    def switches(self) -> dict[str, bool | None]:
        """All switches by name, None for undecided ones; all off with ``disable_fused_options``."""
        switches = dataclasses.asdict(self)
        disabled = switches.pop("disable_fused_options")
        return {name: False if disabled else on for name, on in switches.items()}

    def of_layers(self) -> dict[str, bool | None]:
        """The switches of ``surgery.apply_fused_kernels``: all but the optimizer's."""
        return {name: on for name, on in self.switches().items() if name != "use_fused_adamw"}


@dataclass(frozen=True)
class RunConfig:
    """Every argument of a run, checked.

    Attributes:
        training: the library's training arguments; ``training.device`` is Paddle's name (``npu:1``).
        device: the name as the user wrote it (``npu``, ``npu:card``, ``virtual_npu:1``, ``cpu``, ...).
        given: the flags that the user wrote, on the command line or in the file: name -> value.
        ineffective: (name, reason) of those that change nothing in this run.
        notes: a line for each translated name.
    """

    model: ModelArguments
    fused: FusedArguments
    data: DataArguments
    preference: PreferenceArguments
    training: TrainingFlags
    device: str
    explicit: Mapping[str, object]
    ineffective: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
