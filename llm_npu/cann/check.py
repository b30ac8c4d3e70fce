"""Compares the installed plugin with the installed CANN, by reading their files.

    report = compare(plugin, cann, chip)      # report.gaps: missing parts and their users
    print(report.summary())

The plugin looks a function up in ``libcust_opapi.so``, then in ``libopapi.so`` and the libraries that these
need (``dlsym``). A missing function or operator type fails only when a kernel calls it, possibly late in a
run; this comparison finds all of them in advance.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paddle_fused.cann_installation import Cann, library_folders

from . import chip as chips
from . import float_status
from .chip import Chip
from .elf import Closure, UnreadableLibrary, closure, find
from .needs import WORKSPACE, Needs, of_plugin, read, symbols

PLUGIN = "libpaddle-custom-npu.so"
CUSTOM, OPERATORS = "libcust_opapi.so", "libopapi.so"
PARTS = tuple(f"libopapi_{part}.so" for part in ("math", "nn", "cv", "transformer", "legacy"))
# Symbols of CANN and ATB; the system provides those of libc and libstdc++.
OF_CANN = re.compile(r"acl|Hccl|hccl|ge[A-Z]|_ZNK?3atb|_ZNK?3Mki|_ZNK?2ge")
OF_PADDLE = re.compile(r"_ZNK?(?:3phi|6paddle|6common)")
DTYPES = {"float": "float32", "bf16": "bfloat16"}  # names in the operator files that differ from Paddle's
BUILT_INTO_GE = frozenset(read("plugin.json")["built_into_ge"])  # types in no operator file
NULL = "the plugin calls a null pointer, which crashes the process"
SOURCE = "Run `source` with the set_env.sh of CANN (for ATB's libraries, also that of nnal/atb)."
REINSTALL = "Install the CANN that the plugin was built with."
AI_CPU = ("aicpu/aicpu_kernel/config", "aicpu/config", "aicpu/tf_kernel/config")

Kind = Literal["library", "symbol", "function", "type", "dtype", "chip"]


@dataclass(frozen=True)
class Gap:
    """A part that the plugin uses and CANN lacks.

    Attributes:
        kind: the kind of part.
        name: the library, symbol, aclnn function, operator type (with a dtype: "GatherV2 for bfloat16"), or
            the folder of the chip's operators.
        stops: whether Llama training fails without it.
        users: the kernels and training steps that call it.
        effect: the effect of its absence.
        fix: the remedy.
    """

    kind: Kind
    name: str
    stops: bool
    users: str
    effect: str
    fix: str

    @property
    def message(self) -> str:
        return f"{self.name} is missing, used by {self.users}: {self.effect}"


@dataclass(frozen=True)
class Report:
    """The result of a comparison.

    Attributes:
        functions, types: the number of aclnn functions and aclop types that Llama training needs.
        chip: the family whose operator files were read; None if the chip is unknown.
        gaps: all missing parts; those that stop training first.
        unreadable: the files that could not be read, with the reasons; their contents are unknown.
    """

    functions: int
    types: int
    chip: Chip | None
    gaps: tuple[Gap, ...]
    unreadable: tuple[str, ...] = ()

    @property
    def stopping(self) -> tuple[Gap, ...]:
        return tuple(gap for gap in self.gaps if gap.stops)

    def summary(self) -> str:
        """One line: the needs of Llama training, and whether CANN meets them."""
        needs = f"training Llama needs {self.functions} aclnn functions and {self.types} aclop types"
        if self.stopping:
            return f"{needs}: {len(self.stopping)} required parts are missing"
        if self.unreadable:
            return f"{needs}: none known to be missing, but {len(self.unreadable)} files could not be read"
        on = f" for the {self.chip.title}" if self.chip else " (aclop types not checked: unknown chip)"
        return f"{needs}: all available{on}"


def compare(
    plugin: Path,
    cann: Cann,
    chip: Chip | None,
    *,
    environ: Mapping[str, str] = os.environ,
    paddle: Path | None = None,
    root: Path = Path("/"),
) -> Report:
    """Report the parts that CANN lacks for the plugin in the folder or file ``plugin``.

    Args:
        chip: the cards' family. By default the only family with operator files; if there are several, types
            are not checked.
        environ: its LD_LIBRARY_PATH is searched before CANN's lib64, its ASCEND_OPP_PATH replaces CANN's opp.
        paddle: Paddle's package folder, to detect a plugin built for another Paddle; None skips this check.
    """
    needs = of_plugin()
    file = plugin / PLUGIN if plugin.is_dir() else plugin
    folders = [*library_folders(environ), cann.folder / "lib64"]
    opp = Path(environ.get("ASCEND_OPP_PATH") or cann.folder / "opp")
    installed = chips.of_operator_files(opp)
    if chip is None and len(installed) == 1:
        chip = installed[0]
    gaps: list[Gap] = []
    unreadable: list[str] = []
    for part in (
        lambda: _libraries(file, folders, paddle, root),
        lambda: _functions(file, needs, folders, root),
        lambda: _types(needs, opp, chip, installed),
    ):
        try:
            gaps += part()
        except UnreadableLibrary as failure:
            unreadable.append(str(failure))
    gaps.sort(key=lambda gap: not gap.stops)
    return Report(
        len(needs.functions_of_training), len(needs.types_of_training), chip, tuple(gaps), tuple(unreadable)
    )


def _libraries(plugin: Path, folders: Sequence[Path], paddle: Path | None, root: Path) -> Iterator[Gap]:
    of_paddle = [paddle / "libs", paddle / "base"] if paddle else []
    loaded = closure(plugin, [*folders, *of_paddle], root)
    for name, user in loaded.missing.items():
        if (
            paddle is None
            and user == plugin
            and not name.startswith(("libascend", "libhccl", "libacl", "libatb"))
        ):
            continue  # one of Paddle's libraries, whose folder is unknown
        yield Gap("library", name, True, user.name, "the plugin cannot be loaded", SOURCE)
    own = loaded.libraries[plugin.name]
    unresolved = loaded.lacks(name for name in own.undefined if OF_CANN.match(name))
    for name in unresolved:
        yield Gap("symbol", name, True, plugin.name, *_reason_of_symbol(name))
    if paddle is not None:
        core = find("libpaddle.so", of_paddle)
        names = [name for name in own.undefined if OF_PADDLE.match(name)]
        lacking = loaded.lacks(names)
        if core is not None and lacking:
            lacking = closure(core, of_paddle, root).lacks(lacking)
        for name in lacking:
            effect = "the installed paddlepaddle does not export it"
            fix = "Install paddlepaddle and paddle-custom-npu of the same release."
            yield Gap("symbol", name, True, plugin.name, effect, fix)


def _reason_of_symbol(name: str) -> tuple[str, str]:
    """The effect of an unresolved symbol of CANN or ATB, and the fix."""
    if "3Mki2DlC" in name:
        age = "8.3.RC1 or later" if name.endswith("Eb") else "8.2.RC1 or earlier"
        effect = f"the plugin needs libmki.so of NNAL {age}, but a different one is found first"
        return effect, "Install the NNAL of CANN's release, and source its set_env.sh with --cxx_abi=1."
    effect = "none of the plugin's libraries exports it"
    return effect, "Install the CANN that the plugin was built with, or a plugin built for this CANN."


def _functions(plugin: Path, needs: Needs, folders: Sequence[Path], root: Path) -> Iterator[Gap]:
    library = find(OPERATORS, folders)
    if library is None:
        split = [name for name in PARTS if find(name, folders)]
        users, effect = f"all aclnn calls of {plugin.name}", "every aclnn call is through a null pointer"
        yield Gap("library", OPERATORS, True, users, effect, _without_libopapi(split))
        return
    handles = [closure(library, folders, root)]
    for name, user in handles[0].missing.items():
        yield Gap("library", name, True, user.name, f"{user.name} cannot be loaded", SOURCE)
    custom = find(CUSTOM, folders)
    if custom is not None:
        handles.insert(0, closure(custom, folders, root))
    called = closure(plugin, [], root).libraries[plugin.name].strings(rb"aclnn[A-Z]\w{1,80}")
    called = {name.removesuffix(WORKSPACE) for name in called} or set(needs.libraries)
    for name in sorted(called):
        if _lacks(handles, symbols([name])):
            yield _gap_of_function(name, needs)
    for name in needs.looked_up:
        if _lacks(handles, (name,)):
            yield Gap("function", name, True, "every aclnn call", NULL, REINSTALL)


def _lacks(handles: Sequence[Closure], names: Iterable[str]) -> bool:
    return not all(any(handle.exports(name) for handle in handles) for name in names)


def _without_libopapi(split: Sequence[str]) -> str:
    if split:
        return (
            f"CANN has {', '.join(split)} instead: run `llm-npu cann_bridge write`, or install a CANN with "
            f"{OPERATORS} (up to 9.2.0-beta.1)."
        )
    return SOURCE


def _gap_of_function(name: str, needs: Needs) -> Gap:
    use, part = needs.use(name), needs.libraries.get(name)
    fix = f"Install CANN 8.5.0 to 9.2.0-beta.1, which have it in libopapi_{part}.so." if part else REINSTALL
    if use.unguarded or not use.kernels:
        return Gap("function", name, bool(use.steps), use.text, NULL, fix)
    effect = f"the kernels run {', '.join(needs.fallback(name)) or 'an aclop type'} instead"
    return Gap("function", name, False, use.text, effect, fix)


def _types(needs: Needs, opp: Path, chip: Chip | None, installed: Sequence[Chip]) -> Iterator[Gap]:
    if chip is None:
        return
    if chip not in installed:
        old, new = (package or "the operator package of the chip" for package in chip.packages)
        effect = f"this CANN has operators for {chips.titles(installed)}, but the cards are {chip.title}"
        fix = f"Install {new} (before CANN 8.5.0: {old}) of CANN's release."
        yield Gap("chip", f"{opp / chips.CONFIG / chip.folder}", True, "all operators", effect, fix)
        return
    another = f"Install the operator package of another CANN release for the {chip.title}."
    ai_core = operator_types(opp / chips.CONFIG / chip.folder)
    ai_cpu = {name for folder in AI_CPU for name in operator_types(opp / "built-in/op_impl" / folder)}
    for name in needs.startup:
        if name not in ai_core and name not in BUILT_INTO_GE:
            effect = "the plugin runs it before the first aclop of every process"
            fix = f"Set {float_status.VARIABLE}={float_status.INTERPOSED} (docs/cann.md). {another}"
            yield Gap("type", name, True, "every process", effect, fix)
    for name in needs.types_of_training:
        if name in ai_core or name in BUILT_INTO_GE:
            continue
        use = needs.use(name)
        if name in ai_cpu:
            effect = f"it runs on the AI CPU of the {chip.title}, which is slow"
            yield Gap("type", name, False, use.text, effect, another)
        else:
            effect = f"this CANN lacks the operator for the {chip.title}, and the kernel has no fallback"
            yield Gap("type", name, True, use.text, effect, another)
    for name, dtype in needs.dtypes.items():
        accepted = ai_core.get(name)
        for wanted in ("float32", "bfloat16", "float16") if dtype == "model" else (dtype,):
            if accepted and wanted not in accepted:
                effect = f"the operator file of the {chip.title} lists {', '.join(sorted(accepted))}"
                users = needs.use(name).text
                yield Gap("dtype", f"{name} for {wanted}", wanted != "float16", users, effect, another)


def operator_types(folder: Path) -> dict[str, frozenset[str]]:
    """The operator types of the JSON files in ``folder``, each with the dtypes of its first input.

    An empty set means that the file lists no dtypes (the operator determines them at run time).

    Raises:
        UnreadableLibrary: a file is not JSON, or not an object.
    """
    types: dict[str, frozenset[str]] = {}
    for file in sorted(folder.glob("*.json")):
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as failure:
            raise UnreadableLibrary(f"{file} cannot be read as JSON ({failure})") from failure
        if not isinstance(content, dict):
            raise UnreadableLibrary(f"{file} has a {type(content).__name__}, not an object of operator types")
        for name, description in content.items():
            first = description.get("input0") if isinstance(description, dict) else None
            text = first.get("dtype", "") if isinstance(first, dict) else ""
            dtypes = frozenset(DTYPES.get(d.strip(), d.strip()) for d in str(text).split(",") if d.strip())
            types[name] = types.get(name, frozenset()) | dtypes
    return types
