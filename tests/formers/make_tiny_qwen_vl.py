"""Writes a tiny Qwen2.5-VL or Qwen3-VL, images of words and conversations about them.

    python make_tiny_qwen_vl.py FOLDER qwen2_5_vl|qwen3_vl

Words have several lengths, so images have several sizes.
"""

import json
import random
import sys
from dataclasses import replace
from pathlib import Path

import make_task
import paddle
from fused_models import vision
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHAT = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
IMAGES = {
    "<|image_pad|>": vision.IMAGE,
    "<|video_pad|>": vision.VIDEO,
    "<|vision_start|>": vision.START,
    "<|vision_end|>": vision.END,
}
VOCABULARY = 320  # 256 bytes and the special tokens
PROCESSORS = {
    "qwen2_5_vl": ("Qwen2VLImageProcessor", "Qwen2_5_VLProcessor"),
    "qwen3_vl": ("Qwen2VLImageProcessorFast", "Qwen3VLProcessor"),
}
LENGTHS = (2, 6)  # letters of the shortest and the longest word
TOKENS = (12, 24)  # of an image, about


def write_data(folder: Path) -> None:
    draw = random.Random(0)
    words = [word[: draw.randint(*LENGTHS)] for word in make_task.words(count=72, seed=1)]
    make_task.write_data(folder, "train", words[8:])
    make_task.write_data(folder, "eval", words[:8])


def write_tokenizer(folder: Path) -> None:
    """A token for each byte, and the special tokens of Qwen's templates."""
    tokens = [*CHAT, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    numbers = [number for number in range(VOCABULARY) if number not in IMAGES.values()]
    vocabulary = {**dict(zip(tokens, numbers[: len(tokens)], strict=True)), **IMAGES}
    bpe = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens([*CHAT, *IMAGES])
    PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token="<|endoftext|>", eos_token="<|im_end|>"
    ).save_pretrained(folder)


def write_model(folder: Path, model_type: str) -> None:
    (family,) = (family for family in vision.FAMILIES if family.model_type == model_type)
    family = family.with_grouped_heads()  # for two ranks
    family = replace(family, text={**family.text, "vocab_size": VOCABULARY})
    model = family.build(fuse_rms_norm=True)
    model.save_pretrained(folder, save_to_hf=True)
    # As in published folders. Saving writes the field to Qwen3-VL's text_config only.
    file = folder / "config.json"
    architectures = {"architectures": [f"{family.prefix}ForConditionalGeneration"]}
    file.write_text(json.dumps(json.loads(file.read_text()) | architectures))
    image, processor = PROCESSORS[model_type]
    patch = family.vision["patch_size"]
    least, most = (count * (vision.MERGED * patch) ** 2 for count in TOKENS)
    preprocessor = {
        "image_processor_type": image,
        "processor_class": processor,
        "patch_size": patch,
        "merge_size": vision.MERGED,
        "temporal_patch_size": family.vision["temporal_patch_size"],
        "size": {"shortest_edge": least, "longest_edge": most},
        "min_pixels": least,
        "max_pixels": most,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))


def main(folder: Path, model_type: str) -> None:
    paddle.set_device("cpu")
    write_data(folder)
    write_tokenizer(folder / "model")
    write_model(folder / "model", model_type)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
