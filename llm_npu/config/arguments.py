"""The model's and the data's arguments, and the run that joins them with the training arguments.

The names are those of PaddleNLP's pre-training script, so that a file written for it can be used here.
"""

# ruff: noqa: UP045  (PaddleNLP's argument parser understands Optional[X], not X | None)

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:  # paddlenlp imports paddle, and the device must be chosen before that happens
    from .training import PretrainArguments

from .fused import FusedArguments


@dataclass
class ModelArguments:
    """Which model is trained, and which of its layers are fused into one matmul."""

    model_type: Optional[str] = field(
        default=None,
        metadata={
            "help": "llama, qwen2, mistral, mixtral or qwen2_moe. By default the one that "
            "--model_name_or_path has; alone it means the family's tiny preset."
        },
    )
    model_name_or_path: str = field(
        default="llama-tiny",
        metadata={"help": "A preset (random initialisation) or a local directory with config.json."},
    )
    tokenizer_name_or_path: Optional[str] = field(
        default=None,
        metadata={
            "help": "A local directory with tokenizer.json or tokenizer.model. By default PREFIX-tokenizer "
            "beside PREFIX.bin and .idx, else the model's directory; for a preset and text, a byte-level BPE "
            "is trained on the text and cached."
        },
    )
    fuse_attention_qkv: bool = field(
        default=True,
        metadata={"help": "One matmul for query, key and value instead of three (Llama, Qwen2, Qwen2-MoE)."},
    )
    fuse_attention_ffn: bool = field(
        default=True,
        metadata={
            "help": "One matmul for the gate and up projections instead of two (Llama, Qwen2, Qwen2-MoE)."
        },
    )
    continue_training: bool = field(
        default=False,
        metadata={
            "help": "Start from the weights in --model_name_or_path. When not given: true for a directory "
            "that holds weights, false for a preset or a directory with config.json only."
        },
    )
    num_hidden_layers: Optional[int] = field(
        default=None, metadata={"help": "Number of layers, instead of the number the model names."}
    )
    use_fast_layer_norm: bool = field(
        default=False, metadata={"help": "PaddleNLP's switch for its CUDA layer norm."}
    )
    hidden_dropout_prob: float = field(default=0.0, metadata={"help": "Dropout of the hidden states (GPT)."})
    attention_probs_dropout_prob: float = field(
        default=0.0, metadata={"help": "Dropout of the attention probabilities (GPT)."}
    )
    finetuning_type: str = field(
        default="full", metadata={"help": "full: all weights are trained; lora: PaddleNLP's LoRA."}
    )
    lora_rank: int = field(default=8, metadata={"help": "Columns of LoRA's A and rows of its B."})
    lora_alpha: Optional[int] = field(
        default=None,
        metadata={"help": "LoRA adds alpha / rank times A B; by default twice lora_rank."},
    )
    lora_dropout: float = field(default=0.0, metadata={"help": "Dropout of the input of A."})
    lora_target: str = field(
        default="all",
        metadata={"help": "all, or the names of projections with LoRA, such as qkv_proj,o_proj."},
    )


@dataclass
class DataArguments:
    """Which text is trained on, and how it is cut into samples."""

    input_dir: Optional[str] = field(
        default=None,
        metadata={
            "help": "A file or folder of .txt, .py, .md or .jsonl, or a Megatron .bin + .idx pair (its "
            "prefix, or a folder that holds it). By default the source text of this Python's standard "
            "library."
        },
    )
    split: str = field(
        default="949,50,1", metadata={"help": "Weights of the training, validation and test documents."}
    )
    max_seq_length: int = field(default=256, metadata={"help": "Tokens in one sample."})
    data_impl: str = field(default="mmap", metadata={"help": "Layout of .bin + .idx; only mmap is read."})
    skip_warmup: bool = field(
        default=True,
        metadata={"help": "PaddleNLP's switch for reading memory-mapped files once before training."},
    )
    data_cache: Optional[str] = field(
        default=None,
        metadata={
            "help": "Folder for trained tokenizers and tokenised text "
            "(default: $LLM_NPU_CACHE, else llm_npu in the user's cache folder)."
        },
    )
    stage: str = field(
        default="pt",
        metadata={
            "help": "pt: text. sft: conversations in .jsonl, one to a line, of which the answers are learnt."
        },
    )
    packing: Optional[str] = field(
        default=None,
        metadata={
            "help": "What stands in a sample. stream: the next tokens of the text, cut every max_seq_length. "
            "first_fit and length_grouped: whole documents or conversations that see nothing of each other. "
            "none (false): one of them. true is stream with --stage pt and first_fit with sft; by default "
            "stream and none."
        },
    )
    padding: Optional[str] = field(
        default=None,
        metadata={
            "help": "none: a batch is one row without padding. longest: up to the longest sample. "
            "max_length: up to max_seq_length. By default none for first_fit and length_grouped, else "
            "longest."
        },
    )
    reset_attention_mask: bool = field(
        default=False,
        metadata={
            "help": "With --packing stream, too, documents see nothing of each other, and positions start "
            "again with each."
        },
    )
    chat_template: Optional[str] = field(
        default=None,
        metadata={
            "help": "A Jinja template, or PaddleNLP's chat_template.json. By default the tokenizer's own; "
            "where it has none, the turns are written as User: and Assistant: ."
        },
    )
    share_folder: bool = field(
        default=False, metadata={"help": "PaddleNLP's switch for a data folder shared by several machines."}
    )

    def __post_init__(self):
        self.packing = self.packing or default_packing(self.stage)
        if self.packing == "stream":  # its samples are all full
            self.padding = "longest"
        self.padding = self.padding or default_padding(self.packing)


def default_packing(stage: str) -> str:
    """What stands in a sample unless ``packing`` says it."""
    return "none" if stage == "sft" else "stream"


def default_padding(packing: str) -> str:
    """How samples become a batch unless ``padding`` says it."""
    return "none" if packing in ("first_fit", "length_grouped") else "longest"


@dataclass(frozen=True)
class RunConfig:
    """Everything that was asked for.

    ``device`` is the name as asked (``npu``, ``npu:1``, ``virtual_npu``, ``virtual_npu:1``, ``npu:card``,
    ``cpu``) and ``training.device`` the name that Paddle knows (``npu``, ``npu:1`` or ``cpu``).
    ``given`` holds what the user wrote, on the command line or in the file: argument -> value.
    ``notes`` has a line for each name of another launcher that was translated.
    """

    model: ModelArguments
    fused: FusedArguments
    data: DataArguments
    training: PretrainArguments
    device: str
    given: Mapping[str, object]
    notes: tuple[str, ...] = ()
