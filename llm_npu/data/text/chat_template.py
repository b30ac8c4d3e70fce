"""Reads chat templates from files, attaches them to a tokenizer, and renders messages to text.

    chat_template.attach(tokenizer, source)    # load_tokenizer does this if the folder has a template
    tokenizer.apply_chat_template(messages)    # PaddleNLP's and Hugging Face's call for inference
    chat_template.prompt(tokenizer, messages)  # token ids up to where the answer begins

A message is {"role": ..., "content": ...} with further keys that the template reads (``messages``). A
template is either Jinja text, as in Hugging Face's tokenizer_config.json or chat_template.jinja, or the
mapping of PaddleNLP's chat_template.json, {"system": ..., "conversation": [user, bot], "query": ...}.
``turns`` locates the answers in the text.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import memory, plain_json

from . import encoding
from .messages import is_unicode

JSON_FILE = "chat_template.json"
JINJA_FILE = "chat_template.jinja"
FILES = (JSON_FILE, JINJA_FILE)  # next to the tokenizer; the first existing file is used
CONFIG_FILE = "tokenizer_config.json"
MOST_MEMORY = 2 << 30  # bytes of memory for rendering a conversation

# The default of tokenizers without a template: "<bos>User: question\nAssistant: answer<eos>User: ...".
DEFAULT = (
    "{{ bos_token if bos_token is defined }}"
    "{% for message in messages %}"
    "{{ message['role'] | capitalize }}: {{ message['content'] }}"
    "{{ eos_token if message['role'] == 'assistant' else '\\n' }}"
    "{% endfor %}"
    "{{ 'Assistant:' if add_generation_prompt }}"
)

GENERATION = re.compile(r"\{%[-+]?\s*generation\b")
# Markers that no conversation contains; used only in this module.
START, STOP = (f"\ue000{secrets.randbelow(10**18):018d}{end}\ue001" for end in "<>")

Messages = Sequence[dict[str, object]]


def find(folder: str | Path) -> str | dict | None:
    """The template in a tokenizer's folder, or None. Empty files are ignored.

    PaddleNLP's file takes precedence, as in PaddleNLP. Raises UserError if a file cannot be read.
    """
    for name in FILES:
        if (Path(folder) / name).is_file() and _text(Path(folder) / name).strip():
            return read(Path(folder) / name)
    file = Path(folder) / CONFIG_FILE
    return _in_config(plain_json.mapping(file), file) if file.is_file() else None


def read(file: str | Path) -> str | dict:
    """The template in a file: JSON (``.json``) or Jinja. Raises UserError if it is empty or unreadable."""
    file = Path(file)
    if not _text(file).strip():
        raise UserError(f"{file} is empty; specify a file with a chat template")
    if file.suffix != ".json":
        return _text(file)
    content = plain_json.mapping(file)
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
            f"{file} requires conversation, the templates of a user turn and a bot turn; system and query "
            "are optional"
        )
    return content


def attach(tokenizer, source: str | dict) -> None:
    """Set the tokenizer's template, which `save` writes. Raises UserError if ``source`` is not a template."""
    if not is_unicode(source):
        raise UserError("the chat template is not valid Unicode")
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
            f"{JSON_FILE} with a conversation is PaddleNLP's format, but PaddleFormers' tokenizers need "
            f"Jinja; set --chat_template to a {JINJA_FILE}"
        )


def source_of(tokenizer) -> str | dict | None:
    """The source of the tokenizer's template, or None."""
    if tokenizer.chat_template is None:
        return None
    source = tokenizer.init_kwargs.get("chat_template")
    return vars(tokenizer.chat_template) if source is None else source


def fingerprint(tokenizer) -> str:
    """A hash of everything that determines the text of messages: the template and its special tokens."""
    content = f"{source_of(tokenizer)} {sorted(tokenizer.special_tokens_map.items())}"
    return hashlib.sha256(content.encode()).hexdigest()


def save(tokenizer, folder: str | Path) -> None:
    """``save_pretrained``, and the template, since PaddleNLP's fast tokenizers omit chat_template.json."""
    tokenizer.save_pretrained(str(folder))
    source = source_of(tokenizer)
    if isinstance(source, dict):
        (Path(folder) / JSON_FILE).write_text(json.dumps(source, ensure_ascii=False), encoding="utf-8")


@dataclass(frozen=True)
class Rendered:
    """Rendered text; ``marks`` are the spans (start, stop) inside ``{% generation %}``."""

    text: str
    marks: tuple[tuple[int, int], ...] = ()


def rendered(tokenizer, messages: Messages, prompt: bool, tools: Sequence[dict] | None = None) -> Rendered:
    """Render ``messages`` with the tokenizer's Jinja template; with ``prompt``, up to the next answer."""
    source = source_of(tokenizer)
    template = _compiled(source, marked=marks_answers(tokenizer))
    variables = {
        "tools": tools,
        "documents": None,
        **tokenizer.special_tokens_map,
    }  # as in Hugging Face's call
    with rendering():
        text = template.render(messages=list(messages), add_generation_prompt=prompt, **variables)
    return _without_marks(text)


def marks_answers(tokenizer) -> bool:
    """Whether the template marks answers with ``{% generation %}``."""
    source = source_of(tokenizer)
    return isinstance(source, str) and GENERATION.search(source) is not None


def _without_marks(text: str) -> Rendered:
    parts, spans, length = re.split(f"({START}|{STOP})", text), [], 0
    starts: list[int] = []
    for part in parts:
        if part == START:
            starts.append(length)
        elif part == STOP:
            spans.append((starts.pop(), length))
        else:
            length += len(part)
    return Rendered("".join(part for part in parts if part not in (START, STOP)), tuple(sorted(spans)))


@contextlib.contextmanager
def rendering() -> Iterator[None]:
    """Convert any error of a template to a UserError: templates are third-party programs."""
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
        raise UserError(f"the chat template fails: {error}") from error


def question(tokenizer, text: str) -> list[int]:
    """The token ids of a prompt with a single user message. Raises UserError as `prompt`."""
    return prompt(tokenizer, [{"role": "user", "content": text}])


def prompt(tokenizer, messages: Messages) -> list[int]:
    """The token ids of ``messages`` up to where the assistant's answer begins.

    Raises UserError if there is no template, if it rejects the messages, and if the last message is an
    answer.
    """
    source = source_of(tokenizer)
    if source is None:
        raise UserError("the tokenizer has no chat template; use the prompts as text, not as messages")
    if not messages or messages[-1]["role"] == "assistant":
        raise UserError(
            "the last message is an answer; end with a message to the assistant, such as a user message"
        )
    if isinstance(source, dict):
        return _prompt_of_pairs(tokenizer, messages)
    return ids_of(tokenizer, [rendered(tokenizer, messages, True).text])[0]


def _prompt_of_pairs(tokenizer, messages: Messages) -> list[int]:
    """Render a prompt with PaddleNLP's template: question-answer pairs and an optional system message."""
    has_system = messages[0]["role"] == "system"
    turns = messages[has_system:]
    roles = [message["role"] for message in turns]
    if roles != (["user", "assistant"] * len(turns))[: len(turns)]:
        raise UserError(
            f"PaddleNLP's chat template needs alternating user and assistant messages, not {', '.join(roles)}"
        )
    if has_system and source_of(tokenizer).get("system") is None:
        raise UserError("the chat template has no place for a system message")
    texts = [message["content"] for message in turns]
    pairs = [texts[first : first + 2] for first in range(0, len(texts), 2)]
    with rendering():
        context = {"system": messages[0]["content"]} if has_system else {}
        return tokenizer.apply_chat_template(pairs, context_data=context)["input_ids"]


def ids_of(tokenizer, texts: list[str]) -> list[list[int]]:
    """The token ids of each text; text that spells a special token becomes that token."""
    return [ids.tolist() for ids in encoding.ids(tokenizer, texts)]


@functools.lru_cache
def _compiled(source: str, marked: bool = False):
    """Compile the template with Hugging Face's Jinja settings and functions.

    ``strftime_now`` is missing on purpose: templates would insert today's date, and a run resumed tomorrow
    would train on different text. Without it, templates insert a fixed date.

    Args:
        marked: Put `START` and `STOP` around the text in ``{% generation %}``.
    """
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message):
        raise TemplateError(message)

    class Generation(Extension):
        """``{% generation %}``, which marks answers in transformers' templates."""

        tags = {"generation"}  # noqa: RUF012  (jinja2's interface)

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            if not marked:
                return body
            start, stop = (nodes.Output([nodes.TemplateData(mark)], lineno=line) for mark in (START, STOP))
            return [start, *body, stop]

    class Sandbox(ImmutableSandboxedEnvironment):
        """Jinja without the ** operator, which could use unbounded time and memory."""

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
    template = config.get("chat_template")
    if isinstance(template, str) and not template.strip():
        return None
    if isinstance(template, list):
        entries = (entry for entry in template if isinstance(entry, dict))
        template = {entry.get("name"): entry.get("template") for entry in entries}.get("default")
    if template is not None and not isinstance(template, str):
        raise UserError(f"{file}: chat_template must be a Jinja template")
    return template


def _text(file: Path) -> str:
    try:
        return plain_json.text_of(file)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error}") from error
