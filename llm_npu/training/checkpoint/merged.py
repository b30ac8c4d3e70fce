"""LoRA's merged model in the output folder of a run."""

from __future__ import annotations

from pathlib import Path

import paddle

from llm_npu.core.atomic import replace, unfinished
from llm_npu.data.text import chat_template
from llm_npu.models import lora, weights

MERGED = "merged"  # the folder in a run's output folder


def export(model, tokenizer, folder: Path) -> None:
    """Write LoRA's merged model and its tokenizer in the Hugging Face layout; ``folder`` is atomic."""
    with unfinished(folder) as new:
        with paddle.no_grad(), lora.merged(model):
            weights.save(lora.unwrapped(model), new)
        chat_template.save(tokenizer, new)
        replace(new, folder)
