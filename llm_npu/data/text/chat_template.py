"""Chat templates: messages -> text, and the parts of it that are answers.

    chat_template.attach(tokenizer, source)    # load_tokenizer does so if the folder has one
    tokenizer.apply_chat_template(messages)    # PaddleNLP's and Hugging Face's call for inference
    ids, answers = chat_template.encode(tokenizer, messages)

A message is {"role": "system" | "user" | "assistant", "content": text}. A template is either Jinja text, as
in Hugging Face's tokenizer_config.json or chat_template.jinja, or the mapping of PaddleNLP's
chat_template.json, {"system": ..., "conversation": [user, bot], "query": ...}.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import memory, plain_json

JSON_FILE = "chat_template.json"
JINJA_FILE = "chat_template.jinja"
FILES = (JSON_FILE, JINJA_FILE)  # next to the tokenizer; the first existing one is used
CONFIG_FILE = "tokenizer_config.json"
MOST_MEMORY = 2 << 30  # memory limit, in bytes, for rendering a conversation

# The default for tokenizers without a template: "<bos>User: question\nAssistant: answer<eos>User: ...".
DEFAULT = (
    "{{ bos_token if bos_token is defined }}"
    "{% for message in messages %}"
    "{{ message['role'] | capitalize }}: {{ message['content'] }}"
    "{{ eos_token if message['role'] == 'assistant' else '\\n' }}"
    "{% endfor %}"
    "{{ 'Assistant:' if add_generation_prompt }}"
)

Messages = Sequence[dict[str, str]]


def find(folder: str | Path) -> str | dict | None:
    """The template in a tokenizer's folder, or None.

    PaddleNLP's file takes precedence, as in PaddleNLP. ValueError if it cannot be read.
    """
    for name in FILES:
        if (Path(folder) / name).is_file():
            return read(Path(folder) / name)
    file = Path(folder) / CONFIG_FILE
    return _in_config(_json(file), file) if file.is_file() else None


def read(file: str | Path) -> str | dict:
    """The template in a file: JSON (``.json``) or Jinja. ValueError if it cannot be read."""
    file = Path(file)
    if file.suffix != ".json":
        return _text(file)
    content = _json(file)
    if "conversation" not in content:
        template = _in_config(content, file)
        if template is None:
            raise UserError(f"{file} contains neither conversation (PaddleNLP's) nor chat_template")
        return template
    pair = content["conversation"]
    if not set(content) <= {"system", "conversation", "query"} or not (
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)
    ):
        raise UserError(
            f"{file} must hold conversation, the templates of the user's and the bot's turn, and may hold "
            "system and query"
        )
    return content


def attach(tokenizer, source: str | dict) -> None:
    """Make ``source`` the tokenizer's template; `save` writes it. ValueError if it is not a template."""
    of_paddlenlp = hasattr(tokenizer, "init_chat_template")
    if not isinstance(source, dict):
        compiled = _compiled(source)
        tokenizer.chat_template = compiled if of_paddlenlp else source
        tokenizer.init_kwargs["chat_template"] = source
    elif of_paddlenlp:
        tokenizer.init_chat_template(source)
        tokenizer.init_kwargs.pop("chat_template", None)
    else:
        raise UserError(
            f"{JSON_FILE} with a conversation is PaddleNLP's, and PaddleFormers' tokenizers take Jinja; give "
            f"a {JINJA_FILE} with --chat_template"
        )


def source_of(tokenizer) -> str | dict | None:
    """The source that `attach` was given last."""
    if tokenizer.chat_template is None:
        return None
    source = tokenizer.init_kwargs.get("chat_template")
    return vars(tokenizer.chat_template) if source is None else source


def fingerprint(tokenizer) -> str:
    """A hash of what decides the text of messages: the template, and the special tokens that it inserts."""
    content = f"{source_of(tokenizer)} {sorted(tokenizer.special_tokens_map.items())}"
    return hashlib.sha256(content.encode()).hexdigest()


def save(tokenizer, folder: str | Path) -> None:
    """``save_pretrained`` plus the template: PaddleNLP's fast tokenizers omit chat_template.json."""
    tokenizer.save_pretrained(str(folder))
    source = source_of(tokenizer)
    if isinstance(source, dict):
        (Path(folder) / JSON_FILE).write_text(json.dumps(source, ensure_ascii=False), encoding="utf-8")


def pieces(tokenizer, messages: Messages) -> list[tuple[str, bool]]:
    """The text of a conversation in pieces, (text, is an answer), alternating between prompts and answers.

    An answer is what the assistant's message adds to the prompt, including its end marker. The messages end
    with an answer. ValueError if the template rejects them, or if the text before an answer depends on that
    answer or on later messages.
    """
    if isinstance(source_of(tokenizer), dict):
        with _rendering():
            return list(_turns(tokenizer.chat_template, messages))
    render = functools.partial(_rendered, tokenizer)
    found, text = [], ""
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before, after = render(messages[:number], True), render(messages[: number + 1], False)
        if not (before.startswith(text) and after.startswith(before)):
            raise UserError(
                f"the chat template changes the text before answer {len(found) // 2 + 1} once the answer "
                "is added; choose another template with --chat_template"
            )
        found += [(before[len(text) :], False), (after[len(before) :], True)]
        text = after
    return found


def _rendered(tokenizer, messages: Messages, prompt: bool) -> str:
    """The text of ``messages`` by the tokenizer's Jinja template; with ``prompt`` an answer may follow."""
    template = _compiled(source_of(tokenizer))
    with _rendering():
        return template.render(
            messages=list(messages), add_generation_prompt=prompt, **tokenizer.special_tokens_map
        )


@contextlib.contextmanager
def _rendering() -> Iterator[None]:
    """Turns any error of a template into a UserError: templates are third-party programs."""
    try:
        with memory.limited(MOST_MEMORY):
            yield
    except (MemoryError, RecursionError, OverflowError):
        raise UserError(
            "the chat template needs too much memory; choose another one with --chat_template"
        ) from None
    except UserError:
        raise
    except Exception as error:  # TypeError, ZeroDivisionError, TemplateError, ...
        raise UserError(f"the chat template rejects it: {error}") from error


def encode(tokenizer, messages: Messages) -> tuple[np.ndarray, np.ndarray]:
    """Token ids of a conversation, int64 [T], and a mask of the tokens of answers, bool [T].

    The whole text is tokenised at once if its pieces end between tokens, otherwise piece by piece: either way
    the tokens before an answer are those of the prompt alone, as in inference. ValueError as `pieces`.
    """
    parts = pieces(tokenizer, messages)
    texts = [text for text, _ in parts]
    prefixes = _ids(tokenizer, list(itertools.accumulate(texts)))
    whole = prefixes[-1]
    if all(whole[: len(prefix)] == prefix for prefix in prefixes):
        lengths = np.diff([0, *map(len, prefixes)])
        ids = whole
    else:
        separate = _ids(tokenizer, texts)
        lengths = [*map(len, separate)]
        ids = list(itertools.chain.from_iterable(separate))
    answers = np.repeat([answer for _, answer in parts], lengths)
    return np.array(ids, dtype=np.int64), answers


def encode_answers(tokenizer, prompt: Messages, answers: Sequence[str]) -> list[np.ndarray]:
    """Token ids of the prompt, int64 [T], and of each answer to it, with its end marker.

    The ids of the prompt are those of the prompt alone, as in inference. ValueError as `pieces`, and for a
    template that changes the prompt with the answer.
    """
    conversations = [
        pieces(tokenizer, [*prompt, {"role": "assistant", "content": answer}]) for answer in answers
    ]
    texts = {"".join(text for text, _ in parts[:-1]) for parts in conversations}
    if len(texts) > 1:
        raise UserError(
            "the chat template changes the prompt with the answer; choose another template with "
            "--chat_template"
        )
    (text,) = texts
    ends = [parts[-1][0] for parts in conversations]
    start, *whole = _ids(tokenizer, [text, *(text + end for end in ends)])
    separate = _ids(tokenizer, ends)
    found = [
        ids[len(start) :] if ids[: len(start)] == start else alone
        for ids, alone in zip(whole, separate, strict=True)
    ]
    return [np.array(ids, dtype=np.int64) for ids in (start, *found)]


def question(tokenizer, text: str) -> list[int]:
    """The token ids of a prompt with a single user message. ValueError if there is no template."""
    if source_of(tokenizer) is None:
        raise UserError("the tokenizer has no chat template; pass the prompts verbatim, without --chat")
    if isinstance(source_of(tokenizer), dict):
        with _rendering():
            return tokenizer.apply_chat_template([[text]])["input_ids"]
    return _ids(tokenizer, [prompt(tokenizer, [{"role": "user", "content": text}])])[0]


def prompt(tokenizer, messages: Messages) -> str:
    """The text of ``messages``, which end with the user's, by a Jinja template; an answer may follow."""
    return _rendered(tokenizer, messages, True)


def _turns(template, messages: Messages) -> Iterator[tuple[str, bool]]:
    """The pieces of PaddleNLP's templates, which support question-answer pairs only."""
    system = messages[0]["content"] if messages[0]["role"] == "system" else None
    turns = messages[system is not None :]
    roles = [message["role"] for message in turns]
    if roles != ["user", "assistant"] * (len(turns) // 2):
        raise UserError(f"PaddleNLP's chat template needs user and assistant in turn, not {', '.join(roles)}")
    if system is not None and template.system is None:
        raise UserError("the chat template has no place for a system message")
    context = {"is_training": True} | ({"system": system} if system is not None else {})
    text = template.render_system(context)
    for index in range(0, len(turns), 2):
        pair = [turns[index]["content"], turns[index + 1]["content"]]
        position = {"is_first": index == 0, "is_last": index + 2 == len(turns)}
        question, answer = template.render_conversation(pair, index // 2, context | position)
        yield text + question, False
        yield answer, True
        text = ""


def _ids(tokenizer, texts: list[str]) -> list[list[int]]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return tokenizer(texts, add_special_tokens=False)["input_ids"]
    return [one.ids for one in backend.encode_batch_fast(texts, add_special_tokens=False)]


@functools.lru_cache
def _compiled(source: str):
    """Jinja with the settings and functions of Hugging Face, so that its templates behave the same.

    ``strftime_now`` is missing on purpose: templates that find it insert today's date, and a run resumed
    tomorrow would train on different text. Without it they insert a fixed date.
    """
    from jinja2 import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message):
        raise TemplateError(message)

    class Generation(Extension):
        """``{% generation %}``, which marks answers in templates for transformers: renders its body."""

        tags = {"generation"}  # noqa: RUF012  (jinja2's interface)

        def parse(self, parser):
            next(parser.stream)
            return parser.parse_statements(["name:endgeneration"], drop_needle=True)

    class Sandbox(ImmutableSandboxedEnvironment):
        """Jinja without powers: a few characters can cost unbounded time and memory."""

        intercepted_binops = frozenset({"**"})

        def call_binop(self, context, operator, left, right):
            raise TemplateError(f"{left} ** {right} is too large for a chat template")

    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
    environment.globals["raise_exception"] = raise_exception
    environment.filters["tojson"] = functools.partial(json.dumps, ensure_ascii=False)
    try:
        with memory.limited(MOST_MEMORY):
            return environment.from_string(source)
    except Exception as error:  # raised by jinja2, and by Python for the code that jinja2 generates
        line = f" (line {error.lineno})" if getattr(error, "lineno", None) else ""
        raise UserError(f"the chat template is not valid Jinja: {error}{line}") from error


def _in_config(config: dict, file: Path) -> str | None:
    """The template in tokenizer_config.json: a string, or the entry named default of a list."""
    found = config.get("chat_template")
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    if found is not None and not isinstance(found, str):
        raise UserError(f"{file}: chat_template must be a Jinja template")
    return found


def _json(file: Path) -> dict:
    try:
        content = plain_json.loads(_text(file))
    except json.JSONDecodeError as error:
        raise UserError(f"{file} is not valid JSON: {error.msg}") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} must contain a JSON object")
    return content


def _text(file: Path) -> str:
    try:
        return plain_json.text_of(file)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error}") from error
