"""Writes an OCR task: images of words, a small PaddleOCR-VL with random weights, and the file that trains it.

    llm-npu formers examples/ocr/make_task.py FOLDER
    llm-npu formers train FOLDER/train.yaml

The model has PaddleFormers' own classes and the configuration of PaddleOCR-VL with fewer and smaller layers.
A word is four random letters, and no word of the evaluation is among those of the training.
"""

from __future__ import annotations

import argparse
import json
import random
import string
from pathlib import Path

import paddle
import yaml
from paddleformers.transformers.paddleocr_vl.configuration import PaddleOCRVLConfig
from paddleformers.transformers.paddleocr_vl.modeling import PaddleOCRVLForConditionalGeneration
from PIL import Image, ImageDraw, ImageFont
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

ALPHABET = string.ascii_uppercase
LETTERS = 4  # of a word
PATCH = 14  # pixels
CELL = 2 * PATCH  # of a letter; 2 x 2 patches become one token of the decoder
FONT = ImageFont.load_default(size=24)  # the font that Pillow ships
PROMPT = "<image>OCR:"
SPECIAL = (
    *("<unk>", "<s>", "</s>", "<|begin_of_sentence|>", "<|end_of_sentence|>"),
    *("<|IMAGE_PLACEHOLDER|>", "<|IMAGE_START|>", "<|IMAGE_END|>", "<|video_pad|>"),
)
RECIPE = {  # PaddleFormers' paddleocr-vl_full_16k_config.yaml with other sizes, and device: npu
    "device": "npu",
    "stage": "VL-SFT",
    "fine_tuning": "full",
    "model_name_or_path": "model",
    "_attn_implementation": "flashmask",
    "template_backend": "custom",
    "template": "paddleocr_vl",
    "train_dataset_type": "messages",
    "train_dataset_path": "train.jsonl",
    "train_dataset_prob": "1.0",
    "eval_dataset_type": "messages",
    "eval_dataset_path": "eval.jsonl",
    "eval_dataset_prob": "1.0",
    "mix_strategy": "concat",
    "max_seq_len": 64,
    "padding_free": True,
    "truncate_packing": False,
    "dataloader_num_workers": 0,
    "seed": 23,
    "do_train": True,
    "do_eval": True,
    "per_device_train_batch_size": 16,
    "per_device_eval_batch_size": 16,
    "gradient_accumulation_steps": 1,
    "num_train_epochs": 1,
    "max_steps": 1000,
    "max_estimate_samples": 500,
    "logging_steps": 10,
    "evaluation_strategy": "steps",
    "eval_steps": 250,
    "save_strategy": "steps",
    "save_steps": 500,
    "output_dir": "checkpoint",
    "logging_dir": "vdl_log",
    "disable_tqdm": True,
    "lr_scheduler_type": "cosine",
    "warmup_ratio": 0.05,
    "learning_rate": 1.0e-3,
    "min_lr": 5.0e-5,
    "weight_decay": 0.1,
    "adam_beta1": 0.9,
    "adam_beta2": 0.95,
    "adam_epsilon": 1.0e-8,
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "sharding": "stage1",
    "bf16": True,
    "fp16_opt_level": "O2",
    "unified_checkpoint": False,
    "save_checkpoint_format": "flex_checkpoint",
    "load_checkpoint_format": "flex_checkpoint",
}


def words(count: int, seed: int) -> list[str]:
    """Different words of random letters."""
    draw = random.Random(seed)
    chosen: dict[str, None] = {}
    while len(chosen) < count:
        chosen["".join(draw.choices(ALPHABET, k=LETTERS))] = None
    return list(chosen)


def picture(word: str) -> Image.Image:
    image = Image.new("RGB", (CELL * len(word), CELL), "white")
    for position, letter in enumerate(word):
        center = (CELL * (position + 0.5), CELL / 2)
        ImageDraw.Draw(image).text(center, letter, fill="black", font=FONT, anchor="mm")
    return image


def write_data(folder: Path, name: str, chosen: list[str]) -> None:
    """``name``.jsonl with a conversation for each word, and its images in images/."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.jsonl").open("w") as lines:
        for word in chosen:
            file = f"images/{word}.png"
            picture(word).save(folder / file)
            messages = [
                {"role": "user", "content": PROMPT},
                {"role": "assistant", "content": word},
            ]
            print(json.dumps({"messages": messages, "images": [f"./{file}"]}), file=lines)


def write_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """A token for each byte, and the special tokens of PaddleOCR-VL's template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate([*SPECIAL, *alphabet])}, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens(list(SPECIAL))
    bpe.add_tokens(["User: ", "OCR:", "\nAssistant: "])  # of the template, one token each
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        cls_token="<|begin_of_sentence|>",
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


def write_model(folder: Path, key_value_heads: int) -> None:
    tokenizer = write_tokenizer(folder)
    number = tokenizer.convert_tokens_to_ids
    paddle.seed(1)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 128, "intermediate_size": 256}
    config = PaddleOCRVLConfig(
        architectures=["PaddleOCRVLForConditionalGeneration"],
        vocab_size=len(tokenizer),
        **sizes,
        num_key_value_heads=key_value_heads,
        head_dim=64,
        max_position_embeddings=1024,
        rms_norm_eps=1e-5,
        rope_theta=500000,
        rope_scaling={"mrope_section": [8, 12, 12], "rope_type": "default", "type": "default"},
        image_token_id=number("<|IMAGE_PLACEHOLDER|>"),
        video_token_id=number("<|video_pad|>"),
        vision_start_token_id=number("<|IMAGE_START|>"),
        pad_token_id=number("<unk>"),
        bos_token_id=number("<s>"),
        eos_token_id=number("</s>"),
        vision_config={**sizes, "image_size": 8 * PATCH, "patch_size": PATCH, "temporal_patch_size": 1},
    )
    PaddleOCRVLForConditionalGeneration(config).save_pretrained(folder, save_to_hf=True)
    preprocessor = {
        "image_processor_type": "PaddleOCRVLImageProcessor",
        "processor_class": "PaddleOCRVLProcessor",
        "patch_size": PATCH,
        "merge_size": 2,
        "temporal_patch_size": 1,
        "min_pixels": CELL * CELL * LETTERS,
        "max_pixels": CELL * CELL * (LETTERS + 1),  # augmentation changes the sizes
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train_words", type=int, default=4000)
    parser.add_argument("--eval_words", type=int, default=100)
    parser.add_argument("--key_value_heads", type=int, choices=[1, 2], default=1)
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    chosen = words(arguments.train_words + arguments.eval_words, seed=1)
    write_data(folder, "train", chosen[arguments.eval_words :])
    write_data(folder, "eval", chosen[: arguments.eval_words])
    write_model(folder / "model", arguments.key_value_heads)
    paths = ("model_name_or_path", "train_dataset_path", "eval_dataset_path", "output_dir", "logging_dir")
    recipe = RECIPE | {name: str(folder / RECIPE[name]) for name in paths}
    (folder / "train.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))


if __name__ == "__main__":
    main()
