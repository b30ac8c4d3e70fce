"""Trains a small model for three steps with PaddleFormers' trainer on one rank, and again from the second.

python resume_program.py FOLDER llama|qwen2_5_vl float32|bfloat16 [patched]

Prints "resumed", if the second run ends with the weights of the first.
"""

import sys

import numpy as np
import paddle

VOCABULARY = 32
SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": VOCABULARY}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 2}
VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "patch_size": 2}
SECTIONS = {"type": "mrope", "mrope_section": [2, 1, 1]}


class Rows(paddle.io.Dataset):
    """Eight rows of four random tokens."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        tokens = np.random.default_rng(index).integers(0, VOCABULARY, 4)
        return {"input_ids": tokens, "labels": tokens}


def llama():
    from paddleformers.transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**SIZES))


def qwen2_5_vl():
    from paddleformers.transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    vision = {**VISION, "out_hidden_size": SIZES["hidden_size"]}
    config = Qwen2_5_VLConfig(text_config={**SIZES, "rope_scaling": SECTIONS}, vision_config=vision)
    return Qwen2_5_VLForConditionalGeneration(config)


def weights_after(folder: str, build, dtype: str, checkpoint: str | None) -> dict:
    from paddleformers.trainer import Trainer, TrainingArguments

    steps = {"max_steps": 3, "save_steps": 1, "learning_rate": 0.01, "per_device_train_batch_size": 1}
    half = {"bf16": True, "fp16_opt_level": "O2"} if dtype == "bfloat16" else {}
    arguments = TrainingArguments(
        output_dir=folder, device="cpu", amp_master_grad=False, save_total_limit=3, **steps, **half
    )
    model = build()
    if half:
        model = paddle.amp.decorate(model, level="O2", dtype=dtype)
    trainer = Trainer(model=model, args=arguments, train_dataset=Rows())
    trainer.train(resume_from_checkpoint=checkpoint)
    return {name: weight.astype("float32").numpy() for name, weight in model.state_dict().items()}


def main(folder: str, family: str, dtype: str, patched: bool) -> None:
    paddle.set_device("cpu")
    from llm_npu import patches
    from llm_npu.patches import paddleformers

    patches.apply()
    if patched:
        paddleformers.apply_to_trainer()
    build = {"llama": llama, "qwen2_5_vl": qwen2_5_vl}[family]
    paddle.seed(1)
    whole = weights_after(folder, build, dtype, None)
    paddle.seed(2)
    resumed = weights_after(folder, build, dtype, f"{folder}/checkpoint-2")
    for name, expected in whole.items():
        np.testing.assert_array_equal(resumed[name], expected, err_msg=name)
    print("resumed")


if __name__ == "__main__":
    main(*sys.argv[1:4], patched=len(sys.argv) > 4)
