"""``pipeline``: text generation in two calls, as in Hugging Face's transformers and openMind.

    from llm_npu import apply_fused_kernel, pipeline

    apply_fused_kernel(use_fused_rope=False)         # optional: switches for models built later
    pipe = pipeline("text-generation", model="output/checkpoint-100", device="npu:0")
    pipe("def __init__(self")                        # [{"generated_text": "def __init__(self, name):..."}]
    pipe([{"role": "user", "content": "2 + 2?"}])    # applies the chat template: messages in, messages out
    pipe(["One prompt", "Another"], max_new_tokens=20, do_sample=True, top_p=0.9)
    pipe("Once upon", streamer=print)                # called with each new chunk of text

Importing this module imports no framework, because the device must be selected before paddle is imported.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from llm_npu import device as devices
from llm_npu.config import arguments
from llm_npu.core import console
from llm_npu.core.errors import UserError, caused_by_the_user
from llm_npu.data.text import chat_template, encoding, messages
from llm_npu.data.text.tokenizer import load_tokenizer, tokenizer_file
from llm_npu.models import ends, library, presets

from . import options as generation_options

TASKS = ("text-generation",)
NEW_TOKENS = 256  # default when neither the call nor generation_config.json sets a limit
SETTINGS: Mapping[str, tuple[type, object]] = {"return_full_text": (bool, True), "batch_size": (int, 8)}
Chat = Sequence[dict]
CONTEXT = 8  # prompt tokens decoded with the first new token, whose leading blank depends on them
INCOMPLETE = "\ufffd"  # decoded form of an incomplete character


def apply_fused_kernel(**switches: bool) -> None:
    """Fuse every supported model that is built after this call, by ``pipeline`` or by other code.

    Selects the device npu (card or virtual NPU) unless paddle is already imported.

    Args:
        switches: ``use_npu_fusion_attention``, ``use_fused_rms_norm``, ...: False disables the operator. If
            all switches are False, models are not changed. ``use_fused_linear_cross_entropy`` is off by
            default. With it, a training call with labels computes the loss without logits and returns None
            in their place.

    Raises:
        UserError: for an unknown switch, or a value other than True or False.
    """
    for name, on in switches.items():
        generation_options.known(name, tuple(arguments.FusedArguments().of_layers()))
        _check_setting(name, on, bool)
    if "paddle" not in sys.modules:
        devices.select("npu")
    _import_frameworks()
    from llm_npu import surgery

    surgery.apply_fused_kernel(**switches)


def pipeline(
    task: str,
    model: str | Path,
    device: str = "npu",
    dtype: str | None = None,
    tokenizer: str | Path | None = None,
    *,
    framework: str | None = None,
    backend: str | None = None,
    trust_remote_code: bool | None = None,
    **options,
) -> TextGeneration:
    """Load a model and return a ``TextGeneration`` that maps prompts to texts.

    Args:
        task: ``text-generation``.
        model: a checkpoint folder with config.json and safetensors files. Options in an optional
            generation_config.json become the defaults of each call.
        device: as for ``llm_npu.device.select``; must be set before paddle is imported.
        dtype: float32, bfloat16 or float16. Default: the stored dtype, or float32 on the CPU place.
        tokenizer: the tokenizer's folder; by default ``model``.
        framework: accepted without effect, as are ``backend`` and ``trust_remote_code``.
        options: switches of ``apply_fused_kernel``, which override an earlier call of it (all are True by
            default), and default arguments of ``TextGeneration``.

    Raises:
        UserError: before loading, for an unknown task, device, switch or option, a value out of range, and a
            folder without configuration, weights or tokenizer; later as
            ``llm_npu.data.text.tokenizer.load_tokenizer`` and ``pretrained.load_model``.
        RuntimeError: as ``llm_npu.device.select``.
    """
    if task not in TASKS:
        raise UserError(f"Unknown task {task!r:.80}; accepted: {', '.join(TASKS)}")
    accepted = (*generation_options.OPTIONS, *SETTINGS, *_switches())
    for name in options:
        generation_options.known(name, accepted)
    switches = {name: options.pop(name) for name in _switches() if name in options}
    settings = {name: options.pop(name) for name in SETTINGS if name in options}
    settings = _settings({name: default for name, (_, default) in SETTINGS.items()}, settings)
    for name, on in switches.items():
        _check_setting(name, on, bool)
    folder = _checked_folder(model)
    tokenizer = folder if tokenizer is None else Path(tokenizer).expanduser()
    tokenizer_file(tokenizer)
    defaults, notes = generation_options.of_folder(folder, options)
    generation_options.resolved(defaults, options)
    ignored = {"framework": framework, "backend": backend, "trust_remote_code": trust_remote_code}
    if ignored := [f"{name}={value!r}" for name, value in ignored.items() if value is not None]:
        notes.append(
            f"{', '.join(ignored)}: no effect. Models are built by {library.names.TITLE}, and code in a "
            "model folder is never executed."
        )
    chosen = _device(device)
    _import_frameworks()
    from llm_npu import patches
    from llm_npu.models import pretrained

    patches.apply()
    with _current(chosen.name), caused_by_the_user():
        tokens = load_tokenizer(tokenizer)
        loaded = pretrained.load_model(folder, dtype)
        report = _fuse(loaded, switches)
    for note in [*notes, *tokens.notes]:
        warnings.warn(note, stacklevel=2)
    return TextGeneration(
        *(loaded, tokens, chosen, report),
        options=generation_options.merged(defaults, options),
        settings=settings,
        ends=_ends(folder),
    )


class TextGeneration:
    """Generates text from prompts; created by ``pipeline``.

    Attributes:
        model: the PaddleNLP or PaddleFormers model, in evaluation mode.
        tokenizer: the model's tokenizer.
        device: ``llm_npu.device.Device``.
        report: the ``llm_npu.surgery.Report`` of fused layers; None without fused operators.
    """

    def __init__(self, model, tokenizer, device: devices.Device, report, *, options, settings, ends):
        self.model, self.tokenizer, self.device, self.report = model, tokenizer, device, report
        self._options, self._settings, self._ends = options, settings, ends
        self._process = encoding.KeptProcess(tokenizer)

    def __call__(
        self,
        prompts: str | Chat | Sequence[str] | Sequence[Chat],
        *,
        streamer: Callable[[str], object] | object | None = None,
        **options,
    ) -> list:
        """Continue ``prompts``: texts, or chats as lists of {"role": ..., "content": ...}.

        Returns ``[{"generated_text": ...}]`` for one prompt, or a list of these for several. The text
        includes the prompt; for a chat it is the list of messages including the answer.

        Args:
            streamer: called with each new chunk of text of a single prompt. An object whose ``put`` accepts
                token ids also works, for example the libraries' TextStreamer.
            options: ``max_new_tokens``, ``max_length``, ``do_sample``, ``top_k``, ``top_p``, ``temperature``,
                ``num_beams``, ``length_penalty``, ``repetition_penalty``; ``return_full_text``: False returns
                the new text only; ``batch_size``: prompts per batch. They override the pipeline's options,
                which override the folder's.

        Raises:
            UserError: for an invalid, empty or too long prompt; for an unknown option, a value out of range,
                and an option without effect; for a ``streamer`` with several prompts or beams.
        """
        changed = {name: options.pop(name) for name in SETTINGS if name in options}
        settings = _settings(self._settings, changed)
        decode, chosen = generation_options.resolved(self._options, options)
        alone = isinstance(prompts, str) or _is_chat(prompts)
        listed = [prompts] if alone else _listed(prompts)
        if streamer is not None:
            _check_streamer(streamer, len(listed), decode)
        with _current(self.device.name), self._process.running():
            ids = [self._ids(prompt) for prompt in listed]
            texts = []
            for first in range(0, len(ids), settings["batch_size"]):
                batch = ids[first : first + settings["batch_size"]]
                texts += self._continuations(batch, decode, dict(chosen), streamer)
        whole = settings["return_full_text"]
        results = [
            [{"generated_text": _joined(prompt, text) if whole else text}]
            for prompt, text in zip(listed, texts, strict=True)
        ]
        return results[0] if alone else results

    def _continuations(self, ids: list[list[int]], decode: str, chosen: dict, streamer) -> list[str]:
        from .generate import continuations, ends_of

        chosen.pop("do_sample", None)
        longest = max(map(len, ids))
        whole = chosen.pop("max_length", None)
        new = chosen.pop("max_new_tokens", NEW_TOKENS if whole is None else whole - longest)
        if new < 1:
            raise UserError(
                f"The prompt has {longest} tokens, which leaves no room within max_length={whole}; set "
                "max_new_tokens, or a larger max_length"
            )
        show = None
        if streamer is not None and not _takes_tokens(streamer):
            stops = {*ends_of(self.model.config, self.tokenizer), *self._ends}
            show = TextStreamer(streamer, self.tokenizer, ids[0], stops)
        stream = {} if streamer is None else {"streamer": show or streamer}
        texts, _ = continuations(
            self.model, self.tokenizer, ids, new, decode, eos_token_id=self._ends, **chosen, **stream
        )
        if show:
            show.finish(texts[0])
        return texts

    def _ids(self, prompt: str | Chat) -> list[int]:
        if isinstance(prompt, str):
            if not messages.is_unicode(prompt):
                raise UserError("a prompt is not valid Unicode; decode it with its actual encoding")
            return encoding.ids(self.tokenizer, [prompt], frame=True)[0].tolist()
        chat = messages.listed([*prompt], "role", "content", messages.OPENAI_ROLES, "the prompt")
        messages.check(chat, "the prompt")
        return chat_template.prompt(self.tokenizer, chat)


class TextStreamer:
    """A streamer for the library's ``generate``: calls ``show(text)`` with the text that each token adds.

    A character of several tokens is shown when its last token arrives. After ``finish``, the concatenated
    texts equal the continuation, unless the tokenizer decodes invalid UTF-8 differently as a whole.
    """

    def __init__(
        self, show: Callable[[str], object], tokenizer, prompt: Sequence[int], ends: Collection[int]
    ):
        self._show, self._tokenizer, self._ends = show, tokenizer, ends
        self._ids = [*prompt[-CONTEXT:]]
        self._start, self._done = 0, len(self._ids)  # ids[start:done] are the context of the next token
        self._shown = 0
        self._skip = library.names.STREAMS_PROMPT

    def put(self, tokens) -> None:
        """Receive the new token of each row, int64 [1, 1]; some libraries pass the prompt first."""
        if self._skip:
            self._skip = False
            return
        (token,) = tokens.flatten().tolist()
        if token in self._ends:
            return
        self._ids.append(token)
        rows = [self._ids[self._start : self._done], self._ids[self._start :]]
        before, text = encoding.decoded(self._tokenizer, rows)
        if len(text) > len(before) and not text.endswith(INCOMPLETE):
            self._start, self._done = self._done, len(self._ids)
            self._say(text[len(before) :])

    def end(self) -> None:
        """Called by the library after the last token; ``finish`` shows the remaining text."""

    def finish(self, text: str) -> None:
        """Show the remainder of the continuation ``text``."""
        if self._shown < len(text):
            self._say(text[self._shown :])

    def _say(self, text: str) -> None:
        self._shown += len(text)
        self._show(text)


def _is_chat(prompt: object) -> bool:
    return isinstance(prompt, (list, tuple)) and bool(prompt) and isinstance(prompt[0], dict)


def _listed(prompts: object) -> list:
    if not isinstance(prompts, (list, tuple)):
        raise UserError(
            f"a prompt is a {type(prompts).__name__}; accepted: text, messages, or a list of these"
        )
    if not prompts:
        raise UserError("There are no prompts; pass at least one")
    for prompt in prompts:
        if not isinstance(prompt, str) and not _is_chat(prompt):
            raise UserError(
                f"a prompt is {prompt!r:.40}; accepted: text, or messages as a list of objects with role and "
                "content"
            )
    return [*prompts]


def _check_streamer(streamer: object, prompts: int, decode: str) -> None:
    if not callable(streamer) and not _takes_tokens(streamer):
        raise UserError(
            f"streamer is a {type(streamer).__name__}; accepted: a function of a text, or an object with put "
            "and end"
        )
    if prompts > 1:
        raise UserError(f"streamer supports one prompt, not {prompts}; call the pipeline once per prompt")
    if decode == "beam":
        raise UserError("streamer does not support beam search; set num_beams=1")


def _takes_tokens(streamer: object) -> bool:
    return hasattr(streamer, "put") and hasattr(streamer, "end")


def _joined(prompt: str | Chat, text: str) -> str | list[dict]:
    return prompt + text if isinstance(prompt, str) else [*prompt, {"role": "assistant", "content": text}]


def _switches() -> tuple[str, ...]:
    """The switches of operators that generation uses."""
    of_layers = arguments.FusedArguments().of_layers()
    return tuple(name for name in of_layers if name != "use_fused_linear_cross_entropy")


def _settings(defaults: Mapping[str, object], explicit: Mapping[str, object]) -> dict[str, object]:
    explicit = {name: value for name, value in explicit.items() if value is not None}
    for name, value in explicit.items():
        _check_setting(name, value, SETTINGS[name][0])
    return {**defaults, **explicit}


def _check_setting(name: str, value: object, kind: type) -> None:
    if type(value) is not kind or (kind is int and value < 1):
        raise UserError(
            f"{name} is {value!r:.40}; accepted: {'True or False' if kind is bool else '1 or more'}"
        )


def _checked_folder(model: object) -> Path:
    if not isinstance(model, (str, Path)):
        raise UserError(f"model is a {type(model).__name__}; accepted: the folder of a checkpoint")
    folder = Path(model).expanduser()
    if not folder.is_dir():
        raise UserError(f"the model {str(model)!r:.200} is not a local folder; models are not downloaded")
    generation_options.check_family(presets.model_type(str(folder)))
    if not presets.has_weights(str(folder)):
        raise UserError(f"{folder} contains no weights ({presets.WEIGHTS}); specify a checkpoint folder")
    return folder


def _ends(folder: Path) -> tuple[int, ...]:
    """The end-of-text tokens in generation_config.json."""
    tokens = ends.of_folder(folder, {}, folder / ends.GENERATION_FILE)
    return () if tokens is None else tuple(tokens) if isinstance(tokens, list) else (tokens,)


def _device(name: str) -> devices.Device:
    """Select the device; the CPU place needs no selection before paddle is imported."""
    if name == "cpu" and "paddle" in sys.modules:
        return devices.Device("cpu", "cpu", "cpu was requested")
    return devices.select(name)


def _import_frameworks() -> None:
    if library.installed() not in sys.modules:
        console.import_frameworks(library.installed())


def _fuse(model, switches: Mapping[str, bool]):
    """Fuse ``model`` and return the report; None if all switches are off."""
    from llm_npu import surgery
    from llm_npu.surgery.apply import NoMatchingLayer
    from llm_npu.surgery.compat import in_force

    on = {name: in_force[name] for name in _switches() if in_force.get(name) is not None} | {**switches}
    surgery.remove_fused_kernels(model)
    if any(on.get(name, True) for name in _switches()):
        with contextlib.suppress(NoMatchingLayer):  # for example a dense model with only use_fused_moe
            return surgery.apply_fused_kernels(model, **on)
    return None


@contextlib.contextmanager
def _current(name: str) -> Iterator[None]:
    """Context in which ``name`` is Paddle's current device."""
    import paddle

    before = paddle.device.get_device()
    paddle.set_device(name)
    try:
        yield
    finally:
        paddle.set_device(before)
