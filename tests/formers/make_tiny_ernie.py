"""Writes a tiny ERNIE-4.5 model and conversations: ``python make_tiny_ernie.py FOLDER``.

It runs in an interpreter that has ERNIE's package ``ernie``, whose own class writes the model.
"""

import json
import sys
from pathlib import Path

import docstrings
import paddle
import sentencepiece
from ernie.configuration import Ernie4_5_MoeConfig
from ernie.modeling_moe import Ernie4_5_MoeForCausalLM

VOCABULARY = 512
SPECIAL = ["<pad>", "<cls>", "<sep>", "<mask:0>", "<mask:1>", "<mask:7>"]
TURN = ["<|begin_of_sentence|>", "<|end_of_sentence|>"]
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if loop.first -%}<|begin_of_sentence|>{%- endif -%}"
    "{%- if message['role'] == 'user' -%}{{ 'User: ' + message['content'] + '\nAssistant: ' }}"
    "{%- else -%}{{ message['content'] + '<|end_of_sentence|>' }}{%- endif -%}"
    "{%- endfor -%}"
)


def write_tokenizer(folder: Path) -> None:
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(docstrings.texts()), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=VOCABULARY,
        model_type="bpe",
        user_defined_symbols=[*SPECIAL, *TURN],
        pad_id=-1,
        minloglevel=2,
    )
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "Ernie4_5_Tokenizer", "chat_template": CHAT_TEMPLATE})
    )


def write_model(folder: Path) -> None:
    """An MoE model as ERNIE-4.5's larger ones: a dense layer, then one with four experts."""
    paddle.set_device("cpu")
    paddle.seed(1)
    config = Ernie4_5_MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        moe_num_experts=4,
        moe_k=2,
        moe_intermediate_size=64,
        moe_layer_start_index=1,
        moe_layer_end_index=1,
        moe_layer_interval=1,
        moe_num_shared_experts=1,
        moe_capacity=[64, 64, 64],
        moe_group="dummy",
    )
    Ernie4_5_MoeForCausalLM(config).save_pretrained(str(folder))


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    docstrings.write(folder)
    write_tokenizer(folder)
    write_model(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
