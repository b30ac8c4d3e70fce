"""Writes a tiny model of PaddleFormers and conversations: ``python make_tiny_model.py FOLDER FAMILY``.

FAMILY: llama or qwen3.
"""

import sys
from pathlib import Path

import docstrings
import paddle
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY = 512
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '<s>User: ' + message['content'] + '\nAssistant: ' }}"
    "{% else %}{{ message['content'] + '</s>' }}{% endif %}"
    "{% endfor %}"
)


def write_tokenizer(folder: Path) -> None:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(docstrings.texts(), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)


def classes(family: str):
    """(configuration, model); Qwen3's need patches to be imported without CUDA."""
    if family == "llama":
        from paddleformers.transformers.llama import LlamaConfig, LlamaForCausalLM

        return LlamaConfig, LlamaForCausalLM
    from llm_npu import patches

    patches.apply()
    from paddleformers.transformers.qwen3.configuration import Qwen3Config
    from paddleformers.transformers.qwen3.modeling import Qwen3ForCausalLM

    return Qwen3Config, Qwen3ForCausalLM


def write_model(folder: Path, family: str) -> None:
    paddle.set_device("cpu")
    paddle.seed(1)
    configuration, model = classes(family)
    config = configuration(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=512,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model(config).save_pretrained(folder)


def main(folder: Path, family: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    docstrings.write(folder)
    write_tokenizer(folder)
    write_model(folder, family)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
