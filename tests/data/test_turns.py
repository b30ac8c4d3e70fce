"""Each answer in the context that its template gives it: templates that rewrite turns, marks, weights."""

import argparse
import shutil
from collections import Counter
from pathlib import Path

import pytest

from llm_npu.data.text import chat_template, turns
from llm_npu.data.text.corpus import corpus
from llm_npu.data.text.records import Unused
from llm_npu.data.text.tokenizer import load_tokenizer, trained_tokenizer

pytestmark = pytest.mark.sampled

TEMPLATES = Path(__file__).parent / "templates"
QWEN3, R1 = ((TEMPLATES / f"{name}.jinja").read_text("utf-8") for name in ("qwen3", "deepseek_r1"))
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SYSTEM = {"role": "system", "content": "Be short."}
FIRST = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
SECOND = [{"role": "user", "content": "And + 1?"}, {"role": "assistant", "content": "5"}]
THOUGHT = {"role": "assistant", "content": "<think>\nadd\n</think>\n\n4"}
REASONED = {"role": "assistant", "content": "5", "reasoning_content": "four and one"}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
CALLING = [
    FIRST[0],
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "4"},
]
BOS, EOS = "<|begin_of_text|>", "<｜end▁of▁sentence｜>"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    text = tmp_path_factory.mktemp("text") / "text.py"
    shutil.copy(argparse.__file__, text)
    return load_tokenizer(trained_tokenizer(corpus(text), 600, str(text.parent)))


@pytest.fixture
def samples(tokenizer):
    def of(source, messages, **options):
        chat_template.attach(tokenizer, source)
        return turns.samples(tokenizer, messages, **options)

    return of


def chatml(*messages, thought=None):
    """As Qwen3 writes them; ``thought``: of the last."""
    texts = [f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages]
    if thought is not None:
        head = "<|im_start|>assistant\n"
        texts[-1] = texts[-1].replace(head, f"{head}<think>\n{thought}\n</think>\n\n")
    return "".join(texts)


def test_qwen3_trains_each_answer_where_it_thinks(samples):
    pieces = samples(QWEN3, [SYSTEM, FIRST[0], THOUGHT, SECOND[0], REASONED])
    prompt = "<|im_start|>assistant\n"
    assert pieces == [
        [(chatml(SYSTEM, FIRST[0]) + prompt, False), ("<think>\nadd\n</think>\n\n4<|im_end|>\n", True)],
        [
            (chatml(SYSTEM, *FIRST, SECOND[0]) + prompt, False),
            ("<think>\nfour and one\n</think>\n\n5<|im_end|>\n", True),
        ],
    ]


def test_qwen3_without_thoughts(samples):
    (first, second) = samples(QWEN3, [*FIRST, *SECOND])
    assert first[-1] == ("<think>\n\n</think>\n\n4<|im_end|>\n", True)
    assert "".join(text for text, _ in second) == chatml(*FIRST, *SECOND, thought="")
    (only,) = samples(QWEN3, FIRST)
    assert only == first


def test_r1_trains_thought_and_answer_after_its_prompt(samples):
    pieces = samples(R1, [SYSTEM, FIRST[0], THOUGHT, SECOND[0], REASONED])
    prompt = "<｜Assistant｜><think>\n"
    assert pieces == [
        [(f"{BOS}Be short.<｜User｜>2 + 2?{prompt}", False), (f"add\n</think>\n\n4{EOS}", True)],
        [
            (f"{BOS}Be short.<｜User｜>2 + 2?<｜Assistant｜>\n\n4{EOS}<｜User｜>And + 1?{prompt}", False),
            (f"four and one\n</think>\n\n5{EOS}", True),
        ],
    ]


def test_r1_without_thoughts_trains_an_empty_one(samples):
    assert samples(R1, FIRST) == [
        [(f"{BOS}<｜User｜>2 + 2?<｜Assistant｜><think>\n", False), (f"\n</think>\n\n4{EOS}", True)]
    ]


@pytest.mark.parametrize("source", [QWEN3, R1, CHATML])
def test_the_text_before_each_answer_is_what_inference_shows(tokenizer, samples, source):
    messages = [SYSTEM, FIRST[0], THOUGHT, SECOND[0], REASONED]
    all_pieces = samples(source, messages)
    before = []
    for pieces in all_pieces:
        text = ""
        for part, trained in pieces:
            before += [text] * trained
            text += part
    prompts = [tokenizer.apply_chat_template(messages[:n], tokenize=False) for n in (2, 4)]
    assert before == prompts
    assert turns.last_answer(tokenizer, messages)[0] == prompts[-1]


def test_calls_of_tools(samples, tokenizer):
    tools = [{"type": "function", "function": {"name": "add"}}]
    call, answer = samples(QWEN3, [*CALLING, FIRST[1]], tools=tools)
    assert '{"type": "function", "function": {"name": "add"}}' in call[0][0]
    expected = (
        '<think>\n\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call><|im_end|>\n'
    )
    assert call[1] == (expected, True)
    assert "<tool_response>\n4\n</tool_response>" in answer[0][0]
    call = samples(R1, CALLING[:2])[0][1][0]  # this template joins the arguments as text
    assert 'add\n```json\n{"a": 2}\n```<｜tool▁call▁end｜>' in call


def test_answers_of_weight_0_are_context(samples):
    both = [*FIRST, *SECOND]
    (pieces,) = samples(CHATML, both, context={1})
    assert pieces == [(chatml(*FIRST, SECOND[0]) + "<|im_start|>assistant\n", False), ("5<|im_end|>\n", True)]
    assert samples(CHATML, both, context={3}) == samples(CHATML, FIRST)
    assert samples(CHATML, both, context={1, 3}) == []
    assert len(samples(QWEN3, both, context={1})) == 1


MARKED = (
    "{% for message in messages %}<{{ message.role }}>"
    "{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content }}</s>{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ message.content }}\n{% endif %}{% endfor %}"
    "{{ '<assistant>' if add_generation_prompt }}"
)


def test_marks_of_the_template_are_what_is_trained(tokenizer, samples):
    assert samples(MARKED, [*FIRST, *SECOND]) == [
        [
            ("<user>2 + 2?\n<assistant>", False),
            ("4</s>", True),
            ("\n<user>And + 1?\n<assistant>", False),
            ("5</s>", True),
            ("\n", False),
        ]
    ]
    assert turns.last_answer(tokenizer, FIRST) == ("<user>2 + 2?\n<assistant>", "4</s>")
    assert tokenizer.apply_chat_template(FIRST, tokenize=False, add_generation_prompt=False) == (
        "<user>2 + 2?\n<assistant>4</s>\n"
    )


def test_marks_in_templates_that_rewrite_turns(samples):
    last = "{% if loop.last %}(thought){% endif %}"
    source = MARKED.replace("{{ message.content }}</s>", last + "{{ message.content }}</s>")
    all_pieces = samples(source, [*FIRST, *SECOND])
    assert [[text for text, trained in turn if trained] for turn in all_pieces] == [
        ["(thought)4</s>"],
        ["(thought)5</s>"],
    ]
    written = "'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'"
    marks = "{% generation %}{{ content }}<｜end▁of▁sentence｜>{% endgeneration %}"
    marked = R1.replace("{{" + written + "}}", f"<｜Assistant｜>{marks}")
    assert "endgeneration" in marked
    assert samples(marked, [FIRST[0], THOUGHT]) == samples(R1, [FIRST[0], THOUGHT])


def test_an_answer_without_a_mark_is_refused(samples):
    source = (
        "{% for m in messages %}{{ m.content }}{% if m.x %}{% generation %}{% endgeneration %}{% endif %}"
    )
    source += "{% endfor %}"
    with pytest.raises(ValueError, match="answer 1 "):
        samples(source, FIRST)


@pytest.mark.parametrize(
    ("prompt", "written", "context", "answer"),
    [
        ("A:<think>", "A:", "U:2 + 2?A:<think>", "\n</think>\n\n4;"),
        ("A:<think>\n", "A:<think>\nwhy</think>", "U:2 + 2?A:<think>\n", "why</think>4;"),
        ("A:<think>\n", "A:<think>why</think>", "U:2 + 2?A:<think>\n", "why</think>4;"),
        ("A:<seed:think>", "A:", "U:2 + 2?A:<seed:think>", "\n</seed:think>\n\n4;"),
        ("A:<think>\n\n</think>\n\n", "A:", "U:2 + 2?A:<think>\n\n</think>\n\n", "4;"),
        ("A:<think>\n", "A:<table>", "U:2 + 2?A:<think>\n", "\n</think>\n\n<table>4;"),
    ],
)
def test_prompts_that_open_a_thought(samples, prompt, written, context, answer):
    source = (
        "{% for m in messages %}{% if m.role == 'user' %}U:{{ m.content }}{% else %}WRITTEN{{ m.content }};"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ PROMPT }}{% endif %}"
    )
    source = source.replace("WRITTEN", "{{ " + repr(written) + " }}").replace("PROMPT", repr(prompt))
    assert samples(source, FIRST) == [[(context, False), (answer, True)]]


def omitted(tokenizer, source, messages, tools=None):
    chat_template.attach(tokenizer, source)
    unused = Unused()
    counter = turns.Omitted(lambda *conversation: turns.samples(tokenizer, *conversation), unused)
    all_samples = turns.samples(tokenizer, messages, tools)
    counter.count(messages, tools, all_samples, "".join(text for pieces in all_samples for text, _ in pieces))
    return unused.omitted


def test_what_the_template_leaves_out_is_counted(tokenizer):
    messages = [SYSTEM, FIRST[0], THOUGHT, {**SECOND[0], "name": "x"}, REASONED]
    tools = [{"name": "add"}]
    assert omitted(tokenizer, QWEN3, messages, tools) == Counter({"messages[].name": 1})
    assert omitted(tokenizer, R1, messages, tools) == Counter({"messages[].name": 1, "tools": 1})
    assert omitted(tokenizer, CHATML, messages, tools) == Counter(
        {"messages[].name": 1, "messages[].reasoning_content": 1, "tools": 1}
    )
    without_system = "{% for m in messages if m.role != 'system' %}" + CHATML.split("%}", 1)[1].replace(
        "message.", "m."
    )
    for system in ("Be short.", "4", "I"):
        changed = [{**SYSTEM, "content": system}, *FIRST]
        assert omitted(tokenizer, without_system, changed) == Counter({"the system message": 1})
        assert omitted(tokenizer, CHATML, changed) == Counter()
