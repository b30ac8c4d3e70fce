"""Flags of the model, the data and the fused operators, and ``RunConfig``, which adds the training flags.

Flags are named as in PaddleNLP's pre-training script and openMind, whose argument files work here.
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
    """The model to train, and which of its projections are fused."""

    model_type: str | None = flag(
        None,
        "Model family. By default the family of --model_name_or_path; without that flag, selects the "
        "family's tiny preset.",
        choices=tuple(FAMILIES),
        hint=other_library.hint,
    )
    model_name_or_path: str = flag(
        "llama-tiny",
        "A preset (with random weights) or a local directory with config.json.",
        aliases=("model_id",),
        path=True,
    )
    tokenizer_name_or_path: str | None = flag(
        None,
        "A local directory with tokenizer.json or tokenizer.model. By default PREFIX-tokenizer next to "
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
        "Start from the weights in --model_name_or_path. Default: true for a directory with weights, false "
        "for a preset or a directory with config.json only.",
    )
    num_hidden_layers: int | None = flag(
        None, "Number of layers; by default from the model's configuration.", at_least=1
    )
    use_fast_layer_norm: bool = flag(
        False, f"Use the CUDA layer norm of {names.TITLE}.", no_effect=no_effect.CUDA
    )
    hidden_dropout_prob: float | None = flag(
        None,
        "Dropout of embeddings and feed-forward layers (GPT); by default from the model's configuration.",
        at_least=0,
        below=1,
        no_effect=no_effect.NO_HIDDEN_DROPOUT,
    )
    attention_probs_dropout_prob: float | None = flag(
        None,
        "Dropout of attention probabilities and attention output (GPT); by default from the model's "
        "configuration.",
        at_least=0,
        below=1,
        no_effect=no_effect.NO_HIDDEN_DROPOUT,
    )
    finetuning_type: str = flag(
        "full",
        f"full trains all weights; lora trains a LoRA adapter ({names.TITLE}'s).",
        choices=("full", "lora"),
    )
    lora_rank: int = flag(8, "Rank of LoRA's matrices A and B.", at_least=1, no_effect=no_effect.NOT_LORA)
    lora_alpha: int | None = flag(
        None,
        "LoRA's alpha: the adapter adds alpha / rank * A B. By default 2 * lora_rank.",
        at_least=1,
        no_effect=no_effect.NOT_LORA,
    )
    lora_dropout: float = flag(
        0.0, "Dropout of the input of LoRA's A.", at_least=0, below=1, no_effect=no_effect.NOT_LORA
    )
    lora_target: str = flag(
        "all",
        "Projections with LoRA: all, or names such as qkv_proj,o_proj.",
        no_effect=no_effect.NOT_LORA,
        aliases=("lora_target_modules",),
        comma_separated=True,
    )


@dataclass
class DataArguments:
    """The training data, and how it is packed into samples."""

    input_dir: str | None = flag(
        None,
        "A file or folder of .txt, .py, .md or .jsonl, or a Megatron .bin + .idx pair (its prefix, or its "
        "folder). By default the source text of Python's standard library.",
        aliases=("dataset",),
        path=True,
    )
    split: str = flag(
        "949,50,1",
        "Relative sizes of the training, validation and test split, by documents.",
        check_format=split_weights,
        comma_separated=True,
    )
    max_seq_length: int = flag(256, "Tokens per sample.", at_least=1, aliases=("cutoff_len", "max_length"))
    data_impl: str = flag("mmap", "Layout of .bin + .idx files.", choices=("mmap",))
    skip_warmup: bool = flag(
        True,
        "Read memory-mapped files once before training (PaddleNLP).",
        no_effect=NoEffect("memory-mapped files are read on demand"),
    )
    data_cache: str | None = flag(
        None,
        "Cache folder for trained tokenizers and tokenised text (default: $LLM_NPU_CACHE, else llm_npu in "
        "the user's cache folder).",
        path=True,
    )
    stage: str = flag(
        "pt",
        "pt trains on text; sft on the answers in .jsonl conversations, one per line; dpo on preference "
        "pairs in .jsonl (DPO, with PaddleFormers).",
        choices=("pt", "sft", "dpo"),
    )
    packing: bool | str | None = flag(
        None,
        "How samples are packed. stream: the next max_seq_length tokens of the text. first_fit and "
        "length_grouped: several whole documents, conversations or pairs, without attention between them. "
        "none (false): one document, conversation or pair. true means stream with --stage pt, else "
        "first_fit. Default: stream with pt, else none.",
        choices=("none", "stream", "first_fit", "length_grouped"),
    )
    padding: str | None = flag(
        None,
        "none: concatenate a batch into one row. longest: pad to the longest sample. max_length: pad to "
        "max_seq_length. Default: none with --packing first_fit and length_grouped, else longest.",
        choices=("none", "longest", "max_length"),
        no_effect=NoEffect("all samples of --packing stream are full", lambda run: run.packing == "stream"),
    )
    reset_attention_mask: bool = flag(
        False,
        "With --packing stream, mask attention across documents and restart positions at each document.",
        no_effect=NoEffect(
            "other packings always mask attention across documents",
            lambda run: run.packing != "stream",
        ),
    )
    chat_template: str | None = flag(
        None,
        "A Jinja template, or PaddleNLP's chat_template.json. By default the tokenizer's template, else "
        "turns marked User: and Assistant: .",
        no_effect=NoEffect("--stage is neither sft nor dpo", lambda run: run.stage == "pt"),
        path=True,
    )
    share_folder: bool = flag(
        False,
        "The data folder is shared by several machines (PaddleNLP).",
        no_effect=NoEffect("no index files are built, so machines do not wait for each other"),
    )

    def __post_init__(self):
        self.packing = chosen_packing(self.stage, self.packing)
        if self.packing == "stream":  # all its samples are full
            self.padding = "longest"
        self.padding = self.padding or default_padding(self.packing)


def chosen_packing(stage: str, packing: bool | str | None) -> str:
    """Resolve ``--packing`` (a name, true, false or None) to a name."""
    if packing is None:
        return "stream" if stage == "pt" else "none"
    if packing is True:
        return "stream" if stage == "pt" else "first_fit"
    return packing or "none"


def default_padding(packing: str) -> str:
    """The default of ``--padding``."""
    return "none" if packing in ("first_fit", "length_grouped") else "longest"


@dataclass
class PreferenceArguments:
    """Flags of ``--stage dpo`` (Rafailov et al., arXiv 2305.18290). The loss of a pair, where h is the
    log-ratio of policy and reference for the chosen answer minus that for the rejected answer, b is
    ``dpo_beta`` and e is ``dpo_label_smoothing``:

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
        "DPO's beta; larger values keep the policy closer to the reference.",
        at_least=0.001,
        no_effect=no_effect.NOT_DPO,
        aliases=("beta", "pref_beta"),
    )
    dpo_label_smoothing: float = flag(
        0.0,
        "Assumed fraction of pairs with a wrong preference (conservative DPO).",
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
    """The fused operators that ``llm_npu.surgery`` puts into the model.

    If ``use_fused_linear_cross_entropy`` is None, ``llm_npu.training.model.choose_loss`` decides. The
    libraries have flags of the same names for their own fused paths, which always stay off.
    """

    disable_fused_options: bool = flag(
        False, f"Keep the layers of {names.TITLE}; overrides the switches below."
    )
    use_npu_fusion_attention: bool = flag(
        True,
        f"Use paddle_fused.flash_attention. The fused path of {names.TITLE} stays off.",
        no_effect=no_effect.NOT_FUSED,
        aliases=("use_flash_attention",),
    )
    use_fused_rms_norm: bool = flag(
        True,
        f"Use paddle_fused.rms_norm. The fused path of {names.TITLE} stays off.",
        no_effect=no_effect.NOT_FUSED,
    )
    use_fused_rope: bool = flag(
        True,
        "Use paddle_fused.apply_rotary, with positions and a key/value cache. "
        f"The fused path of {names.TITLE} stays off.",
        no_effect=no_effect.NOT_FUSED,
    )
    use_fused_swiglu: bool = flag(
        True, "Use paddle_fused.swiglu in the feed-forward layers.", no_effect=no_effect.NOT_FUSED
    )
    use_fused_moe: bool = flag(
        True,
        f"Use paddle_fused's operators for the experts of {titles_of(lambda family: family.experts)}.",
        no_effect=(no_effect.NOT_FUSED, no_effect.NO_EXPERTS),
    )
    use_fused_adamw: bool = flag(
        True,
        "Use paddle_fused.FusedAdamW instead of paddle.optimizer.AdamW.",
        no_effect=no_effect.NOT_FUSED,
    )
    use_fused_dropout_add_layer_norm: bool = flag(
        True,
        "Use paddle_fused.dropout_add_layer_norm for dropout, addition and LayerNorm of GPT.",
        no_effect=(no_effect.NOT_FUSED, no_effect.NO_LAYER_NORM),
    )
    use_fused_geglu: bool = flag(
        True,
        "Use paddle_fused.geglu in Gemma's feed-forward layers.",
        no_effect=(no_effect.NOT_FUSED, no_effect.NO_GEGLU),
    )
    use_fused_add_rms_norm: bool | None = flag(
        None,
        "Use paddle_fused.add_rms_norm for residual sums followed by a norm. Default: true if one kernel "
        "computes both, which holds on the CPU but not on a card, where the plugin has no such kernel.",
        no_effect=no_effect.NOT_FUSED,
    )
    use_fused_linear_cross_entropy: bool | None = flag(
        None,
        "Use paddle_fused.linear_cross_entropy for head and loss, without materializing the logits. Default: "
        f"true if the float32 logits of a micro batch would take more than {logits.RULE} of the device's "
        f"memory ({logits.CARD >> 30} GiB, or VIRTUAL_NPU_MEMORY_GB). The Triton path of {names.TITLE} stays "
        "off.",
        no_effect=(
            no_effect.NOT_FUSED,
            no_effect.DPO_READS_LOGITS,
            NoEffect("--enable_auto_parallel always uses it", lambda run: run.enable_auto_parallel),
        ),
    )

    def switches(self) -> dict[str, bool | None]:
        """All switches by name, None for undecided ones; all off with ``disable_fused_options``."""
        switches = dataclasses.asdict(self)
        disabled = switches.pop("disable_fused_options")
        return {name: False if disabled else on for name, on in switches.items()}

    def of_layers(self) -> dict[str, bool | None]:
        """The switches of ``surgery.apply_fused_kernels``: all except the optimizer's."""
        return {name: on for name, on in self.switches().items() if name != "use_fused_adamw"}


@dataclass(frozen=True)
class RunConfig:
    """Every argument of a run, checked.

    Attributes:
        training: The library's training arguments; ``training.device`` is Paddle's name (``npu:1``).
        device: The device name as the user wrote it (``npu``, ``npu:card``, ``virtual_npu:1``, ``cpu``, ...).
        explicit: Flags set by the user, on the command line or in the file: name -> value.
        ineffective: (name, reason) of explicit flags that have no effect in this run.
        notes: One line for each translated name.
        ring: The ranks of ``--context_parallel_degree``; ``training.sep_parallel_degree`` counts all ranks
            that share a sequence.
        expert_ranks: The ranks of ``--expert_parallel_degree``, which share the experts of every MoE layer.
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
    ring: int = 1
    expert_ranks: int = 1
