"""``pipeline``: text from a model's folder in two calls, as in Hugging Face's transformers and openMind.

    from llm_npu import apply_fused_kernel, pipeline

    apply_fused_kernel(use_fused_rope=False)         # optional: switches for the models that follow
    pipe = pipeline("text-generation", model="output/checkpoint-100", device="npu:0")
    pipe("def __init__(self")                        # [{"generated_text": "def __init__(self, name):..."}]
    pipe([{"role": "user", "content": "2 + 2?"}])    # by the chat template: messages in, messages out
    pipe(["One prompt", "Another"], max_new_tokens=20, do_sample=True, top_p=0.9)
    pipe("Once upon", streamer=print)                # called with each piece of text

Importing this module imports no framework: the device is chosen before.
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
NEW_TOKENS = 256  # where neither a call nor generation_config.json says how many
SETTINGS: Mapping[str, tuple[type, object]] = {"return_full_text": (bool, True), "batch_size": (int, 8)}
Chat = Sequence[dict]
CONTEXT = 8  # tokens of the prompt before the first new one, on which its blank depends
INCOMPLETE = "\ufffd"  # how the bytes of an incomplete character are decoded


def apply_fused_kernel(**switches: bool) -> None:
    """Fuse every supported model that is built from now on, by ``pipeline`` and by other programs.

    Chooses the device npu, the card or the virtual NPU, unless paddle is imported already.

    Args:
        switches: ``use_npu_fusion_attention``, ``use_fused_rms_norm``, ...: False leaves the operator out.
            All switches False leaves models as they are. ``use_fused_linear_cross_entropy=True``: a model
            that is called with labels in training computes their loss without logits, and returns None
            instead of them; it is off by default, because only a training knows the size of its logits.

    Raises:
        UserError: for an unknown switch, and for a value that is not True or False.
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
    """A function from prompts to texts: ``TextGeneration``, with a model on a device.

    Args:
        task: ``text-generation``.
        model: the folder of a checkpoint: config.json, safetensors files, and maybe generation_config.json,
            whose options are the defaults of each call.
        device: as ``llm_npu.device.select`` takes it, before anything imports paddle.
        dtype: float32, bfloat16 or float16; by default as stored, on the CPU place float32.
        tokenizer: its folder; by default ``model``.
        framework: accepted without effect, as are ``backend`` and ``trust_remote_code``.
        options: switches of ``apply_fused_kernel``, which win over its own (all True without a call of it);
            and defaults for the arguments of ``TextGeneration``.

    Raises:
        UserError: before anything is loaded, for an unknown task, device, switch or option, for a value out
            of range, and for a folder without configuration, weights or tokenizer; then as
            ``llm_npu.data.text.tokenizer.load_tokenizer`` and ``pretrained.load_model``.
        RuntimeError: as ``llm_npu.device.select``.
    """
    if task not in TASKS:
        raise UserError(f"There is no task {task!r:.80}; accepted: {', '.join(TASKS)}.")
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
            f"{', '.join(ignored)}: no effect. Models are those of {library.names.TITLE}, and no code of a "
            "model's folder runs."
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
    """Text from prompts: ``pipeline`` makes it.

    Attributes:
        model: the model of PaddleNLP or PaddleFormers, in evaluation mode.
        tokenizer: its tokenizer.
        device: ``llm_npu.device.Device``.
        report: ``llm_npu.surgery.Report``: which layers are fused; None without fused operators.
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
        """Continue ``prompts``: text, or messages ({"role": ..., "content": ...}) with an answer to come.

        ``[{"generated_text": ...}]`` for one prompt, a list of these for several. The text is the prompt and
        its continuation; of messages, all messages and the answer.

        Args:
            streamer: called with each piece of the new text of one prompt; or an object whose ``put`` gets
                the token ids, such as the libraries' TextStreamer.
            options: ``max_new_tokens``, ``max_length``, ``do_sample``, ``top_k``, ``top_p``, ``temperature``,
                ``num_beams``, ``length_penalty``, ``repetition_penalty``; ``return_full_text``: False for the
                new text only; ``batch_size``: prompts at once. They win over the pipeline's, which win over
                the folder's.

        Raises:
            UserError: for prompts of another kind, without text, or too long for the model; for an unknown
                option, a value out of range, and an option without effect; for a ``streamer`` with several
                prompts or beams.
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
                f"A prompt of {longest} tokens leaves none of max_length {whole}; give max_new_tokens, or a "
                "larger max_length"
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
                raise UserError("a prompt is not valid Unicode; decode it from the encoding that it has")
            return encoding.ids(self.tokenizer, [prompt], frame=True)[0].tolist()
        chat = messages.listed([*prompt], "role", "content", messages.OPENAI_ROLES, "the prompt")
        messages.check(chat, "the prompt")
        return chat_template.prompt(self.tokenizer, chat)


class TextStreamer:
    """A streamer for the library's ``generate``: calls ``show(text)`` with what each token adds to the text.

    A character of several tokens is shown with its last one. After ``finish`` the joined texts are the
    continuation, except that tokenizers may decode invalid UTF-8 differently as a whole.
    """

    def __init__(
        self, show: Callable[[str], object], tokenizer, prompt: Sequence[int], ends: Collection[int]
    ):
        self._show, self._tokenizer, self._ends = show, tokenizer, ends
        self._ids = [*prompt[-CONTEXT:]]
        self._start, self._done = 0, len(self._ids)  # ids[start:done] stand in front of what comes next
        self._shown = 0
        self._skip = library.names.STREAMS_PROMPT

    def put(self, tokens) -> None:
        """The new token of each row, int64 [1, 1]; with some libraries first the prompt."""
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
        """The library calls this after the last token; ``finish`` shows the rest."""

    def finish(self, text: str) -> None:
        """Show the rest of the continuation ``text``."""
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
        raise UserError("There is no prompt; give at least one.")
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
        raise UserError(f"streamer follows one prompt, not {prompts}; give them one after the other")
    if decode == "beam":
        raise UserError("streamer cannot follow beam search; give num_beams=1")


def _takes_tokens(streamer: object) -> bool:
    return hasattr(streamer, "put") and hasattr(streamer, "end")


def _joined(prompt: str | Chat, text: str) -> str | list[dict]:
    return prompt + text if isinstance(prompt, str) else [*prompt, {"role": "assistant", "content": text}]


def _switches() -> tuple[str, ...]:
    """Those of operators that generation runs."""
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
            f"{name} is {value!r:.40}; accepted: {'True or False' if kind is bool else '1 or more'}."
        )


def _checked_folder(model: object) -> Path:
    if not isinstance(model, (str, Path)):
        raise UserError(f"model is a {type(model).__name__}; accepted: the folder of a checkpoint.")
    folder = Path(model).expanduser()
    if not folder.is_dir():
        raise UserError(f"the model {str(model)!r:.200} is not a local directory, and nothing is downloaded")
    generation_options.check_family(presets.model_type(str(folder)))
    if not presets.has_weights(str(folder)):
        raise UserError(f"{folder} contains no weights ({presets.WEIGHTS}); give the folder of a checkpoint")
    return folder


def _ends(folder: Path) -> tuple[int, ...]:
    """The end-of-text tokens of generation_config.json."""
    tokens = ends.of_folder(folder, {}, folder / ends.GENERATION_FILE)
    return () if tokens is None else tuple(tokens) if isinstance(tokens, list) else (tokens,)


def _device(name: str) -> devices.Device:
    """The CPU place is there beside every device; any other choice is made before paddle is imported."""
    if name == "cpu" and "paddle" in sys.modules:
        return devices.Device("cpu", "cpu", "cpu was asked for")
    return devices.select(name)


def _import_frameworks() -> None:
    if library.installed() not in sys.modules:
        console.import_frameworks(library.installed())


def _fuse(model, switches: Mapping[str, bool]):
    """The report about the layers of ``model``; None if all switches are off."""
    from llm_npu import surgery
    from llm_npu.surgery.apply import NoMatchingLayer
    from llm_npu.surgery.compat import in_force

    on = {name: in_force[name] for name in _switches() if in_force.get(name) is not None} | {**switches}
    surgery.remove_fused_kernels(model)
    if any(on.get(name, True) for name in _switches()):
        with contextlib.suppress(NoMatchingLayer):  # such as a dense model with use_fused_moe alone
            return surgery.apply_fused_kernels(model, **on)
    return None


@contextlib.contextmanager
def _current(name: str) -> Iterator[None]:
    """``name`` is Paddle's device inside."""
    import paddle

    before = paddle.device.get_device()
    paddle.set_device(name)
    try:
        yield
    finally:
        paddle.set_device(before)
