"""What the documentation's build writes: the flags, from their fields, and the checks of the doctor."""

from __future__ import annotations

import dataclasses
import typing

from mkdocs.structure.files import File

HEAD = """# Flags

Those of `python scripts/run_llama_npu.py` that this project adds or gives another default. PaddleNLP's other
`TrainingArguments` are accepted, too: `--help` lists them all. A YAML or JSON file (`--config`) has the same
names.
"""


def on_files(files, config):
    """Called by mkdocs, with the files of docs/."""
    for name, text in {"reference/flags.md": flags()}.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    """Called by mkdocs for each page: puts tables in the places that are marked for them."""
    mark = "<!-- table: checks of the doctor -->"
    return markdown.replace(mark, checks()) if mark in markdown else None


def checks() -> str:
    """The table of the doctor's checks, from their docstrings."""
    from llm_npu.doctor.checks import described

    rows = [f"| `{name}` | {looks_at} | {problem} |" for name, looks_at, problem in described()]
    return "\n".join(["| check | looks at | is a problem |", "|---|---|---|", *rows]) + "\n"


def flags() -> str:
    """The page of the flags."""
    from llm_npu.config import DataArguments, FusedArguments, ModelArguments
    from llm_npu.config.training import PretrainArguments

    classes = {
        "Model": ModelArguments,
        "Data": DataArguments,
        "Fused operators": FusedArguments,
        "Training": PretrainArguments,
    }
    return "\n".join([HEAD, *(f"## {title}\n\n{_table(arguments)}" for title, arguments in classes.items())])


def _table(arguments: type) -> str:
    rows = ["| flag | type | default | |", "|---|---|---|---|"]
    for field in dataclasses.fields(arguments):
        if field.name in arguments.__annotations__:  # its own, not PaddleNLP's
            shown = str(field.metadata.get("help", "")).replace("|", "\\|")
            rows.append(f"| `--{field.name}` | {_type(field.type)} | `{field.default}` | {shown} |")
    return "\n".join(rows) + "\n"


def _type(kind) -> str:
    if isinstance(kind, str):
        return kind.removeprefix("Optional[").removesuffix("]")
    chosen = [each for each in typing.get_args(kind) if each is not type(None)] or [kind]
    return " or ".join(each.__name__ for each in chosen)
