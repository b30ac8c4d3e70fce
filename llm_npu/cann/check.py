"""The installed plugin against the installed CANN, from their files.

    report = compare(plugin, cann, chip)      # Report.gaps: what is missing, who needs it
    print(report.summary())

The plugin looks a function up in ``libcust_opapi.so``, then in ``libopapi.so`` and the libraries that these
need (``dlsym``). A missing function or operator type shows only when a kernel calls it, which may be late in
a run, so all of them are looked for here.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from . import chip as chips
from . import float_status
from .chip import Chip
from .elf import Closure, UnreadableLibrary, closure, find
from .installation import Cann, library_folders
from .needs import WORKSPACE, Needs, of_plugin, read, symbols

PLUGIN = "libpaddle-custom-npu.so"
CUSTOM, OPERATORS = "libcust_opapi.so", "libopapi.so"
PARTS = tuple(f"libopapi_{part}.so" for part in ("math", "nn", "cv", "transformer", "legacy"))
# Symbols of CANN and ATB; those of libc and libstdc++ are the system's business.
OF_CANN = re.compile(r"acl|Hccl|hccl|ge[A-Z]|_ZNK?3atb|_ZNK?3Mki|_ZNK?2ge")
OF_PADDLE = re.compile(r"_ZNK?(?:3phi|6paddle|6common)")
DTYPES = {"float": "float32", "bf16": "bfloat16"}  # names of the operator files, where they are not Paddle's
BUILT_INTO_GE = frozenset(read("plugin.json")["built_into_ge"])  # types of GE's own engines, in no file
NULL = "the call goes through a null pointer and ends the process"
SOURCE = "Run `source` with the set_env.sh of CANN (for ATB's libraries, also that of nnal/atb)."
REINSTALL = "Install the CANN that the plugin was built with."
AI_CPU = ("aicpu/aicpu_kernel/config", "aicpu/config", "aicpu/tf_kernel/config")

Kind = Literal["library", "symbol", "function", "type", "dtype", "chip"]


@dataclass(frozen=True)
class Gap:
    """Something that the plugin uses and CANN does not have.

    Attributes:
        kind: what is missing.
        name: of the library, symbol, aclnn function, operator type (for a dtype: "GatherV2 bfloat16"), or the
            folder of the chip's operators.
        stops: whether a training of Llama fails without it.
        users: kernels and steps that call it.
        effect: what happens without it.
        fix: what to do.
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
        functions, types: how many aclnn functions and aclop types a training of Llama needs.
        chip: the family whose operator files were read; None if the chip is unknown.
        gaps: everything that is missing, what stops a training first.
        unreadable: files that could not be read, each with the reason; what they have is unknown.
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
        """One line: what training Llama needs, and whether it is there."""
        needs = f"training Llama needs {self.functions} aclnn functions and {self.types} aclop types"
        if self.stopping:
            return f"{needs}: {len(self.stopping)} needed parts are missing"
        if self.unreadable:
            return f"{needs}: none is known to be missing, {len(self.unreadable)} files could not be read"
        on = (
            f" for the {self.chip.title}" if self.chip else " (aclop types not examined: the chip is unknown)"
        )
        return f"{needs}: all there{on}"


def compare(
    plugin: Path,
    cann: Cann,
    chip: Chip | None,
    *,
    environ: Mapping[str, str] = os.environ,
    paddle: Path | None = None,
    root: Path = Path("/"),
) -> Report:
    """What is missing for the plugin in the folder or file ``plugin``.

    Args:
        chip: the family of the cards. None: that of the only operator files; else types are not examined.
        environ: its LD_LIBRARY_PATH is searched before CANN's lib64, its ASCEND_OPP_PATH before CANN's opp.
        paddle: Paddle's package folder, to find a plugin of another Paddle; None: not examined.
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
            continue  # Paddle's own libraries, in the folder that was not given
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
        effect = f"the plugin needs the libmki.so of an NNAL {age}, and another one is found first"
        return effect, "Install the NNAL of CANN's release, and source its set_env.sh with --cxx_abi=1."
    effect = "no library that the plugin loads exports it"
    return effect, "Install the CANN that the plugin was built with, or a plugin built for this CANN."


def _functions(plugin: Path, needs: Needs, folders: Sequence[Path], root: Path) -> Iterator[Gap]:
    library = find(OPERATORS, folders)
    if library is None:
        split = [name for name in PARTS if find(name, folders)]
        users, effect = f"all aclnn calls of {plugin.name}", "every aclnn call goes through a null pointer"
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
        effect = f"this CANN has operators for {chips.titles(installed)}, and the cards are {chip.title}"
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
            effect = f"this CANN has no such operator for the {chip.title}, and the kernel has no other form"
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

    An empty set means that the file does not list dtypes (the operator chooses them at run time).

    Raises:
        UnreadableLibrary: a file is not JSON, or not an object.
    """
    types: dict[str, frozenset[str]] = {}
    for file in sorted(folder.glob("*.json")):
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as failure:
            raise UnreadableLibrary(f"{file} is not readable as JSON ({failure})") from failure
        if not isinstance(content, dict):
            raise UnreadableLibrary(f"{file} has a {type(content).__name__}, not an object of operator types")
        for name, description in content.items():
            first = description.get("input0") if isinstance(description, dict) else None
            text = first.get("dtype", "") if isinstance(first, dict) else ""
            dtypes = frozenset(DTYPES.get(d.strip(), d.strip()) for d in str(text).split(",") if d.strip())
            types[name] = types.get(name, frozenset()) | dtypes
    return types
