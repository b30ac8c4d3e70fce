"""Reads the images of a file of conversations with a PaddleOCR-VL model, and scores the answers.

    llm-npu formers examples/ocr/read_words.py MODEL CONVERSATIONS.jsonl

Prints each image with what was read, and the share of images that were read without an error.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import paddle
from paddleformers.generation import GenerationConfig
from paddleformers.transformers import AutoModelForConditionalGeneration, AutoProcessor
from PIL import Image

# The template "paddleocr_vl" of PaddleFormers, without an answer.
PROMPT = "<|begin_of_sentence|>User: <|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>OCR:\nAssistant: "


class Reader:
    """Generates the text of one image after the other."""

    def __init__(self, folder: Path, longest: int):
        paddle.set_device("npu")
        self.model = AutoModelForConditionalGeneration.from_pretrained(
            folder, convert_from_hf=True, dtype="bfloat16"
        ).eval()
        for config in (self.model.config, self.model.visual.config):
            config._attn_implementation = "flashmask"
        self.processor = AutoProcessor.from_pretrained(folder)
        tokenizer = self.processor.tokenizer
        self.generation = GenerationConfig(
            do_sample=False,
            max_new_tokens=longest,
            use_cache=True,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )

    def read(self, image: Image.Image) -> str:
        inputs = self.processor(images=[image], text=[PROMPT], return_tensors="pd")
        with paddle.no_grad():
            tokens, _ = self.model.generate(**inputs, generation_config=self.generation)
        return self.processor.tokenizer.decode(tokens[0].tolist(), skip_special_tokens=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("conversations", type=Path)
    parser.add_argument("--max_new_tokens", type=int, default=16)
    arguments = parser.parse_args()
    reader = Reader(arguments.model, arguments.max_new_tokens)
    lines = arguments.conversations.read_text().splitlines()
    correct = 0
    for line in lines:
        conversation = json.loads(line)
        (name,) = conversation["images"]
        with Image.open(arguments.conversations.parent / name) as image:
            text = reader.read(image.convert("RGB"))
        print(f"{name}: {text}")
        correct += text == conversation["messages"][-1]["content"]
    print(f"exact match: {correct} of {len(lines)} ({correct / len(lines):.1%})")


if __name__ == "__main__":
    main()
