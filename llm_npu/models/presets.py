"""Presets of all families for random initialization, and configurations of local directories."""

from __future__ import annotations

import copy
import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace

from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json
from llm_npu.models import other_library

from . import degrees, ends, settings, upstream_config
from .checks import check_file, check_sizes
from .families import FAMILIES, config_class
from .paddleformers.vision_language import FAMILIES as VISION_LANGUAGE

CONFIG_FILE = "config.json"
WEIGHTS = "*.safetensors"

# Fields that differ from the defaults of the library's configuration.
PRESETS: Mapping[str, Mapping[str, object]] = {
    name: {"model_type": model_type} | fields
    for model_type, family in FAMILIES.items()
    for name, fields in family.presets.items()
}
# Names of the presets in the library's scripts.
ALIASES = {alias: name for family in FAMILIES.values() for alias, name in family.aliases.items()}


def model_config(name_or_path: str, **overrides):
    """The configuration of a preset or of a local directory with a config.json; never a download.

    ``overrides`` replace fields (``None`` keeps a field). Imports the library. Raises UserError for an
    unknown name (listing the presets and the nearest), a directory without a readable config.json, a family
    or field that the library does not support, and inconsistent sizes.
    """
    fields = fields_of(name_or_path)
    fields |= {field: value for field, value in overrides.items() if value is not None}
    family = FAMILIES[fields["model_type"]]
    # The library's defaults can differ from transformers': PaddleFormers ties Llama's embedding.
    fields = {"architectures": [f"{family.name}ForCausalLM"]} | family.defaults | fields
    check_sizes(family, SimpleNamespace(**fields), name_or_path)  # before the class uses them
    fields = settings.rotary.as_library(family, settings.fields.as_library(family, fields))
    try:
        config = config_class(family.model_type).from_dict(copy.deepcopy(fields))
    except (TypeError, ValueError, KeyError) as error:
        raise UserError(
            f"the configuration of {name_or_path} is not a valid {family.name}: {error}"
        ) from error
    check_sizes(family, config, name_or_path)
    return degrees.undivided(config)  # the file may contain parallel degrees of its training run


def model_type(name_or_path: str) -> str:
    """The family, a key of ``families.FAMILIES``. Raises UserError as ``model_config``."""
    return fields_of(name_or_path)["model_type"]


def unknown_fields(directory: str) -> list[str]:
    """The unused fields of a directory's config.json; [] for an invalid file."""
    try:
        fields = _read(Path(directory))
    except UserError:
        return []  # reported when the model is built
    return settings.fields.unknown(FAMILIES[fields["model_type"]], fields)


def has_weights(path: str) -> bool:
    """Whether ``path`` is a directory with model weights (safetensors)."""
    return os.path.isdir(path) and next(Path(path).glob(WEIGHTS), None) is not None


def is_preset(name: str) -> bool:
    """Whether ``name`` is a preset or an alias of one in the library's scripts."""
    return name in PRESETS or name in ALIASES


def fields_of(name_or_path: str, others: Iterable[str] = ()) -> dict[str, object]:
    """The fields set by a preset or a directory's config.json, including ``model_type``.

    Imports no framework; other fields have the defaults of the library's configuration class. Raises
    UserError as ``model_config``, except for inconsistent sizes; ``others`` are listed as further known
    names.
    """
    name = ALIASES.get(name_or_path, name_or_path)
    if name in PRESETS:
        return dict(PRESETS[name])
    if name and os.path.isdir(name):  # False for an invalid file name
        return _read(Path(name))
    raise UserError(_unknown(name_or_path, [*PRESETS, *others]))


def _read(directory: Path) -> dict[str, object]:
    file = directory / CONFIG_FILE
    try:
        fields = plain_json.mapping(file)
    except FileNotFoundError:
        raise UserError(f"the model directory {directory} has no {CONFIG_FILE}") from None
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    if isinstance(kind := fields.get("model_type"), str) and kind in VISION_LANGUAGE:
        raise UserError(
            f"{file} describes {VISION_LANGUAGE[kind].title}, a vision-language model; train it with "
            "PaddleFormers, by llm-npu formers train FILE.yaml"
        )
    fields = upstream_config.from_upstream(fields, file)
    kind = fields.get("model_type") or "one that names no model_type"
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise UserError(
            f"{file} describes {kind}, but this script supports the model_type {', '.join(FAMILIES)}."
            f"{other_library.hint(kind)}"
        )
    check_file(FAMILIES[kind], fields, file)
    if (tokens := ends.of_folder(directory, fields, file)) is not None:
        fields[ends.FIELD] = tokens
    return fields


def _unknown(name: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(name.rsplit("/", 1)[-1].lower()[:80], known, n=1, cutoff=0.4)
    hint = other_library.hint(name) or (f" Did you mean {nearest[0]}?" if nearest else "")
    return (
        f"{name!r:.200} is neither a preset ({', '.join(known)}) nor a local directory with a {CONFIG_FILE}, "
        f"and nothing is downloaded.{hint}"
    )
