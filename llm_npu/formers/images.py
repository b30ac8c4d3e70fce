"""Checks the images of a vision-language job before it starts: ``check(settings)``.

PaddleFormers skips a conversation whose image it cannot read, and trains on another one instead.
"""

from __future__ import annotations

import itertools
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path

from llm_npu.core.errors import UserError
from llm_npu.data.text.conversations import Conversations

MARK = "IMAGE_PLACEHOLDER"  # the variable that PaddleFormers reads
# Fields of conversations that no test trains on, as videos need a decoder that may be missing, with the
# variable of their mark and its default.
VIDEO, AUDIO = ("VIDEO_PLACEHOLDER", "<video>"), ("AUDIO_PLACEHOLDER", "<audio>")
OTHER_MEDIA = {"videos": VIDEO, "video_info": VIDEO, "audios": AUDIO}
SUFFIXES = (".json", ".jsonl")
ONE_IMAGE = ("paddleocr_vl", "paddleocr_vl_v15")  # get_rope_index reads one grid per conversation
# PaddleOCR-VL augments an image in its own mode; the color jitter fails in the others.
AUGMENTED_MODES = ("L", "LA", "RGB", "RGBA", "CMYK", "YCbCr")
CLIPPED_MODES = ("I", "F")  # and I;16: convert("RGB") clips their values at 255
LARGEST_RATIO = 200  # of the sides; the processors refuse more
SECONDS = 60  # for decoding; images after that are only opened


@dataclass(frozen=True)
class _Image:
    """An image that a conversation names, and the file and line of the conversation."""

    path: str
    where: str


def check(settings: Mapping[str, object]) -> list[str]:
    """Raise UserError for the first image that PaddleFormers would skip or read wrongly.

    Returns notes: how many images were opened, but not decoded.
    """
    if not str(settings.get("stage")).upper().startswith("VL-"):
        return []
    template = str(settings.get("template"))
    images: dict[str, _Image] = {}
    for file in _files(settings):
        for image in _named(file, template):
            images.setdefault(image.path, image)
    deadline = time.monotonic() + SECONDS

    def problem(image: _Image) -> tuple[bool, str | None]:
        decode = time.monotonic() < deadline
        return decode, _problem(image.path, template, decode)

    opened_only = 0
    with ThreadPool(min(8, os.cpu_count() or 1)) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of 90 to 179 million pixels: slow, but read
        problems = pool.imap(problem, images.values(), chunksize=16)
        for image, (decoded, reason) in zip(images.values(), problems, strict=True):
            if reason is not None:
                raise UserError(f"{image.where}: {image.path} {reason}")
            opened_only += not decoded
    if not opened_only:
        return []
    return [
        f"{opened_only:,} of {len(images):,} images were opened, but not decoded within {SECONDS} s; "
        "training skips those that are truncated."
    ]


def _files(settings: Mapping[str, object]) -> Iterator[Path]:
    """The files with conversations. Names of data sets on a hub are left to PaddleFormers."""
    parts = ["train", *(["eval"] if settings.get("do_eval") else [])]
    for part in parts:
        names, shares = (_entries(settings.get(f"{part}_dataset_{field}")) for field in ("path", "prob"))
        for name, share in itertools.zip_longest(names, shares[: len(names)]):
            if _is_zero(share):  # not read
                continue
            path = Path(name.partition("#")[0])  # PATH#SAMPLES
            if path.is_dir():
                yield from (file for file in sorted(path.iterdir()) if file.suffix.lower() in SUFFIXES)
            elif path.suffix.lower() in SUFFIXES:
                if not path.is_file():
                    raise UserError(f"{part}_dataset_path: {path} does not exist; name a .jsonl file")
                yield path


def _entries(text: object) -> list[str]:
    return [entry for entry in str("" if text is None else text).replace(" ", "").split(",") if entry]


def _is_zero(share: str | None) -> bool:
    try:
        return share is not None and float(share) == 0
    except ValueError:  # PaddleFormers refuses it
        return False


def _named(file: Path, template: str) -> Iterator[_Image]:
    """The images of the conversations in ``file``, without those at a URL."""
    mark = os.environ.get(MARK, "<image>")
    for where, record in Conversations(str(file), file.parent, (file,)).records():
        paths, contents = _paths(record, where), _contents(record)
        for field, (variable, default) in OTHER_MEDIA.items():
            other = os.environ.get(variable, default)
            if record.get(field):
                raise UserError(
                    f"{where} has {field}, which is not supported; accepted: images. Remove the line."
                )
            if any(other in content for content in contents):
                raise UserError(
                    f"{where} has the mark {other}; only images are supported; remove it, or set "
                    f"{variable} to another mark if {other} is text"
                )
        if isinstance(record.get("messages"), list):
            marks = sum(content.count(mark) for content in contents)
            if marks != len(paths):
                raise UserError(
                    f"{where} has {_count(marks, mark)} and {_count(len(paths), 'image')}; "
                    f"write one {mark} for each image"
                )
        if len(paths) > 1 and template in ONE_IMAGE:
            raise UserError(
                f"{where} has {len(paths)} images, but {template} supports one image per conversation; "
                "split the line"
            )
        for path in paths:
            if not path.startswith("http"):
                yield _Image(str(file.parent / path), where)


def _contents(record: Mapping[str, object]) -> list[str]:
    """The texts of the messages; none in erniekit's format."""
    messages = record.get("messages")
    messages = messages if isinstance(messages, list) else []
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    return [content for content in contents if isinstance(content, str)]


def _paths(record: Mapping[str, object], where: str) -> list[str]:
    images = record.get("images") or []
    if isinstance(information := record.get("image_info"), list):  # erniekit's format
        images = [entry.get("image_url") if isinstance(entry, dict) else None for entry in information]
    if not isinstance(images, list) or not all(isinstance(path, str) for path in images):
        raise UserError(f"{where}: images is {str(images)[:60]}; write a list of paths")
    return images


def _problem(path: str, template: str, decode: bool) -> str | None:
    """Why PaddleFormers cannot train on the image at ``path``, and what to do."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            width, height = image.size
            mode = image.mode
            if decode:
                image.load()
    except FileNotFoundError:
        return "does not exist; paths are relative to the file of the conversation"
    except UnidentifiedImageError:
        return "is not an image that Pillow can read; accepted: PNG, JPEG, WebP, TIFF, BMP and others"
    except Image.DecompressionBombError:
        most = 2 * Image.MAX_IMAGE_PIXELS // 10**6
        return f"has more than {most} million pixels, which Pillow refuses; scale it down"
    except (OSError, SyntaxError, ValueError) as error:  # SyntaxError: a damaged PNG
        return f"cannot be read: {str(error).strip('.') or type(error).__name__}; replace the file"
    if max(width, height) > LARGEST_RATIO * min(width, height):
        return f"is {width} x {height} pixels; the sides may differ by a factor of {LARGEST_RATIO}; crop it"
    return _wrong_mode(mode, template)


def _wrong_mode(mode: str, template: str) -> str | None:
    if mode.startswith(CLIPPED_MODES):
        return f"has the mode {mode}, whose values above 255 are clipped; save it with 8 bits per channel"
    if template in ONE_IMAGE and mode not in AUGMENTED_MODES:
        accepted = ", ".join(AUGMENTED_MODES)
        return f"has the mode {mode}; accepted by {template}: {accepted}. Save image.convert('RGB')"
    return None


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 or name.startswith('<') else 's'}"
