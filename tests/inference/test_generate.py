"""Text from a model: batches of prompts, strategies, and the line before and after training."""

import random

import numpy as np
import paddle
import pytest
from paddle.jit.dy2static.program_translator import StaticFunction
from paddlenlp.transformers import LlamaConfig, LlamaForCausalLM, OPTConfig, OPTForCausalLM
from tiny_models import FAMILIES, POSITIONS, build, logits_of, prompts

from llm_npu.inference import export
from llm_npu.inference.generate import continuation, continuations, generate, positions
from llm_npu.surgery import apply_fused_kernels, remove_fused_kernels
from llm_npu.training.checkpoint.random_state import random_state, set_random_state
from paddle_fused import dispatch_log, reset_dispatch_log

pytestmark = pytest.mark.sampled

LETTERS = 61
END = 2
BATCH = prompts(9, 4, 1, 7)


class Letters:
    """A tokenizer of one token per character."""

    eos_token_id = 0
    vocab_size, added_tokens_decoder = LETTERS, {}

    def __call__(self, text):
        return {"input_ids": [ord(letter) - 60 for letter in text]}

    def decode(self, ids, skip_special_tokens=True, clean_up_tokenization_spaces=False):
        assert skip_special_tokens and not clean_up_tokenization_spaces
        return "".join(chr(number + 60) for number in ids if number != self.eos_token_id)


def llama(fused, dtype):
    """With PaddleNLP's own fused paths, if ``fused``."""
    paddle.seed(5)
    config = LlamaConfig(
        vocab_size=LETTERS,
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


def greedy(model, ids, count, end=Letters.eos_token_id):
    """The definition: the whole text through the model for every new token, without a cache."""
    ids, start = list(ids), len(ids)
    for _ in range(count):
        with paddle.no_grad():
            logits = model(input_ids=paddle.to_tensor([ids]), use_cache=False)[0]
        ids.append(int(logits[0, -1].astype("float32").argmax()))
        if ids[-1] == end:
            return ids[start:-1]
    return ids[start:]


@pytest.mark.parametrize(("fused", "dtype"), [(False, "float32"), (False, "bfloat16"), (True, "bfloat16")])
def test_greedy_text_is_the_argmax_of_the_whole_model(fused, dtype):
    model, prompt = llama(fused, dtype), "AHEAD"
    text = continuation(model, Letters(), prompt, max_new_tokens=6)
    ids = Letters()(prompt)["input_ids"]
    assert text == Letters().decode(greedy(model, ids, 6), skip_special_tokens=True)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_fused_rows_are_what_each_prompt_gives_unfused_and_alone(device, family):
    model = build(family)
    expected = [greedy(model, prompt, 12, END) for prompt in BATCH]
    unfused = generate(model, BATCH, 12, eos_token_id=END)
    assert unfused.ids == expected
    apply_fused_kernels(model, strict=True)
    reset_dispatch_log()
    fused = generate(model, BATCH, 12, eos_token_id=END)
    assert fused.ids == expected
    ran = {(entry.operator, entry.backend) for entry in dispatch_log()}
    wanted = {"flash_attention", "rotary_mul", "rms_norm", "swiglu"}
    wanted |= {"add_rms_norm"} if device == "cpu" else set()  # a card has no such kernel
    assert {operator for operator, _ in ran} == wanted
    assert not any(backend == "composed" for _, backend in ran), ran


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_tokens_are_the_best_or_as_good_after_rounding(on_npu, family):
    model = build(family, dtype="bfloat16")
    apply_fused_kernels(model)
    fused = generate(model, BATCH, 8, eos_token_id=END).ids
    remove_fused_kernels(model)
    for prompt, new in zip(BATCH, fused, strict=True):
        logits = logits_of(model, [prompt + new])[0, len(prompt) - 1 : -1]
        best, chosen = logits.max(-1), logits[np.arange(len(new)), new]
        assert (chosen >= best - 2**-7 * np.abs(best)).all()  # two neighbours in bfloat16
        assert (chosen == best).mean() >= 0.75


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("decode", "options"),
    [
        ("beam", {"num_beams": 3}),
        ("beam", {"length_penalty": 0.6}),
        ("sampling", {"top_k": 5, "temperature": 0.7}),
        ("sampling", {"top_p": 0.8}),
    ],
)
def test_other_strategies_are_the_same_fused(on_npu, family, decode, options):
    model = build(family)
    ids = []
    for fused in (False, True):
        if fused:
            apply_fused_kernels(model)
        paddle.seed(3)
        ids.append(generate(model, BATCH, 6, decode, eos_token_id=END, **options).ids)
    assert ids[0] == ids[1]
    assert all(ids[0])


def test_one_beam_is_greedy_search(on_npu):
    model = build("llama")
    greedy_ids = generate(model, BATCH, 6, eos_token_id=END).ids
    assert generate(model, BATCH, 6, "beam", eos_token_id=END, num_beams=1).ids == greedy_ids
    with_penalty = generate(model, BATCH, 6, "beam", eos_token_id=END, num_beams=1, length_penalty=0.5)
    assert with_penalty.ids == greedy_ids


def test_a_continuation_begins_with_its_blank():
    """As sentencepiece decodes: the blank at the start of a text is left out."""
    model, prompt = llama(False, "float32"), "AHEAD"
    text = continuation(model, Letters(), prompt, 3)

    class Sentences(Letters):
        def decode(self, ids, **options):
            return super().decode(ids, **options).removeprefix(text[0])

    assert len(text) == 3 and continuation(model, Sentences(), prompt, 3) == text


def test_sampling_depends_on_the_seed(on_npu):
    model = build("llama")
    draws = []
    for seed in (1, 1, 2):
        paddle.seed(seed)
        draws.append(generate(model, BATCH, 8, "sampling", eos_token_id=END, temperature=3.0).ids)
    assert draws[0] == draws[1] != draws[2]
    assert generate(model, BATCH, 8, "sampling", eos_token_id=END, top_k=1).ids == (
        generate(model, BATCH, 8, eos_token_id=END).ids
    )


def test_any_end_of_text_ends_a_row_and_is_not_in_it(on_npu):
    model = build("llama")
    rows = generate(model, BATCH, 6, eos_token_id=END).ids
    ends = [END, rows[1][3]]  # as if the fourth new token of the second prompt ended texts
    ended = generate(model, BATCH, 6, eos_token_id=ends)
    assert ended.ids == [row[: row.index(ends[1])] if ends[1] in row else row for row in rows]
    assert len(ended.ids[1]) <= 3


def test_what_is_counted(on_npu):
    model = build("llama")
    first = generate(model, BATCH, 1, eos_token_id=END)
    assert (first.prompt_tokens, first.decoded_tokens) == (sum(map(len, BATCH)), 0)
    done = generate(model, BATCH, 6, eos_token_id=END)
    assert [len(row) for row in done.ids] == [6] * 4
    assert done.decoded_tokens == 4 * 5
    assert done.prefill_seconds > 0 and done.decode_seconds > first.decode_seconds > 0
    ended = generate(model, BATCH[:1], 6, eos_token_id=done.ids[0][3])
    assert ended.decoded_tokens == done.ids[0].index(done.ids[0][3])  # with the end, without the first


def draws():
    """What every generator yields next."""
    return random.random(), np.random.rand(), paddle.rand([2]).tolist()


def test_everything_is_left_as_it_was():
    model = llama(True, "bfloat16")
    model.train()
    state = random_state()
    expected = draws()
    set_random_state(state)
    continuation(model, Letters(), "A", max_new_tokens=2)
    assert draws() == expected
    assert model.training
    assert model.config.use_flash_attention and model.llama.layers[0].self_attn.use_fused_rope


def test_a_captured_model_generates_in_dygraph(on_npu):
    """The samples before and after training with to_static: its captured step takes no cache."""
    few = [[5, 9, 3], [7]]
    model = llama(fused=False, dtype="float32")
    apply_fused_kernels(model)
    expected = generate(model, few, 4, eos_token_id=END).ids
    captured = paddle.jit.to_static(model)
    assert generate(captured, few, 4, eos_token_id=END).ids == expected
    assert isinstance(model.forward, StaticFunction)


def test_bad_input():
    model = llama(False, "float32")
    with pytest.raises(ValueError, match="prompt is empty"):
        continuation(model, Letters(), "")
    with pytest.raises(ValueError, match="no prompts"):
        continuations(model, Letters(), [])
    with pytest.raises(ValueError, match=r"32 tokens.* 32 positions"):
        continuation(model, Letters(), "A" * 32)
    with pytest.raises(ValueError, match="decode is 'nucleus'; accepted: greedy, sampling, beam"):
        continuations(model, Letters(), ["A"], decode="nucleus")
    with pytest.raises(ValueError, match="max_new_tokens is 0"):
        continuation(model, Letters(), "A", max_new_tokens=0)


def test_text_ends_at_the_last_position():
    assert len(continuation(llama(False, "float32"), Letters(), "A" * 30)) <= 2


@pytest.mark.parametrize(
    ("family", "changes", "room"),
    [
        ("llama", {}, POSITIONS),
        ("mistral", {}, POSITIONS),
        ("mistral", {"sliding_window": 16}, 16),
        ("qwen2", {"sliding_window": 16}, POSITIONS),
        ("qwen2", {"sliding_window": 16, "use_sliding_window": True}, 16),
    ],
)
def test_rows_stay_inside_a_window_that_paddlenlp_does_not_compute(family, changes, room):
    assert positions(build(family, **changes).config) == room


def test_a_model_of_a_family_that_is_not_trained_here(tmp_path):
    paddle.seed(5)
    sizes = {"hidden_size": 32, "word_embed_proj_dim": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "max_position_embeddings": 32}
    model = OPTForCausalLM(OPTConfig(vocab_size=LETTERS, **sizes, **heads))
    model.eval()
    assert positions(model.config) == 32
    assert len(generate(model, [[3, 1, 4]], 4, eos_token_id=LETTERS).ids[0]) == 4
    with pytest.raises(ValueError, match="OPTForCausalLM has no layer that the kernels"):
        export.export(model, tmp_path / "program")
