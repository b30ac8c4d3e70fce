"""The line of text before and after training."""

import random

import numpy as np
import paddle
import pytest
from paddlenlp.transformers import LlamaConfig, LlamaForCausalLM

from llm_npu.generate import continuation
from llm_npu.trainer import random_state, set_random_state

VOCABULARY = 61


class Letters:
    """A tokenizer of one token per character."""

    eos_token_id = 0

    def __call__(self, text):
        return {"input_ids": [ord(letter) - 60 for letter in text]}

    def decode(self, ids, skip_special_tokens):
        assert skip_special_tokens
        return "".join(chr(number + 60) for number in ids if number != self.eos_token_id)


def llama(fused, dtype):
    paddle.seed(5)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
        initializer_range=0.3,  # far apart logits, so that no two are equal after rounding
        use_flash_attention=fused,
        use_fused_rms_norm=fused,
        use_fused_rope=fused,
        use_fast_layer_norm=False,
    )
    return LlamaForCausalLM(config).to(dtype=dtype)


def greedy(model, ids, count):
    """The definition: the whole text through the model for every new token, without a cache."""
    ids = list(ids)
    for _ in range(count):
        with paddle.no_grad():
            ids.append(int(model(paddle.to_tensor([ids]))[0][0, -1].astype("float32").argmax()))
        if ids[-1] == Letters.eos_token_id:
            break
    return ids


@pytest.mark.parametrize(("fused", "dtype"), [(False, "float32"), (False, "bfloat16"), (True, "bfloat16")])
def test_greedy_text_is_the_argmax_of_the_whole_model(fused, dtype):
    model, prompt = llama(fused, dtype), "AHEAD"
    text = continuation(model, Letters(), prompt, max_new_tokens=6)
    ids = Letters()(prompt)["input_ids"]
    assert text == Letters().decode(greedy(model, ids, 6)[len(ids) :], skip_special_tokens=True)


def draws():
    """What every generator yields next."""
    return random.random(), np.random.rand(), paddle.rand([2]).tolist()


def test_everything_is_left_as_it_was():
    model = llama(True, "bfloat16").train()
    state = random_state()
    expected = draws()
    set_random_state(state)
    continuation(model, Letters(), "A", max_new_tokens=2)
    assert draws() == expected
    assert model.training
    assert model.config.use_flash_attention and model.llama.layers[0].self_attn.use_fused_rope


def test_bad_prompts():
    model = llama(False, "float32")
    with pytest.raises(ValueError, match="prompt is empty"):
        continuation(model, Letters(), "")
    with pytest.raises(ValueError, match="32 tokens leaves none of the model's 32 positions free"):
        continuation(model, Letters(), "A" * 32)


def test_text_ends_at_the_last_position():
    assert len(continuation(llama(False, "float32"), Letters(), "A" * 30)) <= 2
