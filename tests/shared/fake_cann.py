"""A folder like an installed CANN of any release, and a plugin, as shared libraries without code."""

import json
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llm_npu.cann import chip as chips
from llm_npu.cann.check import BUILT_INTO_GE
from llm_npu.cann.needs import of_plugin, read, symbols

RELEASES = {row["release"]: row for row in read("releases.json")["releases"]}
CANN_SYMBOLS = {"libascendcl.so": ("aclrtMalloc", "aclGetRecentErrMsg"), "libhccl.so": ("HcclAllReduce",)}
DTYPES = "float16,float,bfloat16,int32"
BASE = "libnnopbase.so"
MKI = "_ZN3Mki2DlC1ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"  # b: from 8.3.RC1 on


def library(
    file: Path,
    exports: Iterable[str] = (),
    needs: Iterable[Path] = (),
    imports: Sequence[str] = (),
    strings: Sequence[str] = (),
) -> Path:
    """A shared library that exports and imports functions, needs others, and contains ``strings``."""
    file.parent.mkdir(parents=True, exist_ok=True)
    source = [f"void {name}(void) {{}}" for name in exports]
    source += [f"extern void {name}(void);" for name in imports]
    source.append(f"void (*volatile imported_by_it[])(void) = {{{','.join(imports) or '0'}}};")
    source.append(f"const char *texts_in_it[] = {{{','.join(json.dumps(text) for text in strings) or '0'}}};")
    command = ["gcc", "-shared", "-fPIC", "-nostdlib", "-O0", f"-Wl,-soname,{file.name}", "-o", str(file)]
    command += ["-x", "c", "-", "-x", "none", "-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined"]
    command += map(str, needs)
    subprocess.run(command, input="\n".join(source), text=True, check=True, capture_output=True)
    return file


@dataclass
class FakeCann:
    """What to write below ``folder``; the fields may be changed before ``write``."""

    folder: Path
    release: str
    chip: str
    without: set[str] = field(default_factory=set)  # functions, types and files that are left out
    dtypes: dict[str, str] = field(default_factory=dict)  # of a type's first input
    ai_cpu: set[str] = field(default_factory=set)  # types that only the AI CPU has

    @property
    def functions(self) -> list[str]:
        missing = {*RELEASES[self.release]["missing"][self.chip], *self.without}
        return [name for name in of_plugin().libraries if name not in missing]

    @property
    def lib64(self) -> Path:
        return self.folder / "lib64"

    def write(self) -> "FakeCann":
        self.write_libraries()
        self.write_operators()
        parts = ("runtime", "compiler", "opp", "toolkit", "npu-runtime")
        lines = [f"{part}_running_version=[7.3:{self.release}]" for part in parts]
        self.text("version.cfg", "\n".join(lines) + "\n")
        return self

    def write_libraries(self) -> None:
        for name, exports in CANN_SYMBOLS.items():
            if name not in self.without:
                library(self.lib64 / name, exports)
        looked_up = [name for name in of_plugin().looked_up if name not in self.without]
        library(self.lib64 / BASE, looked_up)
        for name in RELEASES[self.release]["libraries"]:
            if name not in self.without and name.startswith("libopapi"):
                self.write_functions(name)
            elif name not in self.without:
                library(self.lib64 / name)

    def write_functions(self, name: str = "libopapi.so") -> None:
        """``libopapi.so``, or one of the libraries that it was split into, with its functions."""
        part = name.removeprefix("libopapi").removesuffix(".so").strip("_")
        functions = [f for f in self.functions if part in ("", of_plugin().libraries[f])]
        library(self.lib64 / name, symbols(functions), [self.lib64 / BASE])

    def write_operators(self) -> None:
        kernels = of_plugin().kernels.values()
        types = {name for calls in kernels for name in (*calls.aclop, *calls.fallback)}
        types = {*types, *of_plugin().startup} - BUILT_INTO_GE - self.without
        folder = chips.chips()[self.chip].folder
        of_ai_core = sorted(types - self.ai_cpu)
        for part, some in (("math", of_ai_core[::2]), ("legacy", of_ai_core[1::2])):
            content = {name: {"input0": {"dtype": self.dtypes.get(name, DTYPES)}} for name in some}
            self.text(f"opp/{chips.CONFIG}/{folder}/aic-{folder}-ops-info-{part}.json", json.dumps(content))
        content = {name: {"opInfo": {"engine": "DNN_VM_AICPU"}} for name in sorted(self.ai_cpu)}
        self.text("opp/built-in/op_impl/aicpu/aicpu_kernel/config/aicpu_kernel.json", json.dumps(content))

    def text(self, path: str, content: str) -> Path:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        return file


def plugin(folder: Path, lib64: Path, imports: Iterable[str] = (), needs: Iterable[str] = ()) -> Path:
    """The folder of a plugin that looks up all functions and needs CANN's libraries in ``lib64``."""
    names = [lib64 / name for name in (*CANN_SYMBOLS, *needs)]
    called = [symbol for exported in CANN_SYMBOLS.values() for symbol in exported]
    library(
        folder / "libpaddle-custom-npu.so",
        ["InitPlugin"],
        names,
        imports=[*called, *imports],
        strings=symbols(of_plugin().libraries),
    )
    return folder
