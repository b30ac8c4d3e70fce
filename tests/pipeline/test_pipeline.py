"""``llm_npu.pipeline``: text from a model's folder."""

import warnings

import paddle
import pytest

import llm_npu
from llm_npu.inference.generate import continuation, continuations, generate
from llm_npu.inference.pipeline import TextStreamer
from llm_npu.models import library
from llm_npu.surgery import remove_fused_kernels
from paddle_fused import dispatch_log, reset_dispatch_log

PROMPTS = ["def ", "for each y in x", "data[0:100:2]\n"]
MESSAGES = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "2 + 2?"}]


@pytest.fixture(scope="module")
def pipe(folder):
    return llm_npu.pipeline("text-generation", model=folder, device="npu:0", max_new_tokens=8)


def text_of(result):
    (only,) = result
    return only["generated_text"]


def test_the_text_is_the_prompt_and_its_greedy_continuation(pipe, folder):
    unfused = llm_npu.pipeline("text-generation", folder, **dict.fromkeys(pipe_switches(), False))
    assert unfused.report is None and pipe.report.count() > 0
    expected = continuation(unfused.model, unfused.tokenizer, PROMPTS[0], 8)
    assert expected
    assert text_of(pipe(PROMPTS[0])) == PROMPTS[0] + expected
    assert text_of(pipe(PROMPTS[0], return_full_text=False)) == expected


def pipe_switches():
    from llm_npu.inference import pipeline

    return pipeline._switches()


def test_a_batch_is_its_prompts_one_by_one(pipe):
    """Also under a penalty, which counts the padding."""
    options = {"repetition_penalty": 1.5, "batch_size": 2}
    alone = [pipe(prompt, **options) for prompt in PROMPTS]
    assert pipe(PROMPTS, **options) == alone
    assert pipe(PROMPTS, batch_size=2) != alone


def test_messages_are_answered_by_the_chat_template(pipe):
    text = "system: Be short.\nuser: 2 + 2?\nassistant:"
    answer = text_of(pipe(text, return_full_text=False))
    answered = [*MESSAGES, {"role": "assistant", "content": answer}]
    assert text_of(pipe(MESSAGES)) == answered
    assert pipe([MESSAGES, MESSAGES[1:]])[0] == [{"generated_text": answered}]
    assert text_of(pipe(MESSAGES, return_full_text=False)) == answer


def test_pieces_of_text_come_with_their_tokens(pipe):
    passes, pieces = [], []
    hook = pipe.model.register_forward_post_hook(lambda *_: passes.append(None))
    whole = text_of(pipe("def ", streamer=lambda text: pieces.append((len(passes), text)), max_new_tokens=30))
    hook.remove()
    assert "def " + "".join(text for _, text in pieces) == whole
    assert len(passes) == 30 and pieces[0][0] < 10 < len(pieces)


def test_a_character_of_several_tokens_is_one_piece(pipe):
    text, pieces = "Grüße, 你好 🙂!", []
    ids = pipe.tokenizer("x" + text)["input_ids"]
    streamer = TextStreamer(pieces.append, pipe.tokenizer, ids[:1], {2})
    if library.names.STREAMS_PROMPT:
        streamer.put(paddle.to_tensor([ids[:1]]))
    for token in [*ids[1:], 2]:
        streamer.put(paddle.to_tensor([[token]]))
    assert "".join(pieces) == text and "你" in pieces and "🙂" in pieces
    streamer.finish(text)
    assert "".join(pieces) == text


def test_a_streamer_may_take_tokens(pipe):
    class Tokens:
        ended, ids = False, ()

        def put(self, tokens):
            self.ids = [*self.ids, *tokens.flatten().tolist()]

        def end(self):
            self.ended = True

    tokens = Tokens()
    text = text_of(pipe("def ", streamer=tokens, return_full_text=False))
    assert tokens.ended and pipe.tokenizer.decode(tokens.ids[-8:], skip_special_tokens=True) == text


def test_the_folders_generation_config_is_the_default(with_config):
    model = with_config(max_new_tokens=5, do_sample=True, top_k=7, temperature=2.0, repetition_penalty=1.2)
    pipe = llm_npu.pipeline("text-generation", model)
    options = {"top_k": 7, "temperature": 2.0, "repetition_penalty": 1.2}
    paddle.seed(3)
    (expected,), _ = continuations(pipe.model, pipe.tokenizer, ["def "], 5, "sampling", **options)
    paddle.seed(3)
    assert text_of(pipe("def ")) == "def " + expected
    greedy = pipe("def ", do_sample=False)
    assert greedy == pipe("def ", do_sample=False) == pipe("def ", top_k=1)
    beams = pipe("def ", num_beams=2, max_new_tokens=4, return_full_text=False)
    (expected,), _ = continuations(
        pipe.model, pipe.tokenizer, ["def "], 4, "beam", num_beams=2, repetition_penalty=1.2
    )
    assert text_of(beams) == expected


def test_an_end_of_text_of_the_generation_config_ends_it(pipe, with_config):
    prompt = pipe.tokenizer("def ")["input_ids"]
    ids = generate(pipe.model, [prompt], 8, eos_token_id=2).ids[0]
    assert ids[4] not in ids[:4]
    ended = llm_npu.pipeline("text-generation", with_config(eos_token_id=ids[4]), max_new_tokens=8)
    pieces = []
    text = text_of(ended("def ", return_full_text=False, streamer=pieces.append))
    assert "".join(pieces) == text == pipe.tokenizer.decode(ids[:4])


@pytest.mark.slow
def test_max_length_counts_the_prompt(pipe, with_config):
    prompt = len(pipe.tokenizer("def ")["input_ids"])
    bounded = llm_npu.pipeline("text-generation", with_config(max_length=prompt + 4))
    assert bounded("def ") == pipe("def ", max_new_tokens=4) == pipe("def ", max_length=prompt + 4)
    assert bounded("def ", max_new_tokens=6) == pipe("def ", max_new_tokens=6)
    with pytest.raises(ValueError, match=f"max_length={prompt + 4}"):
        bounded(PROMPTS[1])


@pytest.mark.slow
def test_what_has_no_effect_is_a_warning(with_config):
    model = with_config(typical_p=0.5)
    ignored = {"framework": "pt", "backend": "transformers", "trust_remote_code": True}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        llm_npu.pipeline("text-generation", model, **ignored)
    messages = [str(warning.message) for warning in caught if warning.filename == __file__]
    assert len(messages) == 2 and "typical_p 0.5 is not applied" in messages[0]
    assert messages[1].startswith("framework='pt', backend='transformers', trust_remote_code=True: no effect")


def test_two_pipelines_with_different_switches(pipe, folder):
    other = llm_npu.pipeline("text-generation", folder, use_fused_rms_norm=False, max_new_tokens=8)
    ran = []
    for pipeline in (pipe, other):
        reset_dispatch_log()
        texts = pipeline(PROMPTS)
        ran.append(({call.operator for call in dispatch_log()}, texts))
    (both, texts), (without, same) = ran
    assert both - without == {"rms_norm"} and "flash_attention" in without
    assert texts == same


@pytest.mark.slow
def test_apply_fused_kernel_is_for_pipelines_that_follow(folder, forget_switches, request):
    request.addfinalizer(forget_switches)
    llm_npu.apply_fused_kernel(use_fused_rope=False, use_fused_linear_cross_entropy=True)
    kernels = {row.operator for row in llm_npu.pipeline("text-generation", folder).report.rows}
    assert kernels >= {"attention", "rms_norm", "swiglu"}
    assert not kernels & {"rotary", "linear_cross_entropy"}  # generation has no loss
    more = llm_npu.pipeline("text-generation", folder, use_fused_rope=True, use_fused_swiglu=False)
    kernels = {row.operator for row in more.report.rows}
    assert kernels >= {"attention", "rms_norm", "rotary"} and "swiglu" not in kernels
    llm_npu.apply_fused_kernel(**dict.fromkeys(pipe_switches(), False))
    plain = llm_npu.pipeline("text-generation", folder)
    assert plain.report is None and remove_fused_kernels(plain.model) == 0


@pytest.mark.slow
def test_a_model_on_the_cpu_place_beside_one_on_the_npu(pipe, folder):
    other = llm_npu.pipeline("text-generation", folder, device="cpu", max_new_tokens=8)
    assert paddle.device.get_device() == "npu:0"
    assert other(PROMPTS) == pipe(PROMPTS)
    assert all(parameter.place.is_cpu_place() for parameter in other.model.parameters())


@pytest.mark.slow
def test_sixteen_bits(folder):
    half = llm_npu.pipeline("text-generation", folder, dtype="bfloat16", max_new_tokens=4)
    assert {str(parameter.dtype) for parameter in half.model.parameters()} == {"paddle.bfloat16"}
    assert text_of(half(MESSAGES))[:2] == MESSAGES
